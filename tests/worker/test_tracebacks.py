"""Where a failed attempt locates its error: the line of the user's code, and the traceback."""

import json
import secrets
from datetime import UTC, datetime
from typing import Any

import pytest
from cronsim import CronSim

from tests.faults.redis_dump import dump
from tests.worker.in_process_worker import ended, working
from towpath import Towpath
from towpath.clock import hours
from towpath.embedded import EmbeddedServer
from towpath.engine.model import JobInfo
from towpath.worker.context import Discard

QUEUE = "letters"


async def failure_of(app: Towpath, handler: Any, *payload: Any) -> JobInfo:
    async with app, working(app):
        return await ended(await handler.submit(*payload))


@pytest.fixture
def app(server: EmbeddedServer) -> Towpath:
    return Towpath(server.url)


async def test_an_error_in_an_installed_library_names_the_line_that_called_it(app: Towpath) -> None:
    @app.handler(QUEUE, max_attempts=1)
    async def plan() -> None:
        CronSim("not a schedule", datetime(2026, 1, 1, tzinfo=UTC))

    job = await failure_of(app, plan)
    assert "(test_tracebacks.py:" in (job.reason or "")
    assert " in plan)" in (job.reason or "")
    [failure] = job.failures
    assert "cronsim" in failure.traceback, "the frames of the library are kept"


async def test_an_error_in_the_standard_library_names_the_line_that_called_it(app: Towpath) -> None:
    @app.handler(QUEUE, max_attempts=1)
    def read() -> None:
        json.loads("{")

    job = await failure_of(app, read)
    assert " in read)" in (job.reason or "")


async def test_a_traceback_has_frames_and_message_but_no_local_variables(app: Towpath) -> None:
    canary = secrets.token_hex(8)

    @app.handler(QUEUE, max_attempts=1)
    async def pay() -> None:
        local = canary  # a local variable that must not be kept
        raise ValueError(f"{len(local)} digits")

    job = await failure_of(app, pay)
    [failure] = job.failures
    assert failure.traceback.startswith("Traceback (most recent call last):")
    assert failure.traceback.rstrip().endswith("ValueError: 16 digits")
    assert "in pay" in failure.traceback
    assert canary not in failure.traceback


@pytest.mark.parametrize("words", ["https://anna:{}@shop.example/", "password={}"])
async def test_credentials_in_an_error_are_kept_nowhere(
    app: Towpath, server: EmbeddedServer, words: str
) -> None:
    canary = secrets.token_hex(8)

    @app.handler(QUEUE, max_attempts=1, keep=hours(1))
    async def fetch() -> None:
        cause = OSError(words.format(canary))
        raise RuntimeError(f"no answer from {words.format(canary)}") from cause

    job = await failure_of(app, fetch)
    assert "***" in (job.reason or "")
    assert "***" in job.failures[-1].traceback
    assert [key for key, held in dump(server).items() if canary.encode() in held.value] == []


async def test_a_verdict_of_the_handler_has_no_traceback(app: Towpath) -> None:
    @app.handler(QUEUE)
    async def decide() -> None:
        raise Discard("not wanted")

    job = await failure_of(app, decide)
    assert [failure.traceback for failure in job.failures] == [""]
