"""Middleware that wraps an attempt: how it may change the outcome, and how it may not."""

import asyncio
from typing import Any

import pytest

from tests.waiting import eventually_async
from tests.worker import process_handlers
from tests.worker.in_process_worker import SOON, LogLines, ended, working
from towpath.app.app import Towpath
from towpath.clock import steady
from towpath.engine.retry import Never
from towpath.engine.states import State
from towpath.errors import JobUnfinished, MiddlewareInvalid
from towpath.worker.context import AttemptStopped, Context, Discard
from towpath.worker.handler import HandlerOptions
from towpath.worker.middleware import CallNext, Middleware
from towpath.worker.worker import Worker


class TestAWrapper:
    async def test_is_around_the_handler_the_first_one_outermost(self, app: Towpath) -> None:
        journal: list[str] = []

        def noting(name: str) -> Any:
            async def note(ctx: Context, call_next: CallNext) -> Any:
                journal.append(f"{name} {ctx.id}")
                value = await call_next()
                journal.append(f"{name} {value}")
                return value

            return note

        @app.handler("shop")
        async def sell(n: int) -> int:
            journal.append("sell")
            return n

        async with working(app, middleware=[noting("a"), noting("b")]):
            assert await (await sell.submit(7, id="x")).result(within=SOON) == 7
        assert journal == ["a x", "b x", "sell", "b 7", "a 7"]

    async def test_may_change_a_result_but_cannot_lose_it(self, app: Towpath) -> None:
        async def plus_one(ctx: Context, call_next: CallNext) -> Any:
            return 1 + await call_next()

        async def forgets(ctx: Context, call_next: CallNext) -> None:
            await call_next()

        @app.handler("shop")
        def sell(n: int) -> int:
            return n

        pids = app.add("pids", process_handlers.own_pid.function, HandlerOptions(processes=1))
        async with working(app, middleware=[forgets, plus_one, forgets]):
            assert await (await sell.submit(7)).result(within=SOON) == 8
            first = await (await pids.submit(1)).result(within=SOON)
            assert await (await pids.submit(1)).result(within=SOON) == first

    async def test_may_swallow_an_error_and_raise_one(self, app: Towpath) -> None:
        async def forgiving(ctx: Context, call_next: CallNext) -> Any:
            try:
                return await call_next()
            except LookupError:
                return "forgiven"

        async def strict(ctx: Context, call_next: CallNext) -> Any:
            if await call_next() == "bad":
                raise Discard("bad result")

        @app.handler("shop", retry=Never())
        async def sell(n: int) -> str:
            if n:
                raise LookupError
            return "bad"

        async with working(app, middleware=[strict, forgiving]):
            assert await (await sell.submit(1)).result(within=SOON) == "forgiven"
            with pytest.raises(JobUnfinished, match="bad result"):
                await (await sell.submit(0)).result(within=SOON)

    async def test_that_never_calls_the_handler_or_calls_it_twice_fails_the_attempt(
        self, app: Towpath, lines: LogLines
    ) -> None:
        ran: list[int] = []

        async def never(ctx: Context, call_next: CallNext) -> str:
            return "done, I promise"

        async def twice(ctx: Context, call_next: CallNext) -> Any:
            await call_next()
            return await call_next()

        @app.handler("shop", retry=Never())
        async def sell(n: int) -> None:
            ran.append(n)

        async with working(app, middleware=[never]):
            dead = await ended(await sell.submit(1))
            assert str(dead.reason).startswith("MiddlewareInvalid: ")
            assert never.__qualname__ in str(dead.reason)
            assert ran == []
        async with working(app, middleware=[twice]):
            dead = await ended(await sell.submit(2))
            assert str(dead.reason).startswith("MiddlewareInvalid: ")
            assert twice.__qualname__ in str(dead.reason)
        assert ran == [2]
        assert {line["error"] for line in lines.of("middleware.failed")} == {"MiddlewareInvalid"}


class TestAStoppedAttempt:
    async def test_is_not_completed_by_a_wrapper_that_swallows_the_cancellation(
        self, app: Towpath
    ) -> None:
        seen: list[BaseException] = []

        async def swallows(ctx: Context, call_next: CallNext) -> Any:
            try:
                return await call_next()
            except BaseException as error:  # noqa: BLE001 -- the very mistake
                seen.append(error)
                return "all is well"

        @app.handler("shop", time_limit="300ms", retry=Never())
        async def sell() -> str:
            await asyncio.Event().wait()
            return ""

        @app.handler("bar")
        async def pour() -> str:
            await asyncio.Event().wait()
            return ""

        async with working(app, middleware=[swallows], lease="1s"):
            dead = await ended(await sell.submit())
            assert (dead.state, dead.result) == (State.DEAD, None)
            assert str(dead.reason).startswith("TimeLimit")
            job = await pour.submit()

            async def leased() -> bool:
                return await job.state() is State.LEASED

            await eventually_async(leased)
            await job.cancel()
            assert (await ended(job)).state is State.CANCELLED
        assert [type(error) for error in seen] == [AttemptStopped, AttemptStopped]

    async def test_in_a_thread_that_raises_is_not_completed(self, app: Towpath) -> None:
        begun, errors = asyncio.Event(), list[str]()
        loop = asyncio.get_running_loop()

        async def swallows(ctx: Context, call_next: CallNext) -> Any:
            try:
                return await call_next()
            except RuntimeError as error:
                errors.append(str(error))
                return "all is well"

        @app.handler("shop", retry=Never())
        def sell(ctx: Context) -> str:
            loop.call_soon_threadsafe(begun.set)
            while not ctx.cancelled:
                pass
            raise RuntimeError("I was told to stop")

        async with working(app, middleware=[swallows], lease="1s"):
            job = await sell.submit()
            await begun.wait()
            await job.cancel()
            assert (await ended(job)).state is State.CANCELLED
        assert errors == ["I was told to stop"]

    async def test_gives_all_wrappers_together_one_second(self, app: Towpath) -> None:
        stopped_at: list[float] = []

        async def stubborn(ctx: Context, call_next: CallNext) -> Any:
            try:
                return await call_next()
            except AttemptStopped:
                stopped_at.append(steady())
                await asyncio.Event().wait()

        @app.handler("shop", time_limit="200ms", retry=Never())
        async def sell() -> None:
            await asyncio.Event().wait()

        async with working(app, middleware=[stubborn, stubborn, stubborn]):
            dead = await ended(await sell.submit())
        assert str(dead.reason).startswith("TimeLimit")
        assert len(stopped_at) == 1, "the others were ended with it"


class TestMiddlewareThatCannotBeCalled:
    """It is refused when it is given: as an error of an attempt it would cost every job its
    attempts.
    """

    def test_is_refused_by_the_app_and_by_the_worker(self, app: Towpath) -> None:
        class Timed(Middleware): ...

        async def no_next(_: object) -> None: ...

        for given in (Timed, 5, no_next):
            wrong: list[Any] = [given]
            with pytest.raises(MiddlewareInvalid):
                Towpath("redis://nowhere", middleware=wrong)
            with pytest.raises(MiddlewareInvalid):
                Towpath("redis://nowhere", submit_middleware=wrong)
            with pytest.raises(MiddlewareInvalid):
                Worker(app, middleware=wrong, handlers_later=True)
