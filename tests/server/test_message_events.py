"""Waiting for an answer over HTTP: the event stream of one message."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI

from tests.server.in_process import listening
from tests.server.messaging import claim, post, settle
from tests.waiting import HANGS, eventually_async
from towpath.web.open_requests import OpenKind


class Listener:
    """A client that waits for an answer, event by event."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def next(self) -> tuple[str, Any]:
        """The next event and its data."""
        name = ""
        async with asyncio.timeout(HANGS):
            async for line in self._lines:
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                if line.startswith("data: "):
                    return name, json.loads(line.removeprefix("data: "))
        return "end", None


@asynccontextmanager
async def waiting_for(
    client: httpx.AsyncClient, message_id: str, **headers: str
) -> AsyncGenerator[Listener]:
    path = f"/api/v1/message/{message_id}/events"
    async with client.stream("GET", path, headers=headers, timeout=HANGS) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Listener(answer.aiter_lines())


class TestWaitingForTheAnswer:
    async def test_sends_position_processing_progress_and_answer_then_ends(
        self, app: FastAPI, client: httpx.AsyncClient
    ) -> None:
        first, second = await post(client), await post(client)
        key = client.headers["X-API-Key"]
        async with (
            listening(app) as url,
            httpx.AsyncClient(base_url=url, headers={"X-API-Key": key}) as there,
            waiting_for(there, second["message_id"]) as listener,
        ):
            name, data = await listener.next()
            assert (name, data["queue_position"]) == ("position", 2)
            job = await claim(client)
            assert job["id"] == first["message_id"]
            name, data = await listener.next()
            assert (name, data["queue_position"]) == ("position", 1)
            await settle(client, "complete", job)
            job = await claim(client)
            assert (await listener.next())[0] == "processing"
            await settle(client, "renew", job, progress={"done": 0.5})
            name, data = await listener.next()
            assert (name, data["progress"]) == ("progress", {"done": 0.5})
            await settle(client, "complete", job, result={"text": "hi"})
            name, data = await listener.next()
            assert (name, data["answer"]) == ("answer", {"text": "hi"})
            assert (await listener.next())[0] == "end"

    async def test_a_client_that_connects_late_gets_the_answer_at_once(
        self, app: FastAPI, client: httpx.AsyncClient
    ) -> None:
        sent = await post(client)
        await settle(client, "complete", await claim(client), result="hi")
        for last_seen in ("", "5-1", "nonsense"):
            headers = {"Last-Event-ID": last_seen}
            path = f"/api/v1/message/{sent['message_id']}/events"
            lines = (await client.get(path, headers=headers)).text.splitlines()
            assert [line for line in lines if line.startswith("event")] == ["event: answer"]

    async def test_a_client_that_leaves_is_forgotten(
        self, app: FastAPI, client: httpx.AsyncClient
    ) -> None:
        sent = await post(client)
        key = client.headers["X-API-Key"]

        async def nobody_waits() -> bool:
            return app.state.open_requests.count(OpenKind.STREAM) == 0

        async with (
            listening(app) as url,
            httpx.AsyncClient(base_url=url, headers={"X-API-Key": key}) as there,
        ):
            async with waiting_for(there, sent["message_id"]) as listener:
                await listener.next()
                assert app.state.open_requests.count(OpenKind.STREAM) == 1
            await eventually_async(nobody_waits)
