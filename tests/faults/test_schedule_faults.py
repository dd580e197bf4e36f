"""Schedules made at run time, under faults: two servers and a worker fire at the same time, while
Redis is killed and frozen and one of them dies. Every instant is fired once, none early, none lost.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from tests.server.serving import RunningServer, serve
from tests.waiting import eventually_async
from towpath.clock import hours, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.engine.model import JobInfo, job_ref
from towpath.engine.schedule import Every, Missed, NamedSchedule
from towpath.engine.states import State
from towpath.errors import MemoryFull, ServerError
from towpath.telemetry.logs import LogLine
from towpath.worker.schedules import DeclaredSchedules, keep_firing

QUEUE, NAME = "reports", "tick"
LIMITS = Limits(answer=seconds(1), give_up=seconds(2))


@asynccontextmanager
async def worker(
    engine: Engine, *queues: str, work: Iterable[NamedSchedule] = ()
) -> AsyncGenerator[None]:
    """Runs the part of a worker of *queues* that watches and fires schedules."""
    task = asyncio.create_task(keep_firing(engine, DeclaredSchedules(work), queues=queues))
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.wait([task])


async def count(engine: Engine) -> int:
    with suppress(ServerError):
        return (await engine.inspect.counts(QUEUE)).ready
    return -1


async def more(engine: Engine, firings: int = 2) -> None:
    """Waits until so many more jobs were submitted."""
    before = max(await count(engine), 0)

    async def so() -> bool:
        return await count(engine) >= before + firings

    await eventually_async(so)


def is_away(server: RunningServer) -> bool:
    return server.client(key="").get("/readyz").status_code == 503


async def jobs_of(engine: Engine) -> list[JobInfo]:
    page = await engine.inspect.list(QUEUE, State.READY, size=1000)
    return [await engine.inspect.job(job_ref(QUEUE, job.id)) for job in page.jobs]


def check(jobs: list[JobInfo]) -> None:
    instants = [datetime.fromisoformat(job.headers["scheduled"]) for job in jobs]
    assert [job.id.partition("@")[0] for job in jobs] == [NAME] * len(jobs)
    assert all(b - a == seconds(1) for a, b in pairwise(sorted(instants)))
    assert all(job.submitted_at >= at for job, at in zip(jobs, instants, strict=True))


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[EmbeddedServer, RunningServer, RunningServer]]:
    """Two servers on a Redis that writes to disk."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with (
        EmbeddedServer(data=tmp_path / "store") as store,
        serve(tmp_path / "one", store.url) as one,
        serve(tmp_path / "two", store.url) as two,
    ):
        yield store, one, two


async def test_every_instant_is_fired_once_by_the_surviving_processes(
    servers: tuple[EmbeddedServer, RunningServer, RunningServer],
) -> None:
    store, one, two = servers
    client, path = two.client(), f"/api/v1/schedules/{QUEUE}/{NAME}"
    async with Engine(store.url, limits=LIMITS) as engine, worker(engine, QUEUE):
        await engine.schedules.set(QUEUE, NAME, Every(seconds(1)), b"1", missed=Missed.ALL)
        await more(engine)
        store.kill()
        await asyncio.to_thread(store.start)
        await more(engine)
        one.kill()
        changed = await asyncio.to_thread(client.patch, path, json={"payload": 2})
        assert changed.status_code == 200, changed.text
        store.pause()
        await eventually_async(lambda: asyncio.to_thread(is_away, two))
        store.unpause()
        await more(engine)
        paused = await engine.schedules.pause(QUEUE, NAME)
        jobs = await jobs_of(engine)
    check(jobs)
    assert max(datetime.fromisoformat(job.headers["scheduled"]) for job in jobs) == paused.last
    payloads = [job.payload for job in sorted(jobs, key=lambda job: job.headers["scheduled"])]
    assert payloads == sorted(payloads)
    assert set(payloads) == {b"1", b"2"}


