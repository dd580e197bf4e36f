"""A server with timers in service mode, and its clients."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
from fastapi import FastAPI

from tests.server.in_process import build_server, client_of, key_of, started
from tests.waiting import PATIENT
from towpath.apps.messages.options import MessagesOptions
from towpath.apps.timers.options import TimersOptions
from towpath.ledger.ledger import Ledger

SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo="
OPTIONS = TimersOptions(secrets=(SECRET,), allow=("127.0.0.0/8",))


def scheduling_on(url: str, ledger: Ledger, options: TimersOptions = OPTIONS) -> FastAPI:
    """A server that calls instances on this machine."""
    applications = {"timers": options, "messages": MessagesOptions(secrets=(SECRET,))}
    return build_server(url, ledger, applications, patience=PATIENT, with_workers=True)


class InstancesApi:
    """The API of instances, with a key."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def register(self, address: str, *task_types: str, app: str = "shop", **more: Any) -> Any:
        answer = await self.try_to_register(address, *task_types, app=app, **more)
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def try_to_register(
        self, address: str, *task_types: str, app: str = "shop", **more: Any
    ) -> httpx.Response:
        body = {"address": address, "task_types": task_types, **more}
        return await self.client.post(f"/api/v1/apps/{app}/instances", json=body)

    async def instances(self, app: str = "shop") -> list[Any]:
        answer = await self.client.get(f"/api/v1/apps/{app}/instances")
        assert answer.status_code == 200, answer.text
        return answer.json()["instances"]

    async def say(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return await self.client.request(method, f"/api/v1/{path}", json=body)


@asynccontextmanager
async def with_key(
    app: FastAPI, *scopes: str, queues: tuple[str, ...] = ("*",), owner: str | None = "shop"
) -> AsyncGenerator[InstancesApi]:
    key = await key_of(app, *scopes, queues=queues, owner=owner)
    async with client_of(app, key) as client:
        yield InstancesApi(client)


def altered(**changes: Any) -> TimersOptions:
    return msgspec.structs.replace(OPTIONS, **changes)


__all__ = ["OPTIONS", "SECRET", "InstancesApi", "altered", "scheduling_on", "started", "with_key"]


async def sample(app: FastAPI, name: str, **labels: str) -> float | None:
    """Returns a sample from a scrape of *app*. Gauges are read on its event loop, so not in it."""
    return await asyncio.to_thread(app.state.metrics.registry.get_sample_value, name, labels)
