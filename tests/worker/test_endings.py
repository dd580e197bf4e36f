"""How an attempt ends: verdicts of handlers, their mistakes, and what becomes of the job.

Each case runs in all three executors: in the worker's loop, in a thread, in a process.
"""

import re
import signal
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.waiting import eventually_in_loop
from tests.worker import process_handlers
from tests.worker.in_process_worker import SOON, LogLines, ended, job_once, working
from tests.worker.worker_programs import is_gone
from towpath.app.app import Towpath
from towpath.app.submitting import AppHandler
from towpath.clock import hours, seconds
from towpath.engine.model import JobInfo
from towpath.engine.retry import Fixed, Never
from towpath.engine.states import State
from towpath.worker.context import Discard, Retry, Snooze
from towpath.worker.handler import HandlerOptions, Place

EndingHandler = AppHandler[str, Any, Any]


async def end_as_told(how: str) -> Any:
    return process_handlers.ENDS[how]()


def end_as_told_in_thread(how: str) -> Any:
    return process_handlers.ENDS[how]()


PLACES: dict[Place, Callable[..., Any]] = {
    Place.LOOP: end_as_told,
    Place.THREAD: end_as_told_in_thread,
    Place.PROCESS: process_handlers.end_as_told.function,
}


@pytest.fixture(params=list(Place))
def place(request: pytest.FixtureRequest) -> Place:
    return request.param


def ending_handler(app: Towpath, place: Place, **options: Any) -> EndingHandler:
    """A handler in that executor that ends as its job's payload asks."""
    options = {"processes": int(place is Place.PROCESS), "retry": Never()} | options
    wanted = HandlerOptions(**options)
    return app.add("faces", PLACES[place], wanted)


async def outcomes(app: Towpath, handler: EndingHandler, hows: Iterable[str]) -> dict[str, JobInfo]:
    """The outcomes of such jobs; asserts that the worker completes another job afterwards."""
    async with working(app, concurrency=1):
        jobs = {how: await handler.submit(how) for how in hows}
        assert await (await handler.submit("fine")).result(within=SOON) == "fine"
        return {how: await job_once(job, _was_tried) for how, job in jobs.items()}


async def outcome(app: Towpath, handler: EndingHandler, how: str) -> JobInfo:
    """The outcome of one such job."""
    return (await outcomes(app, handler, [how]))[how]


def _was_tried(job: JobInfo) -> bool:
    return job.claimed_at is not None and job.state is not State.LEASED


class TestAVerdict:
    async def test_retry_with_a_delay_delays_the_job(
        self, app: Towpath, place: Place, lines: LogLines
    ) -> None:
        """The handler's delay takes precedence over any policy; the attempt counts."""
        job = await outcome(app, ending_handler(app, place, retry=Fixed(seconds(1))), "retry")
        assert (job.state, job.attempts, job.reason) == (State.DELAYED, 1, "out of paper")
        assert _delay(job) == pytest.approx(3600, abs=20)
        assert lines.of("job.failed")[0]["error"] == "Retry"

    async def test_retry_without_a_delay_follows_the_policy(
        self, app: Towpath, place: Place
    ) -> None:
        job = await outcome(
            app, ending_handler(app, place, retry=Fixed(hours(2))), "retry by policy"
        )
        assert (job.state, job.attempts) == (State.DELAYED, 1)
        assert _delay(job) == pytest.approx(7200, abs=20)

    async def test_discard_makes_the_job_dead(
        self, app: Towpath, place: Place, lines: LogLines
    ) -> None:
        job = await outcome(app, ending_handler(app, place, retry=Fixed(seconds(1))), "discard")
        assert (job.state, job.attempts, job.reason) == (State.DEAD, 1, "nobody wants it")
        assert lines.of("job.discarded")[0]["reason"] == "nobody wants it"

    async def test_snooze_until_an_instant_costs_no_attempt(
        self, app: Towpath, place: Place, lines: LogLines
    ) -> None:
        job = await outcome(app, ending_handler(app, place), "snooze until")
        assert (job.state, job.attempts) == (State.DELAYED, 0)
        assert job.next_try_at is not None
        assert abs(job.next_try_at - process_handlers.LATER) < seconds(2)
        assert lines.of("job.snoozed")[0]["until"].startswith(("2099-12-31T23:59:59", "2100-01-01"))

    async def test_snooze_for_a_duration_costs_no_attempt(self, app: Towpath, place: Place) -> None:
        job = await outcome(app, ending_handler(app, place), "snooze for")
        assert (job.state, job.attempts) == (State.DELAYED, 0)
        assert _delay(job) == pytest.approx(600, abs=20)


