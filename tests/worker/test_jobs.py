"""The job that `submit` returns: its result, progress, state and info, and how to cancel it."""

import asyncio
import re
from typing import Any

import msgspec
import pytest

from tests.waiting import eventually_async
from tests.worker.in_process_worker import SOON, working
from towpath.app.app import Towpath
from towpath.app.job import BlockingJob, Job
from towpath.app.submission import CallNext, Submission
from towpath.engine.model import HIGH, LOW
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import (
    HandlerInvalid,
    InvalidName,
    JobNotFound,
    MiddlewareInvalid,
    PayloadInvalid,
    QueueFull,
    StillOpen,
    SubmitsRefused,
)
from towpath.worker.context import Context


class Step(msgspec.Struct):
    done: int
    of: int


async def in_a_thread(call: Any) -> Any:
    return await asyncio.to_thread(call)


class TestAJob:
    async def test_is_found_by_its_id(self, app: Towpath) -> None:
        @app.handler("sums")
        async def double(n: int) -> int:
            return 2 * n

        made = await double.submit(4, id="four", priority=HIGH)
        found = double.job("four")
        assert (found.ref, found.id, found.queue) == (made.ref, "four", "sums")
        info = await found.info()
        assert (info.payload, info.priority, info.state) == (b"4", HIGH, State.READY)
        async with working(app):
            assert await found.result(within=SOON) == 8

    async def test_with_an_unknown_id_is_gone(self, app: Towpath) -> None:
        @app.handler("sums")
        async def double(n: int) -> int:
            return 2 * n

        unknown = double.job("unknown")
        assert await unknown.state() is State.GONE
        for ask in (unknown.info, unknown.progress, unknown.cancel, unknown.retry):
            with pytest.raises(JobNotFound):
                await ask()
        with pytest.raises(InvalidName):
            double.job("")

    async def test_returns_its_progress_as_a_value(self, app: Towpath) -> None:
        told, go_on = asyncio.Event(), asyncio.Event()

        @app.handler("sums")
        async def test_returns_its_progress_as_a_value(ctx: Context) -> None:
            ctx.progress({"done": 1, "of": 2})
            told.set()
            await go_on.wait()
            ctx.progress(b"\xff")

        job = await test_returns_its_progress_as_a_value.submit()
        assert await job.progress() is None
        async with working(app):
            await told.wait()

            async def noted() -> bool:
                return await job.progress() is not None

            await eventually_async(noted)
            assert await job.progress() == {"done": 1, "of": 2}
            assert await job.progress(Step) == Step(1, 2)
            with pytest.raises(PayloadInvalid):
                await job.progress(int)
            go_on.set()
            await job.result(within=SOON)
        assert await job.progress() == b"\xff"

    async def test_can_be_cancelled_and_retried_when_dead(self, app: Towpath) -> None:
        @app.handler("sums", max_attempts=1)
        async def fail() -> None:
            raise ValueError

        job = await fail.submit()
        assert await job.cancel() is State.CANCELLED
        dead = await fail.submit()
        async with working(app):
            await app.engine.events.ended(dead.ref, within=SOON)
        assert await dead.retry() is State.READY


class TestABlockingJob:
    async def test_answers_without_an_event_loop(self, app: Towpath) -> None:
        @app.handler("sums", max_attempts=1)
        async def double(n: int, ctx: Context) -> int:
            ctx.progress({"done": n, "of": n})
            return 2 * n

        def script() -> None:
            job = double.blocking.submit(4, id="four")
            assert isinstance(job, BlockingJob)
            assert double.blocking.submit(4, id="four").existed
            assert double.blocking.job("four").info().payload == b"4"
            assert job.result(within=SOON) == 8
            assert job.progress(Step) == Step(4, 4)
            assert job.state() is State.DONE
            later = double.blocking.submit(1, delay="1h")
            assert later.move(delay="2h") is State.DELAYED
            assert later.cancel() is State.CANCELLED

        async with working(app):
            await asyncio.to_thread(script)


class TestManyJobs:
    async def test_have_options_of_their_own(self, app: Towpath) -> None:
        @app.handler("sums")
        async def double(n: int) -> int:
            return 2 * n

        jobs = await double.submit_many(
            [1, double.new(2, priority=LOW, id="two"), double.new(3)], priority=HIGH
        )
        assert [(await job.info()).priority for job in jobs] == [HIGH, LOW, HIGH]
        assert jobs[1].id == "two"
        assert await double.submit_many([]) == []

    async def test_of_another_handler_are_refused(self, app: Towpath) -> None:
        @app.handler("sums", name="double")
        async def double(n: int) -> int:
            return 2 * n

        @app.handler("sums", name="triple")
        async def triple(n: int) -> int:
            return 3 * n

        with pytest.raises(HandlerInvalid, match=r"triple\.new"):
            await triple.submit_many([double.new(1)])

    @pytest.mark.parametrize("how", ["async", "blocking"])
    async def test_that_are_refused_in_part_list_the_accepted_ones(
        self, app: Towpath, how: str
    ) -> None:
        @app.handler("sums")
        async def double(n: int) -> int:
            return 2 * n

        await app.engine.queues.configure("sums", QueueOptions(max_length=2))
        seen: list[QueueFull] = []
        try:
            if how == "blocking":
                await in_a_thread(lambda: double.blocking.submit_many(range(4)))
            else:
                await double.submit_many(range(4))
        except* QueueFull as group:
            seen += [error for error in group.exceptions if isinstance(error, QueueFull)]
        assert len(seen) == 2
        with pytest.raises(SubmitsRefused) as refusal:
            await double.submit_many([5])
        assert (refusal.value.queue, refusal.value.taken) == ("sums", {})
        assert [type(error) for error in refusal.value.refused.values()] == [QueueFull]


