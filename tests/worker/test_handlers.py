"""Handlers: what they get, where they run, and how jobs are submitted to them."""

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.waiting import HANGS, eventually_async, eventually_in_loop
from tests.worker import process_handlers
from tests.worker.in_process_worker import SOON, LogLines, ended, job_once, working
from tests.worker.worker_programs import is_gone
from towpath.app.app import Towpath
from towpath.clock import ZERO, Duration, hours, minutes, seconds, steady
from towpath.engine.model import HIGH, new_job
from towpath.engine.retry import Fixed
from towpath.engine.states import State
from towpath.errors import HandlerInvalid, JobDiffers, JobUnfinished, SubmitsRefused
from towpath.worker.attempt import SettledAttempt
from towpath.worker.context import Context
from towpath.worker.handler import HandlerOptions
from towpath.worker.worker import Worker


class TestAHandler:
    async def test_gets_its_settled_attempts_and_none_of_jobs_that_nobody_handles(
        self, app: Towpath
    ) -> None:
        """Jobs without a handler are settled in the same batch, and some of them come first
        in it.
        """
        settled: list[SettledAttempt] = []

        async def send(n: int) -> int:
            return n

        app.add("mails", send, HandlerOptions(name="send"), on_settled=settled.extend)
        async with app:
            jobs = [
                new_job(b"0", headers={"handler": "nobody" if n % 2 else "send"})
                for n in range(400)
            ]
            await app.engine.submit_many("mails", jobs)
            await Worker(app, signals=()).drain()
            counts = await app.engine.inspect.counts("mails")
            assert (counts.totals["completed"], counts.dead) == (200, 0)
            assert counts.totals["unhandled"] >= 200
        assert [attempt.outcome for attempt in settled] == [State.DONE] * 200
        assert {attempt.attempt.handler_name for attempt in settled} == {"send"}

    async def test_that_is_async_runs_in_the_workers_event_loop(self, app: Towpath) -> None:
        @app.handler("loops")
        async def where() -> bool:
            return asyncio.get_running_loop() is loop

        loop = asyncio.get_running_loop()
        async with working(app):
            assert await (await where.submit()).result(within=SOON) is True

    async def test_that_is_a_plain_function_runs_in_a_thread(self, app: Towpath) -> None:
        @app.handler("threads")
        def where(_: int) -> int:
            meeting.wait()
            return threading.get_ident()

        meeting = threading.Barrier(3, timeout=HANGS)
        async with working(app):
            tickets = await where.submit_many([1, 2])
            await asyncio.to_thread(meeting.wait)
            threads = {await ticket.result(within=SOON) for ticket in tickets}
        assert len(threads) == 2
        assert threading.get_ident() not in threads

    async def test_with_processes_runs_in_another_process_that_is_reused(
        self, app: Towpath
    ) -> None:
        own_pid = app.add("pids", process_handlers.own_pid.function, HandlerOptions(processes=1))
        async with working(app):
            tickets = await own_pid.submit_many(range(5))
            pids = {await ticket.result(within=SOON) for ticket in tickets}
        assert len(pids) == 1
        assert os.getpid() not in pids

    async def test_whose_idle_process_died_loses_no_attempt(self, app: Towpath) -> None:
        own_pid = app.add("pids", process_handlers.own_pid.function, HandlerOptions(processes=1))
        async with working(app):
            first = await (await own_pid.submit(1)).result(within=SOON)
            os.kill(first, signal.SIGKILL)
            await eventually_in_loop(lambda: is_gone(first))
            job = await own_pid.submit(2)
            assert await job.result(within=SOON) != first
        assert (await app.engine.inspect.job(job.ref)).attempts == 1

    async def test_that_is_called_directly_runs_in_the_callers_thread(self, app: Towpath) -> None:
        @app.handler("sums")
        async def double(n: int) -> int:
            return 2 * n

        @app.handler("halves")
        def half(n: int, ctx: Context) -> tuple[float, int, str]:
            ctx.progress("half way")
            return n / 2, ctx.attempt, ctx.queue

        assert await double(21) == 42
        assert half(21) == (10.5, 1, "halves")
        assert (await app.engine.inspect.counts("sums")).totals["submitted"] == 0


