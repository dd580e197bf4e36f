"""Whatever a handler raises or returns ends its attempt, and nothing else."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from tests.worker import process_handlers
from tests.worker.in_process_worker import SOON, LogLines, job_once, working
from towpath.app.app import Towpath
from towpath.clock import seconds
from towpath.engine.retry import Fixed
from towpath.worker.context import Context, Discard, Retry, Snooze
from towpath.worker.handler import HandlerOptions
from towpath.worker.middleware import Middleware


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise SystemExit("nothing to say")

    __repr__ = __str__


class UnencodableText(str):
    """Text that cannot be encoded."""

    __slots__ = ()

    def __str__(self) -> str:
        return self

    def encode(self, *_: Any, **__: Any) -> bytes:
        raise RuntimeError("no")

    def __getitem__(self, _: Any) -> str:
        raise RuntimeError("no")


class FailingRetry(Fixed, frozen=True):
    def delay(self, attempt: int, chance: float) -> Any:
        raise RuntimeError("no policy today")


def changed(verdict: Exception, **fields: object) -> Exception:
    """Returns a verdict as a derived class, or a careless handler, may make it."""
    for name, value in fields.items():
        setattr(verdict, name, value)
    return verdict


BAD: dict[str, Callable[[], BaseException]] = {
    "a numeric after": lambda: changed(Retry("x"), after=5),
    "a negative after": lambda: changed(Retry("x"), after=seconds(-5)),
    "an after for ever": lambda: changed(Retry("x"), after=seconds(1e12)),
    "a number for a reason": lambda: changed(Discard("x"), reason=7),
    "bytes for a reason": lambda: changed(Discard("x"), reason=b"x"),
    "no reason": lambda: changed(Discard("x"), reason=None),
    "a reason that can't be read": lambda: changed(Retry("x"), reason=UnprintableError()),
    "a reason that can't be written": lambda: changed(Discard("x"), reason=UnencodableText("x")),
    "half a character": lambda: Discard("\ud800"),
    "a long reason": lambda: Discard("x" * 5_000_000),
    "a snooze until a word": lambda: changed(Snooze(seconds(1)), until="soon"),
    "a snooze without a zone": lambda: changed(Snooze(seconds(1)), until=datetime(2030, 1, 1)),  # noqa: DTZ001
    "a message that can't be read": UnprintableError,
    "a message that can't be written": lambda: ValueError(UnencodableText("x")),
    "half a character in a message": lambda: ValueError("\udfff"),
    "a group": lambda: BaseExceptionGroup("g", [SystemExit(1), UnprintableError()]),
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "StopIteration": lambda: StopIteration(1),
}


class TestAWorker:
    @pytest.mark.parametrize("place", ["loop", "thread"])
    async def test_a_worker_goes_on_after_anything_that_a_handler_raises(
        self, app: Towpath, lines: LogLines, place: str
    ) -> None:
        """Each error ends one attempt, and the last job is done."""

        def sell(kind: str) -> str:
            if kind in BAD:
                error = BAD[kind]()
                raise error
            return kind

        async def sell_in_loop(kind: str) -> str:
            return sell(kind)

        function: Any = sell if place == "thread" else sell_in_loop
        handler = app.add("shop", function, HandlerOptions(retry=Fixed(seconds(600))))
        async with working(app, concurrency=4):
            tickets = {kind: await handler.submit(kind) for kind in BAD}
            assert await (await handler.submit("fine")).result(within=SOON) == "fine"
            for kind, ticket in tickets.items():
                job = await job_once(ticket, lambda info: info.state in ("delayed", "dead"))
                assert job.reason, kind
        assert lines.of("worker.stopped")[0]["code"] == 0

    async def test_a_worker_goes_on_after_anything_that_a_handler_in_a_process_raises(
        self, app: Towpath
    ) -> None:
        handler = app.add(
            "pool",
            process_handlers.raise_badly.function,
            HandlerOptions(processes=1, max_attempts=1),
        )
        async with working(app):
            for kind in ("after", "reason", "mute"):
                ticket = await handler.submit(kind)
                job = await job_once(ticket, lambda info: info.state == "dead")
                assert job.reason, kind

    async def test_a_worker_goes_on_after_anything_that_a_retry_policy_raises(
        self, app: Towpath
    ) -> None:
        @app.handler("shop", retry=FailingRetry())
        async def sell(n: int) -> int:
            return 1 // n

        async with working(app):
            bad = await sell.submit(0)
            assert await (await sell.submit(1)).result(within=SOON) == 1
            job = await job_once(bad, lambda info: info.state == "delayed")
        assert "ZeroDivisionError" in (job.reason or "")

    @pytest.mark.parametrize("when", ["before", "after", "error"])
    async def test_a_worker_goes_on_after_anything_that_middleware_raises(
        self, app: Towpath, when: str
    ) -> None:
        class Bad(Middleware):
            async def before(self, ctx: Context) -> None:
                self.bad(ctx, "before")

            async def after(self, ctx: Context, result: Any) -> None:
                self.bad(ctx, "after")

            async def error(self, ctx: Context, error: Exception) -> None:
                self.bad(ctx, "error")

            def bad(self, ctx: Context, at: str) -> None:
                if ctx.id.startswith("bad") and at == when:
                    raise UnprintableError

        @app.handler("shop", max_attempts=1)
        async def sell(n: int) -> int:
            return 1 // n

        async with working(app, middleware=[Bad()]):
            bad = await sell.submit(0 if when == "error" else 1, id="bad")
            assert await (await sell.submit(1)).result(within=SOON) == 1
            job = await job_once(bad, lambda info: info.state == "dead")
        assert job.reason
