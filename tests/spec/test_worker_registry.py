"""Live workers report to Redis: they are listed while they do, and removed when they are silent or
deregister.
"""

from datetime import datetime
from typing import Any

import msgspec
import pytest

from tests.spec.deployment import Deployment
from towpath.clock import Duration, ManualClock, instant, milliseconds, seconds
from towpath.engine import worker_registry
from towpath.engine.engine import Engine
from towpath.engine.model import job_ref
from towpath.engine.worker_registry import (
    HANDLERS_SHOWN,
    JOBS_SHOWN,
    QUEUES_SHOWN,
    SILENT_AFTER,
    BlockedLoop,
    HandlerReport,
    RunningJob,
    WorkerReport,
    find_records_elsewhere,
)

REPORT = WorkerReport(
    host="build-3", pid=7, queues=["mails"], serving=1, slots=10, running=0, jobs=[]
)


async def names(engine: Engine) -> list[str]:
    return [worker.name for worker in await engine.workers.list()]


class TestALiveWorker:
    async def test_is_listed_with_what_it_reports(self, engine: Engine, clock: ManualClock) -> None:
        runs = RunningJob(job_ref("mails", "m-1"), 1_767_225_600_000)
        blocked = BlockedLoop(3.5, "send", runs.job)
        report = msgspec.structs.replace(REPORT, running=1, jobs=[runs], blocked=blocked)
        assert await engine.workers.report("anna", report)
        [found] = await engine.workers.list()
        assert (found.name, found.since, found.report) == ("anna", clock.now, report)
        assert str(found.report.jobs[0].job) == "mails/m-1"

    async def test_is_removed_when_it_deregisters(
        self, engine: Engine, other_engine: Engine
    ) -> None:
        for name in ("berta", "anna"):
            await engine.workers.report(name, REPORT)
        assert await names(other_engine) == ["anna", "berta"]
        await engine.workers.remove("anna")
        assert await names(other_engine) == ["berta"]

    async def test_is_removed_when_it_is_silent(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        await engine.workers.report("anna", REPORT)
        clock.advance(SILENT_AFTER - milliseconds(1))
        assert await names(engine) == ["anna"]
        clock.advance(milliseconds(1))
        assert await names(engine) == []
        await engine.workers.report("berta", REPORT)
        assert deployment.ask("HKEYS", "towpath:{workers}:told") == [b"berta"]
        assert deployment.ask("ZCARD", "towpath:{workers}:living") == 1

    async def test_is_listed_since_the_start_of_its_process(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """This holds after a silence too, and when another process takes over its name."""
        began = clock.now

        async def since(age: Duration) -> datetime:
            await engine.workers.report("anna", REPORT, age=age)
            [found] = await engine.workers.list()
            return found.since

        clock.advance(seconds(10))
        assert await since(seconds(10)) == began
        clock.advance(seconds(10))
        assert await since(seconds(20)) == began
        clock.advance(SILENT_AFTER)
        assert await since(seconds(20) + SILENT_AFTER) == began
        assert await since(seconds(1)) == clock.now - seconds(1)

    async def test_of_an_earlier_release_is_listed(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await engine.workers.report("anna", REPORT)
        older = b'7 {"host":"a","pid":7,"queues":[],"serving":0,"slots":1,"running":0,"jobs":[]}'
        deployment.ask("HSET", "towpath:{workers}:told", "anna", older)
        [found] = await engine.workers.list()
        assert (found.since, found.report.blocked) == (instant(7), None)

    async def test_truncates_a_report_that_is_too_long(self, engine: Engine) -> None:
        queues = [f"q-{n:03}" for n in range(500)]
        jobs = [RunningJob(job_ref("mails", f"m-{n}"), 1000 - n) for n in range(300)]
        many = msgspec.structs.replace(REPORT, queues=queues, serving=500, running=300, jobs=jobs)
        await engine.workers.report("anna", many)
        [found] = await engine.workers.list()
        assert list(found.report.queues) == queues[:QUEUES_SHOWN]
        assert [job.job.id for job in found.report.jobs] == [
            f"m-{299 - n}" for n in range(JOBS_SHOWN)
        ]
        assert (found.report.serving, found.report.running) == (500, 300)

    async def test_is_not_listed_beyond_the_limit_of_workers(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker_registry, "WORKERS_MOST", 2)
        assert [await engine.workers.report(name, REPORT) for name in "aabc"] == [
            True,
            True,
            True,
            False,
        ]
        assert await names(engine) == ["a", "b"]

    async def test_of_a_newer_release_is_left_out(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await engine.workers.report("anna", REPORT)
        await engine.workers.report("newer", REPORT)
        deployment.ask("HSET", "towpath:{workers}:told", "newer", "1 {}")
        assert await names(engine) == ["anna"]


async def test_records_in_another_database_are_found_by_queue(engine: Engine) -> None:
    many = [f"q-{n:03}" for n in range(QUEUES_SHOWN + 10)]
    told = {
        "anna": msgspec.structs.replace(REPORT, ledger="a", recorded=["mails", "prints"]),
        "berta": msgspec.structs.replace(REPORT, ledger="b", recorded=["mails"]),
        "carla": msgspec.structs.replace(REPORT, ledger=None, recorded=["mails"]),
        "dora": msgspec.structs.replace(REPORT, ledger="b"),
        "emma": msgspec.structs.replace(REPORT, ledger="c", recorded=many),
    }
    for name, report in told.items():
        await engine.workers.report(name, report)
    listed = await engine.workers.list()
    found = find_records_elsewhere(listed, "c")
    assert found == {"mails": ["anna", "berta"], "prints": ["anna"]}
    assert find_records_elsewhere(listed[:1], "a") == {}
    assert len(find_records_elsewhere(listed[4:], "a")) == QUEUES_SHOWN


def handling(*handlers: HandlerReport, **more: Any) -> WorkerReport:
    about: dict[str, Any] = {"handlers": handlers, "handling": len(handlers)} | more
    return msgspec.structs.replace(REPORT, **about)


class TestTheHandlersOfAWorker:
    async def test_are_listed_with_its_release(self, engine: Engine) -> None:
        report = handling(HandlerReport("mails", None), HandlerReport("mails", "a", "1f"))
        await engine.workers.report("anna", msgspec.structs.replace(report, release="1.2"))
        [found] = await engine.workers.list()
        assert list(found.report.handlers or ()) == list(report.handlers or ())
        assert (found.report.release, found.report.handling) == ("1.2", 2)

    async def test_are_limited_in_number_and_counted(self, engine: Engine) -> None:
        many = [HandlerReport("mails", f"h{n:04}") for n in range(HANDLERS_SHOWN + 1)]
        await engine.workers.report("anna", handling(*many))
        [found] = await engine.workers.list()
        assert list(found.report.handlers or ()) == many[:HANDLERS_SHOWN]
        assert found.report.may_handle("mails", many[-1].name)
        assert found.report.may_handle("other", None)

    def test_are_found_by_queue_and_name(self) -> None:
        report = handling(HandlerReport("mails", None, "1f"), HandlerReport("mails", "a"))
        assert report.may_handle("mails", None)
        assert report.may_handle("mails", "a")
        assert not report.may_handle("mails", "b")
        assert not report.may_handle("other", None)

    def test_are_found_by_another_digest_of_the_payload(self) -> None:
        report = handling(HandlerReport("mails", None, "1f"))
        assert report.may_handle("mails", None, but="2a")
        assert not report.may_handle("mails", None, but="1f")

    def test_of_an_earlier_release_may_be_any_handler_of_its_queues(self) -> None:
        assert REPORT.may_handle("mails", "a")
        assert REPORT.may_handle("mails", "a", but="1f")
        assert not REPORT.may_handle("other", "a")
        assert msgspec.structs.replace(REPORT, serving=51).may_handle("other", "a")


class TestASurveyOfWorkers:
    async def test_is_complete_if_every_report_can_be_read(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        for name in ("anna", "berta"):
            await engine.workers.report(name, handling())
        survey = await engine.workers.survey()
        assert ([worker.name for worker in survey.workers], survey.is_complete) == (
            ["anna", "berta"],
            True,
        )
        assert not survey.may_handle("mails", None, besides="anna")
        deployment.ask("HSET", "towpath:{workers}:told", "berta", "7 7 {")
        survey = await engine.workers.survey()
        assert ([worker.name for worker in survey.workers], survey.is_complete) == (["anna"], False)
        assert survey.may_handle("mails", None, besides="anna")

    async def test_does_not_count_the_worker_that_asks(self, engine: Engine) -> None:
        await engine.workers.report("anna", handling(HandlerReport("mails", None)))
        survey = await engine.workers.survey()
        assert survey.may_handle("mails", None, besides="berta")
        assert not survey.may_handle("mails", None, besides="anna")