class TestAWatchOfSchedules:
    """What a worker or a server learns of schedules, on one Redis."""

    async def test_sees_a_schedule_that_is_made_changed_and_removed(
        self, server: EmbeddedServer
    ) -> None:
        async with Engine(server.url) as engine, worker(engine, QUEUE):
            await engine.schedules.set(QUEUE, "far", Every(hours(1)))
            await engine.schedules.set(QUEUE, NAME, Every(seconds(1)))
            await more(engine)
            await engine.schedules.delete(QUEUE, NAME)
            made = await count(engine)
            await engine.schedules.set(QUEUE, "other", Every(seconds(1)))
            await more(engine)
            names = {job.id.partition("@")[0] for job in await jobs_of(engine)}
            assert names == {NAME, "other"}
            ticks = [job for job in await jobs_of(engine) if job.id.startswith(NAME)]
            assert len(ticks) == made

    async def test_ignores_schedules_of_queues_that_it_does_not_serve(
        self, server: EmbeddedServer
    ) -> None:
        async with Engine(server.url) as engine, worker(engine, QUEUE):
            await engine.schedules.set("elsewhere", NAME, Every(seconds(1)), missed=Missed.ALL)
            await engine.schedules.set(QUEUE, NAME, Every(seconds(1)), missed=Missed.ALL)
            await more(engine, 3)
            assert (await engine.inspect.counts("elsewhere")).ready == 0

    async def test_rebuilds_a_lost_index(self, server: EmbeddedServer) -> None:
        index = "towpath:{schedules}:index"
        async with Engine(server.url) as engine:
            await engine.schedules.set(QUEUE, NAME, Every(seconds(1)))
            server.ask("DEL", index)
            async with worker(engine, QUEUE):  # the index was not there before
                await more(engine)
                server.ask("DEL", index)
                await more(engine)
                await eventually_async(lambda: there(server, index))
                await more(engine)

    async def test_fires_an_interrupted_change_and_finishes_it(
        self, server: EmbeddedServer
    ) -> None:
        """The process that made the change died before it marked the change as done."""
        async with Engine(server.url) as engine, worker(engine, QUEUE):
            await engine.schedules.set(QUEUE, NAME, Every(hours(1)))
            index = engine.schedules.index
            await index.run("begin_schedule_change", queue=QUEUE, change="dead", more=0, most=0)
            await eventually_async(lambda: heard(engine))
            plan = b'dead {"every":1000}'
            server.ask("HSET", "{reports}:schedules", NAME, plan)
            server.ask("HSET", "{reports}:meta", "schedules", "dead")
            await more(engine)
            await eventually_async(lambda: finished(engine))

    async def test_does_not_fire_a_declared_schedule_whose_name_is_taken(
        self, server: EmbeddedServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A log line tells code that declares the name later, and fires nothing under it."""
        declared = NamedSchedule(name=NAME, when=Every(seconds(1)), queue=QUEUE, payload=b"code")
        async with Engine(server.url) as engine:
            await engine.schedules.set(QUEUE, NAME, Every(seconds(1)), b"stored")
            async with worker(engine, QUEUE, work=[declared]):
                await more(engine)
            assert {job.payload for job in await jobs_of(engine)} == {b"stored"}
        lines = [record.msg for record in caplog.records if isinstance(record.msg, LogLine)]
        failed = [line for line in lines if line["event"] == "duty.failed"]
        assert {(line["queue"], line["error"]) for line in failed} == {(QUEUE, "NameTaken")}


class TestARedisWithoutMemory:
    async def test_refuses_a_schedule_and_keeps_no_part_of_it(self, server: EmbeddedServer) -> None:
        async with Engine(server.url) as engine:
            await engine.submit(QUEUE, b"1")
            await engine.schedules.set("others", NAME, Every(hours(1)))
            before = _contents(server)
            server.ask("CONFIG", "SET", "maxmemory", 1)
            try:
                with pytest.raises(MemoryFull):
                    await engine.schedules.set(QUEUE, NAME, Every(hours(1)), b"x" * 1000)
                assert _contents(server) == before
                await engine.schedules.delete("others", NAME)
            finally:
                server.ask("CONFIG", "SET", "maxmemory", 0)
            assert (await engine.schedules.list()).schedules == []


def _contents(server: EmbeddedServer) -> dict[str, object]:
    keys = ("{reports}:schedules", "{reports}:loads", "{reports}:recurring")
    found: dict[str, object] = {key: server.ask("HGETALL", key) for key in keys}
    return found | {"index": server.ask("HGET", "towpath:{schedules}:index", QUEUE)}


async def there(server: EmbeddedServer, key: str) -> bool:
    return server.ask("EXISTS", key) == 1


async def heard(engine: Engine) -> bool:
    return (await engine.schedules.changes()).last == "dead"


async def finished(engine: Engine) -> bool:
    entries = (await engine.schedules.changes()).queues or {}
    return bool(entries) and not any(entry.begun for entry in entries.values())
