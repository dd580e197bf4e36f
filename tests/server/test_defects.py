"""An unexpected error is answered as a problem and logged by its place, without its text."""

import asyncio
import os
import signal
from pathlib import Path

import httpx
import pytest
from sse_starlette.sse import AppStatus

from tests.server.in_process import key_of
from tests.server.messaging import app_on
from tests.server.serving import Api, RunningServer, code, problem
from towpath.embedded import EmbeddedServer
from towpath.embedded.process import ask
from towpath.engine.keys import REGISTRY
from towpath.ledger.ledger import Ledger
from towpath.server.run import listen, serve
from towpath.telemetry.logs import Log

CANARY = "canary-in-an-error"


async def test_an_unexpected_error_is_a_500_without_details(
    server: EmbeddedServer, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_on(server.url, ledger)

    @app.get("/defect")
    async def defect() -> None:  # pyright: ignore[reportUnusedFunction] -- the server calls it
        raise RuntimeError(CANARY)

    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def started(at: str) -> None:
        address.set_result(at)

    caplog.set_level("DEBUG")
    serving = asyncio.create_task(serve(app, listen("127.0.0.1", 0), started=started, log=Log()))
    try:
        base = await address
        headers = {"X-API-Key": await key_of(app, "read")}
        async with httpx.AsyncClient(base_url=base, headers=headers) as client:
            assert code(await client.get("/defect"), 500) == "defect"
            assert CANARY not in (await client.get("/defect")).text
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
        AppStatus.should_exit = False  # the library's, for the whole process
    lines = [str(record.msg) for record in caplog.records if "http.defect" in str(record.msg)]
    assert len(lines) == 2
    assert "RuntimeError" in lines[0]
    assert Path(__file__).name in lines[0]
    assert CANARY not in caplog.text


def test_a_redis_key_of_another_program_is_no_unexpected_error(
    running: RunningServer, api: Api
) -> None:
    key = f"{{{api.queue}}}:queue"
    ask(running.store, "SET", key, "of another program")
    told = problem(api.post("/jobs", {"payload": 1}), 503)
    assert told["type"].endswith("/wrong-key-type")
    ask(running.store, "DEL", key)
    assert api.post("/jobs", {"payload": 1}).status_code == 202


def test_options_of_a_newer_release_are_no_unexpected_error(
    running: RunningServer, queue: str
) -> None:
    meta, stored = f"{{{queue}}}:meta", '[1,{"max_length":70,"zeal":5}]'
    with running.client() as client:
        assert client.post(f"/api/v1/queues/{queue}/jobs", json={"payload": 1}).is_success
        for version in ("1.aaaa", "1.bbbb"):
            ask(running.store, "HSET", meta, "whole", stored, "version", version)
            ask(running.store, "HSET", REGISTRY, queue, stored)
            assert client.post(f"/api/v1/queues/{queue}/jobs", json={"payload": 1}).is_success
            assert client.get(f"/api/v1/queues/{queue}").is_success
            assert queue not in client.get("/api/v1/queues").json()["unreadable"]
    assert ask(running.store, "HGET", meta, "whole") == stored.encode()


def test_a_queue_of_another_layout_is_refused_and_not_changed(
    running: RunningServer, queue: str
) -> None:
    """An older clone has made it."""
    meta = f"{{{queue}}}:meta"
    ask(running.store, "HSET", meta, "whole", "{}", "options", "?", "version", "0123456789abcdef")
    ask(running.store, "HSET", REGISTRY, queue, "{}")
    with running.client() as client:
        assert queue in client.get("/api/v1/queues").json()["unreadable"]
        for answer in (
            client.post(f"/api/v1/queues/{queue}/jobs", json={"payload": 1}),
            client.get(f"/api/v1/queues/{queue}"),
        ):
            told = problem(answer, 503)
            assert (code(answer, 503), "version" in told["remedy"]) == ("layout-differs", True)
    assert ask(running.store, "HLEN", meta) == 3
    ask(running.store, "HDEL", REGISTRY, queue)