REASONS = {
    "fail": "ValueError: broken",
    "unpicklable": "Unpicklable: can't be sent anywhere",
    "speechless": "UnprintableError: ",
    "surrogate": "ValueError: file \\udcff is gone",
    "exit": "SystemExit: 3",
    "interrupt": "KeyboardInterrupt",
}
"""How the reason of each begins; it ends with where in the code that was."""


class TestAFailedAttempt:
    async def test_has_the_exception_as_its_reason(self, app: Towpath, place: Place) -> None:
        jobs = await outcomes(app, ending_handler(app, place), REASONS)
        assert {(job.state, job.attempts) for job in jobs.values()} == {(State.DEAD, 1)}
        begins = {how: (jobs[how].reason or "")[: len(words)] for how, words in REASONS.items()}
        assert begins == REASONS
        assert all("(process_handlers.py:" in (job.reason or "") for job in jobs.values())

    async def test_has_the_traceback_without_towpaths_own_frames(
        self, app: Towpath, place: Place
    ) -> None:
        jobs = await outcomes(app, ending_handler(app, place), REASONS)
        for job in jobs.values():
            [failure] = job.failures
            assert "process_handlers.py" in failure.traceback
            assert "towpath/worker" not in failure.traceback

    async def test_has_its_enormous_message_truncated(self, app: Towpath, place: Place) -> None:
        job = await outcome(app, ending_handler(app, place), "enormous")
        assert (job.reason or "").startswith("ValueError: xxx")
        assert len(job.reason or "") < 1200

    async def test_may_be_caused_by_an_exception_that_python_itself_raises(
        self, app: Towpath, place: Place
    ) -> None:
        """This includes a CancelledError: nobody cancelled the job, so it is a failed attempt."""
        names = {"stop": "StopIteration", "close": "GeneratorExit", "cancel": "CancelledError"}
        jobs = await outcomes(app, ending_handler(app, place), names)
        assert {job.state for job in jobs.values()} == {State.DEAD}
        assert [how for how, name in names.items() if name not in (jobs[how].reason or "")] == []

    async def test_with_a_result_that_is_too_large_makes_the_job_dead(
        self, app: Towpath, place: Place, lines: LogLines
    ) -> None:
        """Another attempt could not help."""
        job = await outcome(app, ending_handler(app, place, retry=Fixed(seconds(1))), "big")
        assert (job.state, job.attempts) == (State.DEAD, 1)
        assert (job.reason or "").startswith("ResultTooLarge: ")
        assert "2000002" in (job.reason or "")
        assert lines.of("result.invalid")

    async def test_with_a_result_above_a_lowered_limit_makes_the_job_dead(
        self, app: Towpath
    ) -> None:
        """The limit was lowered elsewhere, while the handler ran."""

        @app.handler("shop")
        async def sell() -> str:
            async with app.new_engine() as elsewhere:
                stored = await elsewhere.queues.options("shop")
                await elsewhere.queues.reconfigure("shop", replace(stored, max_payload=100))
            return "x" * 500

        async with working(app):
            dead = await ended(await sell.submit())
        assert (dead.reason or "").startswith("ResultTooLarge: ")
        assert re.findall(r"\d+", dead.reason or "") == ["502", "100"]

    async def test_with_a_result_that_json_cannot_encode_makes_the_job_dead(
        self, app: Towpath, place: Place, lines: LogLines
    ) -> None:
        handler = ending_handler(app, place, retry=Fixed(seconds(1)))
        jobs = await outcomes(app, handler, ["object", "surrogate result"])
        for job in jobs.values():
            assert (job.state, job.attempts) == (State.DEAD, 1)
            assert (job.reason or "").startswith("ResultInvalid: ")
            assert "end_as_told" in (job.reason or "")
        assert len(lines.of("result.invalid")) == 2

    async def test_in_a_process_killed_by_a_signal_names_the_signal(
        self, app: Towpath, lines: LogLines
    ) -> None:
        job = await outcome(app, ending_handler(app, Place.PROCESS), "kill")
        _require_killed(job)
        assert lines.of("process.died")[0]["code"] == -9