class TestTheContext:
    async def test_has_the_jobs_attributes(self, app: Towpath) -> None:
        seen: list[Context] = []

        @app.handler("shop", time_limit=minutes(5))
        async def sell(item: str, ctx: Context) -> None:
            seen.append(ctx)

        async with working(app, name="till-3"):
            job = await sell.submit("tea", lane="ada", priority=HIGH, id="o-1", headers={"a": "b"})
            await job.result(within=SOON)
        [ctx] = seen
        assert (ctx.id, ctx.queue, ctx.lane, ctx.priority) == ("o-1", "shop", "ada", HIGH)
        assert (ctx.attempt, ctx.worker, ctx.handler) == (1, "till-3", "sell")
        assert dict(ctx.headers) == {"a": "b"}
        assert (await app.engine.inspect.job(job.ref)).token == ctx.token
        assert minutes(5) <= ctx.deadline - ctx.claimed_at < minutes(5) + seconds(5)
        assert abs(ctx.claimed_at - ctx.submitted_at) < seconds(5)
        assert (ctx.due_at, ctx.cancelled) == (None, False)

    async def test_counts_the_deadline_from_the_start_of_the_handler(self, app: Towpath) -> None:
        """A claimed job may wait for running jobs of its handler."""
        go = asyncio.Event()
        spans: list[Duration] = []

        @app.handler("shop", name="one", concurrency=1, time_limit=minutes(5))
        async def sell(_: int, ctx: Context) -> None:
            spans.append(ctx.deadline - ctx.claimed_at)
            await go.wait()

        @app.handler("shop", name="other")
        async def count() -> None: ...

        async with working(app, concurrency=10):
            for n in range(2):
                await sell.submit(n)
            await eventually_async(lambda: _leased(app, 2))
            since = steady()
            await eventually_in_loop(lambda: steady() - since > 0.2)
            go.set()
            await eventually_in_loop(lambda: len(spans) == 2)
        assert spans[1] >= minutes(5) + seconds(0.2)

    async def test_counts_attempts_and_gives_each_a_higher_token(self, app: Towpath) -> None:
        seen: list[tuple[int, int]] = []

        @app.handler("shop", retry=Fixed(seconds(0)))
        async def sell(ctx: Context) -> None:
            seen.append((ctx.attempt, ctx.token))
            assert ctx.attempt == 3

        async with working(app):
            await (await sell.submit()).result(within=SOON)
        assert [attempt for attempt, _ in seen] == [1, 2, 3]
        assert sorted(token for _, token in seen) == [token for _, token in seen]

    async def test_stores_progress_while_the_handler_runs(self, app: Towpath) -> None:
        @app.handler("loop")
        async def slow(ctx: Context) -> None:
            ctx.progress({"percent": 10})
            await go.wait()

        @app.handler("thread")
        def slow_thread(ctx: Context) -> None:
            ctx.progress({"percent": 10})
            gate.wait(HANGS)

        go, gate = asyncio.Event(), threading.Event()
        async with working(app):
            for handler in (slow, slow_thread):
                await job_once(
                    await handler.submit(), lambda info: info.progress == b'{"percent":10}'
                )
            go.set()
            gate.set()

    async def test_has_stored_the_last_progress_before_the_job_is_done(self, app: Towpath) -> None:
        @app.handler("loop")
        async def noting(ctx: Context) -> None:
            for percent in (50, 100):
                ctx.progress({"percent": percent})

        @app.handler("thread")
        def noting_thread(ctx: Context) -> None:
            for percent in (50, 100):
                ctx.progress({"percent": percent})

        noting_process = app.add(
            "notes", process_handlers.note_twice.function, HandlerOptions(processes=1)
        )
        async with working(app):
            jobs = [await handler.submit() for handler in (noting, noting_thread, noting_process)]  # pyright: ignore
            done = [await ended(job) for job in jobs]
        assert [job.progress for job in done] == [b'{"percent":100}'] * 3

    async def test_refuses_progress_that_is_no_json(self, app: Towpath) -> None:
        @app.handler("shop", max_attempts=1)
        async def sell(ctx: Context) -> None:
            ctx.progress(object())

        async with working(app):
            dead = await ended(await sell.submit())
        assert "PayloadInvalid: " in (dead.reason or "")


async def _leased(app: Towpath, count: int) -> bool:
    return (await app.engine.inspect.counts("shop")).leased == count


