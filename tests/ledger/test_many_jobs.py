"""Many jobs of a queue are counted, cancelled and purged, with a record and without one."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Protocol

import pytest

from tests.ledger.records import REVIEWS, SHORT
from tests.waiting import eventually_async
from towpath.app.jobs import ENDED, OPEN, PURGED, AllJobs, JobFilter, ManyStep, no_ledger
from towpath.clock import hours, instant, minutes, wall_ms
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import job_ref
from towpath.engine.options import QueueOptions
from towpath.engine.schedule import Cron
from towpath.engine.states import State
from towpath.errors import (
    InvalidOption,
    JobHasRecord,
    JobNotFound,
    QueueNotEmpty,
    QueueNotFound,
    ServerUnreachable,
)
from towpath.ledger.ledger import Ledger
from towpath.telemetry.logs import Silent

OF_ANN = JobFilter(states=OPEN, lane="ann")


class Step(Protocol):
    async def __call__(
        self, queue: str, wanted: JobFilter, *, after: str | None = None, size: int = 1000
    ) -> ManyStep: ...


async def walk(step: Step, wanted: JobFilter, size: int = 2) -> dict[State, int]:
    """Runs every step, each with a few jobs."""
    found: Counter[State] = Counter()
    after: str | None = None
    while True:
        done = await step(REVIEWS, wanted, after=after, size=size)
        found.update(done.jobs)
        after = done.after
        if after is None:
            return dict(found)


@pytest.fixture
async def jobs(engine: Engine, ledger: Ledger) -> AsyncIterator[AllJobs]:
    async def find_ledger() -> Ledger:
        return ledger

    await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
    async with ledger.relayed(engine, log=Silent()):
        yield AllJobs(engine, find_ledger)


class Submit(Protocol):
    async def __call__(self, id: str, **options: Any) -> object: ...


@pytest.fixture(params=["with a record", "without a record"])
def submit(request: pytest.FixtureRequest, engine: Engine, ledger: Ledger) -> Submit:
    async def submit(id: str, **options: Any) -> object:
        if request.param == "with a record":
            return await ledger.jobs.submit(REVIEWS, b"1", id=id, **options)
        return await engine.submit(REVIEWS, b"1", id=id, **options)

    return submit


@pytest.fixture
async def filled(jobs: AllJobs, submit: Submit, engine: Engine) -> AllJobs:
    """Two lanes, delayed jobs, and others: waiting 2, delayed 3, ready 7."""
    for lane in ("ann", "bob"):
        for n in range(2):
            await submit(f"{lane}-{n}", lane=lane)
    for n in range(3):
        await submit(f"later-{n}", delay=hours(1))
    for n in range(5):
        await submit(f"mail-{n}", headers={"handler": "mail" if n < 2 else "print"})

    async def are_queued() -> bool:
        found = await engine.inspect.counts(REVIEWS)
        return (found.waiting, found.delayed, found.ready) == (2, 3, 7)

    await eventually_async(are_queued)
    return jobs


class TestCountingJobs:
    async def test_filters_by_state_handler_lane_and_age(self, filled: AllJobs) -> None:
        now = instant(wall_ms())
        wanted = {
            JobFilter(states=(State.READY,)): 7,
            JobFilter(states=(State.DELAYED, State.WAITING)): 5,
            JobFilter(states=OPEN, handler="mail"): 2,
            OF_ANN: 2,
            JobFilter(states=OPEN, submitted_before=now - minutes(30)): 0,
            JobFilter(states=OPEN, submitted_before=now + minutes(30)): 12,
            JobFilter(states=ENDED): 0,
        }
        found = {fit: await walk(filled.count_matching, fit) for fit in wanted}
        assert {fit: sum(states.values()) for fit, states in found.items()} == wanted
        assert found[OF_ANN] == {State.WAITING: 1, State.READY: 1}

    async def test_needs_the_cursor_of_a_step(self, filled: AllJobs) -> None:
        for after in ("nowhere:1", "records:x", "leased"):
            with pytest.raises(InvalidOption):
                await filled.count_matching(REVIEWS, JobFilter(states=(State.READY,)), after=after)


class TestCancellingJobs:
    async def test_ends_those_that_match_and_no_others(self, filled: AllJobs) -> None:
        mails = JobFilter(states=OPEN, handler="mail")
        assert await walk(filled.cancel_matching, mails) == {State.READY: 2}
        assert await walk(filled.cancel_matching, OF_ANN) == {State.WAITING: 1, State.READY: 1}
        left = await walk(filled.count_matching, JobFilter(states=OPEN))
        assert left == {State.WAITING: 1, State.DELAYED: 3, State.READY: 4}
        assert await walk(filled.count_matching, JobFilter(states=ENDED)) == {State.CANCELLED: 4}

    async def test_without_a_filter_leaves_none_open(self, filled: AllJobs, engine: Engine) -> None:
        """This includes jobs behind the heads of lanes, which would become heads one by one."""
        assert sum((await walk(filled.cancel_matching, JobFilter(states=OPEN))).values()) == 12

        async def none_open() -> bool:
            found = await engine.inspect.counts(REVIEWS)
            return (found.ready, found.delayed, found.waiting, found.leased) == (0, 0, 0, 0)

        await eventually_async(none_open)

    async def test_asks_running_ones_to_stop(self, jobs: AllJobs, engine: Engine) -> None:
        await engine.submit(REVIEWS, b"1", id="runs")
        await engine.claim(REVIEWS, worker="w", lease=minutes(5))
        assert await walk(jobs.cancel_matching, JobFilter(states=OPEN)) == {State.LEASED: 1}
        [job] = (await engine.inspect.list(REVIEWS, State.LEASED)).jobs
        assert job.cancel_requested

    async def test_of_ended_jobs_is_refused(self, jobs: AllJobs) -> None:
        with pytest.raises(InvalidOption):
            await jobs.cancel_matching(REVIEWS, JobFilter(states=(State.DEAD,)))


class TestPurgingAQueue:
    async def test_deletes_everything_but_running_jobs(
        self, filled: AllJobs, engine: Engine
    ) -> None:
        await filled.cancel_matching(REVIEWS, JobFilter(states=(State.DELAYED,)))
        [lease] = await engine.claim(REVIEWS, worker="w", lease=minutes(5))
        await walk(filled.purge, JobFilter(states=PURGED))
        left = await walk(filled.count_matching, JobFilter(states=(*OPEN, *ENDED)))
        assert set(left) <= {State.LEASED, State.READY}  # a running row is ready until it began
        assert lease.id

    async def test_respects_its_filter(self, filled: AllJobs) -> None:
        await walk(filled.cancel_matching, OF_ANN)
        assert await walk(filled.purge, JobFilter(states=ENDED)) == {State.CANCELLED: 2}
        mails = JobFilter(states=PURGED, handler="mail")
        assert await walk(filled.purge, mails) == {State.READY: 2}
        assert sum((await walk(filled.count_matching, JobFilter(states=PURGED))).values()) == 8
        assert await walk(filled.purge, mails) == {}

    async def test_of_running_jobs_is_refused(self, jobs: AllJobs) -> None:
        with pytest.raises(InvalidOption):
            await jobs.purge(REVIEWS, JobFilter(states=(State.LEASED,)))


class TestDeletingAQueueWithRecords:
    async def test_works_once_it_is_purged(self, filled: AllJobs, engine: Engine) -> None:
        with pytest.raises(QueueNotEmpty) as refused:
            await filled.delete_queue(REVIEWS)
        assert refused.value.held["ready"] == 7
        await walk(filled.purge, JobFilter(states=PURGED))
        await filled.delete_queue(REVIEWS)
        assert REVIEWS not in await engine.queues.names()
        with pytest.raises(QueueNotFound):
            await filled.delete_queue(REVIEWS)

    async def test_works_with_records_that_have_other_ids_in_redis(
        self, jobs: AllJobs, ledger: Ledger, engine: Engine
    ) -> None:
        """Jobs that Redis still has under an old id of a record belong to no record."""
        await ledger.jobs.submit(REVIEWS, b"1", id="a", delay=hours(1))
        await ledger.jobs.move(REVIEWS, "a", delay=hours(2))
        await ledger.jobs.cancel(REVIEWS, "a")
        await walk(jobs.purge, JobFilter(states=PURGED))
        await jobs.delete_queue(REVIEWS)
        assert (await engine.inspect.counts(REVIEWS)).delayed == 0

    async def test_is_refused_while_it_has_a_schedule_or_a_running_job(
        self, jobs: AllJobs, engine: Engine
    ) -> None:
        await engine.schedules.set(REVIEWS, "nightly", Cron("0 3 * * *"))
        with pytest.raises(QueueNotEmpty) as refused:
            await jobs.delete_queue(REVIEWS)
        assert refused.value.held["schedules"] == 1
        await engine.schedules.delete(REVIEWS, "nightly")
        await engine.submit(REVIEWS, b"")
        await engine.claim(REVIEWS, worker="w", lease=minutes(5))
        with pytest.raises(QueueNotEmpty) as refused:
            await jobs.delete_queue(REVIEWS)
        assert refused.value.held["leased"] == 1

    async def test_is_refused_while_a_record_is_open_that_redis_does_not_have(
        self, engine: Engine, ledger: Ledger
    ) -> None:
        async def find_ledger() -> Ledger:
            return ledger

        jobs = AllJobs(engine, find_ledger)  # no relay enqueues the record in Redis
        await ledger.jobs.submit(REVIEWS, b"1", id="a")
        with pytest.raises(QueueNotEmpty) as refused:
            await jobs.delete_queue(REVIEWS)
        assert refused.value.held["records"] == 1
        assert await walk(jobs.purge, JobFilter(states=PURGED)) == {State.READY: 1}


@pytest.mark.parametrize("limits", [SHORT], ids=["short"])
async def test_a_purge_that_was_interrupted_is_finished_by_the_next(
    jobs: AllJobs, ledger: Ledger, server: EmbeddedServer
) -> None:
    """Redis ends and forgets everything; the rows exist, and are queued again."""
    for n in range(5):
        await ledger.jobs.submit(REVIEWS, b"1", id=f"r-{n}", delay=hours(1))
    server.stop()
    with pytest.raises(ServerUnreachable):
        await walk(jobs.purge, JobFilter(states=PURGED))
    server.start()

    async def purged() -> bool:
        with suppress(ServerUnreachable, QueueNotFound):  # Redis may not know the queue
            await walk(jobs.purge, JobFilter(states=PURGED))
        return not sum((await ledger.jobs.counts(REVIEWS)).values())

    await eventually_async(purged)


async def test_a_process_without_the_database_changes_no_record(
    jobs: AllJobs, ledger: Ledger, engine: Engine
) -> None:
    await ledger.jobs.submit(REVIEWS, b"1", id="a", delay=hours(1))
    elsewhere = AllJobs(engine, no_ledger)

    async def queued() -> bool:
        return await walk(elsewhere.count_matching, JobFilter(states=OPEN)) == {State.DELAYED: 1}

    await eventually_async(queued)
    for change in (elsewhere.cancel_matching, elsewhere.purge):
        with pytest.raises(JobHasRecord):
            await walk(change, JobFilter(states=(State.DELAYED,)))
    assert await walk(jobs.count_matching, JobFilter(states=OPEN)) == {State.DELAYED: 1}


async def test_an_unknown_queue_is_reported_with_a_similar_one(
    engine: Engine,
) -> None:
    await engine.submit("mails", b"")
    jobs = AllJobs(engine, no_ledger)
    for step in (jobs.count_matching, jobs.cancel_matching, jobs.purge):
        with pytest.raises(QueueNotFound) as refused:
            await step("mial", JobFilter(states=(State.READY,)))
        assert refused.value.near == "mails"
    for change in (jobs.get, jobs.explain, jobs.cancel, jobs.retry, jobs.delete):
        with pytest.raises(JobNotFound) as missing:
            await change(job_ref("mial", "a"))
        assert missing.value.near == "mails"
        with pytest.raises(JobNotFound) as missing:
            await change(job_ref("mails", "a"))
        assert missing.value.near is None
