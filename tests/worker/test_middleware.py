"""Middleware runs around every handler, in order, in every executor."""

import asyncio
import sys
import threading
from typing import Any

import pytest

from tests.waiting import HANGS, eventually_in_loop
from tests.worker import process_handlers
from tests.worker.in_process_worker import SOON, LogLines, ended, job_once, working
from towpath.app.app import Towpath
from towpath.clock import hours, milliseconds, minutes
from towpath.engine.retry import Never
from towpath.engine.states import State
from towpath.worker.context import Context, Discard, Snooze
from towpath.worker.handler import HandlerOptions
from towpath.worker.middleware import Middleware


class RecordingMiddleware(Middleware):
    """Records its calls, and raises where the test asks it to."""

    def __init__(self, name: str, journal: list[str], **raises: Exception) -> None:
        self.name, self.journal, self.raises = name, journal, raises

    async def before(self, ctx: Context) -> None:
        self._called("before", ctx.id)

    async def after(self, ctx: Context, result: Any) -> None:
        self._called("after", result)

    async def error(self, ctx: Context, error: Exception) -> None:
        self._called("error", type(error).__name__)

    def _called(self, when: str, what: object) -> None:
        self.journal.append(f"{self.name} {when} {what}")
        if when in self.raises:
            raise self.raises[when]


@pytest.fixture
def journal() -> list[str]:
    return []


class TestTheOrderOfMiddleware:
    async def test_before_is_as_given_and_after_is_reversed(
        self, app: Towpath, journal: list[str]
    ) -> None:
        @app.handler("shop")
        async def sell() -> str:
            journal.append("sell")
            return "sold"

        async with working(
            app, middleware=[RecordingMiddleware("a", journal), RecordingMiddleware("b", journal)]
        ):
            assert await (await sell.submit(id="1")).result(within=SOON) == "sold"
        assert journal == ["a before 1", "b before 1", "sell", "b after sold", "a after sold"]

    async def test_is_reversed_for_an_error_too(self, app: Towpath, journal: list[str]) -> None:
        @app.handler("shop", max_attempts=1)
        async def sell() -> None:
            raise LookupError("gone")

        async with working(
            app, middleware=[RecordingMiddleware("a", journal), RecordingMiddleware("b", journal)]
        ):
            dead = await ended(await sell.submit(id="1"))
        assert journal[2:] == ["b error LookupError", "a error LookupError"]
        assert (dead.reason or "").startswith("LookupError: gone")

    async def test_for_a_verdict_is_that_of_an_error(
        self, app: Towpath, journal: list[str]
    ) -> None:
        @app.handler("shop")
        async def sell() -> None:
            raise Discard("unwanted")

        async with working(app, middleware=[RecordingMiddleware("a", journal)]):
            assert (await ended(await sell.submit(id="1"))).reason == "unwanted"
        assert journal == ["a before 1", "a error Discard"]


class TestMiddleware:
    async def test_runs_in_the_workers_loop_and_sees_values(
        self, app: Towpath, journal: list[str]
    ) -> None:
        @app.handler("shop")
        def sell(n: int) -> list[int]:
            return [n, threading.get_ident()][:1]

        pids = app.add("pids", process_handlers.own_pid.function, HandlerOptions(processes=1))
        async with working(app, middleware=[RecordingMiddleware("a", journal)]):
            assert await (await sell.submit(7, id="1")).result(within=SOON) == [7]
            pid = await (await pids.submit(1, id="2")).result(within=SOON)
        assert journal == ["a before 1", "a after [7]", "a before 2", f"a after {pid}"]