class TestSeveralHandlersOfAQueue:
    async def test_are_chosen_by_the_jobs_header(self, app: Towpath) -> None:
        @app.handler("mail")
        async def send(to: str) -> str:
            return f"sent to {to}"

        @app.handler("mail", name="again")
        async def resend(to: str) -> str:
            return f"sent to {to} again"

        async with working(app):
            first, second = await send.submit("ada"), await resend.submit("ada")
            assert await first.result(within=SOON) == "sent to ada"
            assert await second.result(within=SOON) == "sent to ada again"
        assert (await app.engine.inspect.job(second.ref)).headers == {"handler": "again"}

    async def test_end_a_job_for_an_unknown_handler_dead_with_a_reason(
        self, app: Towpath, lines: LogLines
    ) -> None:
        @app.handler("mail", name="again")
        async def resend(to: str) -> None: ...

        async with working(app, unhandled_for=ZERO):
            named = await app.engine.submit("mail", b'"x"', headers={"handler": "shred"})
            plain = await app.engine.submit("mail", b'"x"')
            dead = [await app.engine.events.ended(job.job, within=SOON) for job in (named, plain)]
            await (await resend.submit("ada")).result(within=SOON)
        reasons = [str(job.reason) for job in dead]
        assert all(reason.startswith("HandlerNotFound: ") for reason in reasons)
        assert ["shred" in reason for reason in reasons] == [True, False]
        assert all("again" in reason for reason in reasons)
        assert {line["handler"] for line in lines.of("handler.not_found")} == {"shred", ""}

    async def test_with_the_same_name_are_refused(self, app: Towpath) -> None:
        @app.handler("mail")
        async def send(to: str) -> None: ...

        with pytest.raises(HandlerInvalid) as refusal:

            @app.handler("mail")
            async def send_too(to: str) -> None: ...

        assert refusal.value.handler == "send_too"
        assert "`name=`" in refusal.value.rule


def in_a_thread(call: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    return lambda *words, **options: asyncio.to_thread(call, *words, **options)


class TestSubmitting:
    async def test_passes_the_options_of_a_submit(self, app: Towpath) -> None:
        @app.handler("shop")
        async def sell(item: str) -> None: ...

        job = await sell.submit("tea", delay=hours(3), lane="ada", priority=HIGH, id="o-1")
        again = await sell.submit("tea", id="o-1")
        found = await app.engine.inspect.job(job.ref)
        assert (found.state, found.lane, found.priority) == (State.DELAYED, "ada", HIGH)
        assert (job.existed, again.existed) == (False, True)

    async def test_another_payload_under_a_known_id_is_refused(self, app: Towpath) -> None:
        """Otherwise the caller would get the first payload's result for the second."""

        @app.handler("sums")
        async def double(n: int) -> int:
            return 2 * n

        first = await double.submit(10, id="x")
        for submit in (double.submit, in_a_thread(double.blocking.submit)):
            with pytest.raises(JobDiffers) as refusal:
                await submit(20, id="x")
            assert refusal.value.job == first.ref
            again = await submit(20, id="x", on_conflict="keep")
            assert (again.ref, again.existed) == (first.ref, True)

    async def test_many_jobs_under_one_id_accepts_only_the_first_payload(
        self, app: Towpath
    ) -> None:
        @app.handler("sums")
        async def double(n: int) -> int:
            return 2 * n

        for submit in (double.submit_many, in_a_thread(double.blocking.submit_many)):
            with pytest.raises(SubmitsRefused) as refusal:
                await submit([1, 2, 3, 1], id="same")
            assert {at: job.id for at, job in refusal.value.taken.items()} == {0: "same", 3: "same"}
            assert {at: type(error) for at, error in refusal.value.refused.items()} == {
                1: JobDiffers,
                2: JobDiffers,
            }
        kept = await double.submit_many([2, 3], id="same", on_conflict="keep")
        assert [job.existed for job in kept] == [True, True]

    async def test_many_payloads_returns_their_jobs_in_order(self, app: Towpath) -> None:
        @app.handler("sums")
        async def double(n: int) -> int:
            return 2 * n

        async with working(app):
            tickets = await double.submit_many(range(300), priority=HIGH)
            results = [await ticket.result(within=SOON) for ticket in tickets]
        assert results == [2 * n for n in range(300)]

    async def test_works_without_an_event_loop(self, app: Towpath) -> None:
        @app.handler("sums")
        async def double(n: int) -> int:
            return 2 * n

        def script() -> list[int]:
            one = double.blocking.submit(4)
            more = double.blocking.submit_many([5, 6])
            return [job.result(within=SOON) for job in [one, *more]]

        async with working(app):
            assert await asyncio.to_thread(script) == [8, 10, 12]

    async def test_to_a_handler_that_fails_raises_the_reason_instead_of_a_result(
        self, app: Towpath
    ) -> None:
        @app.handler("sums", max_attempts=1)
        async def fail() -> None:
            raise ValueError("no")

        async with working(app):
            with pytest.raises(JobUnfinished, match="ValueError: no"):
                await (await fail.submit()).result(within=SOON)