class TestTheTextOfAJob:
    async def test_is_its_queue_and_its_id(self, app: Towpath) -> None:
        @app.handler("sums")
        async def test_returns_its_progress_as_a_value() -> None: ...

        async with app:
            job = await test_returns_its_progress_as_a_value.submit(id="a")
            assert repr(job) == "<job sums/a>"
            assert (
                repr(
                    await in_a_thread(
                        lambda: test_returns_its_progress_as_a_value.blocking.job("a")
                    )
                )
                == "<job sums/a>"
            )

    async def test_in_a_timeout_names_the_time_that_was_waited(self, app: Towpath) -> None:
        @app.handler("sums")
        async def test_returns_its_progress_as_a_value() -> None: ...

        async with app:
            job = await test_returns_its_progress_as_a_value.submit()
            with pytest.raises(StillOpen, match="10ms") as refusal:
                await job.result(within="10ms")
            assert refusal.value.job == job.ref


class TestSubmitMiddleware:
    """One function around every submit: single, many, and without an event loop."""

    @staticmethod
    def app_with(server: Any, *middleware: Any) -> Towpath:
        return Towpath(server.url, submit_middleware=middleware)

    async def test_sees_and_changes_every_submit(self, server: Any) -> None:
        journal: list[str] = []

        async def tenant(submission: Submission, call_next: CallNext) -> None:
            journal.append(f"{submission.handler.name} {len(submission.jobs)}")
            for job in submission.jobs:
                job.options["headers"] = {"tenant": "anna"}
                job.payload += 1
            jobs: list[Job[Any]] = await call_next()
            journal.append(",".join(submitted.id for submitted in jobs))

        app = self.app_with(server, tenant)

        @app.handler("sums")
        async def double(n: int, ctx: Context) -> str:
            return f"{n} {ctx.headers['tenant']}"

        async with app, working(app):
            one = await double.submit(1, id="a")
            many = await double.submit_many([2, double.new(3)])
            last = await in_a_thread(lambda: double.blocking.submit(4, id="b"))
            results = [await job.result(within=SOON) for job in (one, *many)]
            results.append(await in_a_thread(lambda: last.result(within=SOON)))
        assert results == ["2 anna", "3 anna", "4 anna", "5 anna"]
        assert journal[:3] == ["double 1", "a", "double 2"]
        assert journal[-2:] == ["double 1", "b"]

    async def test_runs_from_the_outermost_to_the_innermost(self, server: Any) -> None:
        journal: list[str] = []

        def noting(name: str) -> Any:
            async def note(submission: Submission, call_next: CallNext) -> None:
                journal.append(f"{name} in")
                await call_next()
                journal.append(f"{name} out")

            return note

        app = self.app_with(server, noting("a"), noting("b"))

        @app.handler("sums")
        async def test_returns_its_progress_as_a_value() -> None: ...

        async with app:
            await test_returns_its_progress_as_a_value.submit()
        assert journal == ["a in", "b in", "b out", "a out"]

    async def test_that_loses_or_adds_jobs_is_refused_before_any_is_submitted(
        self, server: Any
    ) -> None:
        async def loses(submission: Submission, call_next: CallNext) -> None:
            submission.jobs.pop()
            await call_next()

        async def adds(submission: Submission, call_next: CallNext) -> None:
            submission.jobs.append(submission.jobs[0])
            await call_next()

        for middleware, difference in ((loses, -1), (adds, 1)):
            app = self.app_with(server, middleware)

            @app.handler("sums")
            async def double(n: int) -> int:
                return n

            async with app:
                for test_returns_its_progress_as_a_value in (1, 2):
                    with pytest.raises(MiddlewareInvalid) as refusal:
                        await double.submit_many(range(test_returns_its_progress_as_a_value))
                    assert refusal.value.name == middleware.__qualname__
                    counts = [int(number) for number in re.findall(r"\d+", refusal.value.rule)]
                    assert counts == [
                        test_returns_its_progress_as_a_value,
                        test_returns_its_progress_as_a_value + difference,
                    ]
                with pytest.raises(MiddlewareInvalid):
                    await double.submit(1)
                assert (await app.engine.inspect.counts("sums")).ready == 0

    async def test_that_breaks_its_rules_is_refused(self, server: Any) -> None:
        async def never(submission: Submission, call_next: CallNext) -> None: ...

        async def twice(submission: Submission, call_next: CallNext) -> None:
            await call_next()
            await call_next()

        async def swallows(submission: Submission, call_next: CallNext) -> None:
            try:
                await call_next()
            except PayloadInvalid:
                return

        async def raises(submission: Submission, call_next: CallNext) -> None:
            raise PermissionError("not you")

        for broken, submitted in ((never, 0), (twice, 1)):
            app = self.app_with(server, broken)
            handler = app.handler("sums")(_plain)
            async with app:
                with pytest.raises(MiddlewareInvalid) as refusal:
                    await handler.submit(1)
                assert refusal.value.name == broken.__qualname__
                assert (await app.engine.inspect.counts("sums")).ready == submitted
        app = self.app_with(server, swallows)
        async with app:
            with pytest.raises(MiddlewareInvalid) as refusal:
                await app.handler("sums")(_plain).submit("one")  # type: ignore[arg-type]
            assert refusal.value.name == swallows.__qualname__
            assert isinstance(refusal.value.__cause__, PayloadInvalid)
        app = self.app_with(server, raises)
        async with app:
            with pytest.raises(PermissionError):
                await app.handler("sums")(_plain).submit(1)
            assert (
                await app.engine.inspect.counts("sums")
            ).ready == 1  # of the middleware that called twice


async def _plain(n: int) -> int:
    return n