class TestMiddlewareAroundAnAttempt:
    """However the attempt ends, `error` can close what `before` opened."""

    async def test_sees_that_the_attempt_was_ended_by_its_time_limit(
        self, app: Towpath, journal: list[str]
    ) -> None:
        @app.handler("shop", time_limit=milliseconds(300), retry=Never())
        async def sell() -> None:
            await asyncio.Event().wait()

        async with working(
            app, middleware=[RecordingMiddleware("a", journal), RecordingMiddleware("b", journal)]
        ):
            dead = await ended(await sell.submit(id="1"))
        assert journal[2:] == ["b error AttemptStopped", "a error AttemptStopped"]
        assert (dead.reason or "").startswith("TimeLimit")

    @pytest.mark.usefixtures("quick_heartbeat")
    async def test_sees_that_the_attempt_was_cancelled(
        self, app: Towpath, journal: list[str]
    ) -> None:
        @app.handler("shop")
        async def sell() -> None:
            await asyncio.Event().wait()

        async with working(app, middleware=[RecordingMiddleware("a", journal)], lease=minutes(9)):
            job = await sell.submit(id="1")
            await eventually_in_loop(lambda: bool(journal))
            await job.cancel()
            assert (await ended(job)).state is State.CANCELLED
        assert journal == ["a before 1", "a error AttemptStopped"]

    @pytest.mark.parametrize("place", ["loop", "thread"])
    async def test_sees_that_the_attempt_was_ended_by_the_workers_stop(
        self, app: Towpath, journal: list[str], gate: threading.Event, place: str
    ) -> None:
        async def wait() -> None:
            await asyncio.Event().wait()

        def block() -> None:
            gate.wait(HANGS)

        sell: Any = app.handler("shop")(wait if place == "loop" else block)
        async with working(app, middleware=[RecordingMiddleware("a", journal)]):
            job = await sell.submit(id="1")
            await eventually_in_loop(lambda: bool(journal))
        assert journal == ["a before 1", "a error AttemptStopped"]
        assert await job.state() is State.READY

    async def test_sees_that_the_handler_called_exit(
        self, app: Towpath, journal: list[str]
    ) -> None:
        @app.handler("shop", retry=Never())
        async def sell() -> None:
            sys.exit(3)

        async with working(app, middleware=[RecordingMiddleware("a", journal)]):
            dead = await ended(await sell.submit(id="1"))
        assert journal == ["a before 1", "a error RuntimeError"]
        assert (dead.reason or "").startswith("SystemExit: 3")

    async def test_is_not_waited_for_if_it_hangs(self, app: Towpath, journal: list[str]) -> None:
        """What it raises does not change how the attempt ended, either."""

        class Hanging(RecordingMiddleware):
            async def error(self, ctx: Context, error: Exception) -> None:
                await super().error(ctx, error)
                await asyncio.Event().wait()

        @app.handler("shop", time_limit=milliseconds(300), retry=Never())
        async def sell() -> None:
            await asyncio.Event().wait()

        async with working(app, middleware=[Hanging("a", journal)]):
            dead = await ended(await sell.submit(id="1"))
            await eventually_in_loop(lambda: len(journal) > 1)
        assert journal == ["a before 1", "a error AttemptStopped"]
        assert (dead.reason or "").startswith("TimeLimit")


class TestAnErrorOfMiddleware:
    async def test_in_before_keeps_the_handler_from_running(
        self, app: Towpath, journal: list[str], lines: LogLines
    ) -> None:
        @app.handler("shop", max_attempts=1)
        async def sell() -> None:
            journal.append("sell")

        broken = RecordingMiddleware("b", journal, before=ValueError("no"))
        async with working(
            app,
            middleware=[
                RecordingMiddleware("a", journal),
                broken,
                RecordingMiddleware("c", journal),
            ],
        ):
            dead = await ended(await sell.submit(id="1"))
        assert journal == ["a before 1", "b before 1", "a error ValueError"]
        assert (dead.reason or "").startswith("ValueError: no")
        assert lines.of("middleware.failed")[0]["middleware"] == "RecordingMiddleware"

    async def test_in_after_fails_the_attempt(
        self, app: Towpath, journal: list[str], lines: LogLines
    ) -> None:
        @app.handler("shop", max_attempts=1)
        async def sell() -> None: ...

        broken = RecordingMiddleware("b", journal, after=ValueError("no"))
        async with working(app, middleware=[RecordingMiddleware("a", journal), broken]):
            dead = await ended(await sell.submit(id="1"))
        assert journal[-1] == "a error ValueError"
        assert dead.state is State.DEAD
        assert lines.of("middleware.failed")

    async def test_in_error_replaces_the_original_error(
        self, app: Towpath, journal: list[str]
    ) -> None:
        @app.handler("shop", max_attempts=1)
        async def sell() -> None:
            raise LookupError

        broken = RecordingMiddleware("b", journal, error=ValueError("worse"))
        async with working(app, middleware=[RecordingMiddleware("a", journal), broken]):
            dead = await ended(await sell.submit(id="1"))
        assert journal[2:] == ["b error LookupError", "a error ValueError"]
        assert (dead.reason or "").startswith("ValueError: worse")

    async def test_may_be_a_verdict(
        self, app: Towpath, journal: list[str], lines: LogLines
    ) -> None:
        @app.handler("shop")
        async def sell() -> None: ...

        busy = RecordingMiddleware("a", journal, before=Snooze(hours(1)))
        async with working(app, middleware=[busy]):
            job = await job_once(await sell.submit(), lambda info: info.state is State.DELAYED)
        assert job.attempts == 0
        assert not lines.of("middleware.failed")
