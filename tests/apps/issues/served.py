"""A server with issues that listens on a port of this machine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import FastAPI

from tests.server.in_process import build_server, client_of, key_of, listening, started
from tests.waiting import PATIENT
from towpath.apps.issues.options import IssuesOptions
from towpath.apps.issues.tables import TABLES
from towpath.ledger.ledger import Ledger
from towpath.web.open_requests import OpenKind

REPOSITORY = "octo/repo"
ALL = {"agent_id": "a-1", "repositories": [REPOSITORY]}


@dataclass
class ServedIssues:
    """A running server: its address, the key of its agents, and requests of people."""

    app: FastAPI
    address: str
    key: str
    client: httpx.AsyncClient
    """Its key has all scopes."""

    async def put_issue(self, number: int, **more: Any) -> None:
        issue = {"repository": REPOSITORY, "number": number, "title": f"Issue {number}", **more}
        answer = await self.client.post("/api/v1/issues", json=issue)
        assert answer.status_code == 200, answer.text

    async def get_issue(self, number: int) -> Any:
        place = REPOSITORY.replace("/", "%2F")
        return (await self.client.get(f"/api/v1/issues/{place}/{number}")).json()

    async def take(self, agent: str = "other", **wish: Any) -> Any:
        body = {"agent_id": agent, **wish}
        answer = await self.client.post("/api/v1/request-task", json=body)
        return answer.json() if answer.status_code == 200 else None

    async def post_task(self, verb: str, task: Any, **more: Any) -> httpx.Response:
        path = f"/api/v1/tasks/{task['task_id']}/{verb}"
        return await self.client.post(path, json={"token": task["token"], **more})

    async def client_key(self, *scopes: str) -> str:
        """Returns a new key with these scopes."""
        return await key_of(self.app, *scopes)

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a task."""
        return self.app.state.open_requests.count(OpenKind.WAIT)


@asynccontextmanager
async def issues_served(
    url: str, database: str, options: IssuesOptions | None = None
) -> AsyncGenerator[ServedIssues]:
    async with Ledger(database, tables=[TABLES]) as ledger:
        await ledger.migrate()
    ledger = Ledger(database, tables=[TABLES])
    server = build_server(url, ledger, {"issues": options or IssuesOptions()}, patience=PATIENT)
    async with started(server) as app, listening(app) as address:
        everything = await key_of(app, "read", "submit", "work", "admin")
        async with client_of(app, everything) as client:
            yield ServedIssues(app, address, await key_of(app, "work", "read"), client)