class TestAProcessThatAHandlersProcessStarted:
    @pytest.mark.parametrize("how", ["copy", "other"])
    async def test_ends_with_the_handlers_process(
        self, app: Towpath, tmp_path: Path, how: str
    ) -> None:
        """The worker notices the death of the handler's process, though its child holds the pipe
        open.
        """
        options = HandlerOptions(processes=1, retry=Never())
        leave = app.add("orphans", process_handlers.leave_behind.function, options)
        async with working(app):
            dead = await ended(await leave.submit(str(tmp_path / how)))
            beside = (tmp_path / how).read_text()
            await eventually_in_loop(lambda: is_gone(beside))
        _require_killed(dead)


class TestAnExceptionGroup:
    async def test_with_one_verdict_counts_as_that_verdict(
        self, app: Towpath, place: Place
    ) -> None:
        job = await outcome(app, ending_handler(app, place), "grouped discard")
        assert (job.state, job.reason) == (State.DEAD, "nobody wants it")

    async def test_is_named_by_its_first_exception_and_counts_the_others(
        self, app: Towpath, place: Place
    ) -> None:
        job = await outcome(app, ending_handler(app, place), "group")
        reason = job.reason or ""
        first, others = reason.split(")", 1)
        assert first.startswith("ValueError: broken (process_handlers.py:")
        assert re.findall(r"\d+", others) == ["2"]


class TestTheTraceback:
    async def test_is_in_the_log_line_of_a_failed_attempt(
        self, app: Towpath, place: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        await outcome(app, ending_handler(app, place), "fail")
        [line] = [record for record in caplog.records if "job.dead" in record.getMessage()]
        assert line.exc_info is not None
        words = "".join(traceback.format_exception(line.exc_info[1]))
        assert "in _raise" in words
        assert "ValueError: broken" in words

    async def test_is_not_in_the_log_line_of_an_invalid_payload(
        self, app: Towpath, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.handler("shop")
        async def sell(n: int) -> None: ...

        async with working(app):
            await app.engine.submit("shop", b'"secret"')
            await eventually_in_loop(lambda: "payload.invalid" in caplog.text)
        assert not [record for record in caplog.records if record.exc_info]

    async def test_names_its_last_line_outside_the_standard_library_in_the_reason(
        self, app: Towpath
    ) -> None:
        job = await outcome(app, ending_handler(app, Place.LOOP), "fail in json")
        assert (job.reason or "").startswith("JSONDecodeError")
        assert "(process_handlers.py:" in (job.reason or "")


class TestAMalformedVerdict:
    """Verdicts that no correct handler raises must not end a worker either."""

    @pytest.mark.parametrize("reason", [ValueError("no"), None, 7, "", "x" * 1_000_000, "\udcff"])
    async def test_with_a_reason_of_any_type_ends_only_its_own_job(
        self, app: Towpath, reason: Any
    ) -> None:
        @app.handler("shop", max_attempts=1)
        async def sell(verdict: str) -> None:
            raise Discard(reason) if verdict == "discard" else Retry(reason)

        async with working(app):
            jobs = [await sell.submit("discard"), await sell.submit("retry")]
            dead = [await ended(job) for job in jobs]
        assert {job.state for job in dead} == {State.DEAD}
        assert all(job.reason for job in dead)

    async def test_without_its_attributes_is_a_failed_attempt(self, app: Towpath) -> None:
        class Bare(Snooze):
            def __init__(self) -> None: ...

        @app.handler("shop", max_attempts=1)
        async def sell() -> None:
            raise Bare

        async with working(app):
            dead = await ended(await sell.submit())
        assert "AttributeError" in (dead.reason or "")

    async def test_of_a_derived_class_counts_as_its_base_class(
        self, app: Towpath, lines: LogLines
    ) -> None:
        class Unwanted(Discard): ...

        @app.handler("shop")
        async def sell() -> None:
            raise Unwanted("old")

        async with working(app):
            assert (await ended(await sell.submit())).reason == "old"
        assert lines.of("job.discarded")


def _require_killed(job: JobInfo) -> None:
    reason = job.reason or ""
    assert reason.startswith("ProcessDied: ")
    assert re.findall(r"\d+", reason) == [str(signal.SIGKILL.value)]


def _delay(job: JobInfo) -> float:
    assert job.next_try_at is not None
    assert job.claimed_at is not None
    return (job.next_try_at - job.claimed_at).total_seconds()
