"""Workers that tell that they live: listed while they do, gone when they are silent or say so."""

import msgspec
import pytest

from tests.spec.deployment import Deployment
from towpath.clock import ManualClock, milliseconds, seconds
from towpath.engine import living
from towpath.engine.engine import Engine
from towpath.engine.living import JOBS_SHOWN, QUEUES_SHOWN, SILENT_AFTER, Doing, RunningJob
from towpath.engine.model import job_ref

DOING = Doing(host="build-3", pid=7, queues=["mails"], serving=1, slots=10, running=0, jobs=[])


async def names(engine: Engine) -> list[str]:
    return [worker.name for worker in await engine.workers.list()]


class TestALivingWorker:
    async def test_is_listed_with_what_it_says(self, engine: Engine, clock: ManualClock) -> None:
        runs = RunningJob(job_ref("mails", "m-1"), 1_767_225_600_000)
        doing = msgspec.structs.replace(DOING, running=1, jobs=[runs])
        began = clock.now
        assert await engine.workers.tell("anna", doing)
        clock.advance(seconds(10))
        assert await engine.workers.tell("anna", doing)
        [found] = await engine.workers.list()
        assert (found.name, found.since, found.doing) == ("anna", began, doing)
        assert str(found.doing.jobs[0].job) == "mails/m-1"

    async def test_is_gone_when_it_says_so(self, engine: Engine, other_engine: Engine) -> None:
        for name in ("berta", "anna"):
            await engine.workers.tell(name, DOING)
        assert await names(other_engine) == ["anna", "berta"]
        await engine.workers.gone("anna")
        assert await names(other_engine) == ["berta"]

    async def test_is_gone_when_it_is_silent(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        await engine.workers.tell("anna", DOING)
        clock.advance(SILENT_AFTER - milliseconds(1))
        assert await names(engine) == ["anna"]
        clock.advance(milliseconds(1))
        assert await names(engine) == []
        await engine.workers.tell("berta", DOING)
        assert deployment.ask("HKEYS", "towpath:{workers}:told") == [b"berta"]
        assert deployment.ask("ZCARD", "towpath:{workers}:living") == 1

    async def test_that_comes_back_begins_anew(self, engine: Engine, clock: ManualClock) -> None:
        await engine.workers.tell("anna", DOING)
        clock.advance(SILENT_AFTER)
        await engine.workers.tell("berta", DOING)
        await engine.workers.tell("anna", DOING)
        assert {worker.since for worker in await engine.workers.list()} == {clock.now}
        clock.advance(SILENT_AFTER)
        await engine.workers.tell("anna", DOING)  # before anybody has forgotten it
        assert [worker.since for worker in await engine.workers.list()] == [clock.now]

    async def test_tells_no_more_than_fits(self, engine: Engine) -> None:
        queues = [f"q-{n:03}" for n in range(500)]
        jobs = [RunningJob(job_ref("mails", f"m-{n}"), 1000 - n) for n in range(300)]
        many = msgspec.structs.replace(DOING, queues=queues, serving=500, running=300, jobs=jobs)
        await engine.workers.tell("anna", many)
        [found] = await engine.workers.list()
        assert list(found.doing.queues) == queues[:QUEUES_SHOWN]
        assert [job.job.id for job in found.doing.jobs] == [
            f"m-{299 - n}" for n in range(JOBS_SHOWN)
        ]
        assert (found.doing.serving, found.doing.running) == (500, 300)

    async def test_is_not_listed_where_there_are_too_many(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(living, "WORKERS_MOST", 2)
        assert [await engine.workers.tell(name, DOING) for name in "aabc"] == [
            True,
            True,
            True,
            False,
        ]
        assert await names(engine) == ["a", "b"]

    async def test_of_a_newer_release_is_left_out(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await engine.workers.tell("anna", DOING)
        await engine.workers.tell("newer", DOING)
        deployment.ask("HSET", "towpath:{workers}:told", "newer", "1 {}")
        assert await names(engine) == ["anna"]
