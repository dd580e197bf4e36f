"""Jobs with a record where Redis and the database do not agree: the row is asked and changed."""

import asyncio
import sqlite3
from contextlib import closing, suppress

import pytest

from tests.amounts import amount
from tests.ledger.records import REVIEWS, SHORT
from tests.waiting import eventually_async
from towpath.app.jobs import AllJobs, no_ledger
from towpath.clock import hours
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.explain import Why
from towpath.engine.model import job_ref
from towpath.engine.states import State
from towpath.errors import JobHasRecord, JobNotFound, ServerUnreachable
from towpath.ledger.ledger import Ledger
from towpath.telemetry.logs import Silent

JOB = job_ref(REVIEWS, "a")


@pytest.fixture
def jobs(engine: Engine, ledger: Ledger) -> AllJobs:
    async def find_ledger() -> Ledger:
        return ledger

    return AllJobs(engine, find_ledger)


class TestARecordThatRedisDoesNotHave:
    async def test_is_read_from_its_row(self, jobs: AllJobs, ledger: Ledger) -> None:
        await ledger.jobs.submit(REVIEWS, b"1", id="a", delay=hours(1))
        found = await jobs.get(JOB)
        assert (found.state, found.payload, found.ref) == (State.DELAYED, b"1", JOB)
        why, position = await jobs.explain(JOB)
        assert (why.why, position) == (Why.NOT_QUEUED, None)

    async def test_is_found_by_its_id_in_any_queue(self, jobs: AllJobs, ledger: Ledger) -> None:
        await ledger.jobs.submit(REVIEWS, b"1", id="a")
        assert [job.ref for job in await jobs.find("a", ["mails", REVIEWS])] == [JOB]
        assert await jobs.find("b", ["mails", REVIEWS]) == []

    async def test_is_changed_in_its_row(self, jobs: AllJobs, ledger: Ledger) -> None:
        await ledger.jobs.submit(REVIEWS, b"1", id="a")
        assert await jobs.move(JOB, delay=hours(1)) is State.DELAYED
        assert await jobs.cancel(JOB) is State.CANCELLED
        assert await jobs.retry(JOB) is State.READY
        assert await jobs.cancel(JOB) is State.CANCELLED
        await jobs.delete(JOB)
        assert await jobs.state(JOB) is State.GONE
        with pytest.raises(JobNotFound):
            await jobs.get(JOB)

    async def test_is_replaced_in_its_row(
        self, jobs: AllJobs, ledger: Ledger, engine: Engine
    ) -> None:
        """Redis alone would make a second job beside the record."""
        await ledger.jobs.submit(REVIEWS, b"1", id="a")
        placed = await jobs.set(REVIEWS, b"2", id="a")
        assert (placed.state, placed.replaced) == (State.READY, True)
        assert (await ledger.jobs.get(REVIEWS, "a")).payload == b"2"
        assert await engine.inspect.state(JOB) is State.GONE


async def test_a_process_without_the_database_is_refused(
    jobs: AllJobs, ledger: Ledger, engine: Engine
) -> None:
    async with ledger.relayed(engine, log=Silent()):
        await ledger.jobs.submit(REVIEWS, b"1", id="a", delay=hours(1))
        elsewhere = AllJobs(engine, no_ledger)

        async def queued() -> bool:
            return await elsewhere.state(JOB) is State.DELAYED

        await eventually_async(queued)
        with pytest.raises(JobHasRecord):
            await elsewhere.cancel(JOB)
        assert (await elsewhere.get(JOB)).record == "a"
        assert await jobs.state(JOB) is State.DELAYED


async def test_a_database_without_our_tables_has_no_records(engine: Engine, file_url: str) -> None:
    """DATABASE_URL is often that of the user's own app: a missing job is reported as missing."""
    with closing(sqlite3.connect(file_url.removeprefix("sqlite:///"))) as own:
        own.execute("CREATE TABLE orders (number)")
    async with Ledger(file_url) as empty:

        async def find_ledger() -> Ledger:
            return empty

        jobs = AllJobs(engine, find_ledger)
        assert await jobs.state(JOB) is State.GONE
        assert await jobs.find("a", [REVIEWS]) == []
        with pytest.raises(JobNotFound):
            await jobs.cancel(JOB)


@pytest.mark.parametrize("limits", [SHORT], ids=["short"])
async def test_a_row_answers_and_is_changed_while_redis_is_away(
    jobs: AllJobs, ledger: Ledger, server: EmbeddedServer
) -> None:
    await ledger.jobs.submit(REVIEWS, b"1", id="a", delay=hours(1))
    server.stop()
    assert (await jobs.get(JOB)).state is State.DELAYED
    assert await jobs.cancel(JOB) is State.CANCELLED
    with pytest.raises(ServerUnreachable):
        await jobs.get(job_ref(REVIEWS, "of-redis-alone"))
    server.start()


async def test_a_job_that_changes_state_meanwhile_is_explained_as_of_one_moment(
    jobs: AllJobs, ledger: Ledger, engine: Engine
) -> None:
    """State and rank come from one read: a ready job has a rank, a leased one has none."""
    seen = set[Why]()
    async with ledger.relayed(engine, log=Silent()):
        await ledger.jobs.submit(REVIEWS, b"1", id="a")

        async def change_hands() -> None:
            while True:
                for lease in await engine.claim(REVIEWS, worker="w", lease=hours(1)):
                    await engine.release(lease)

        changing = asyncio.create_task(change_hands())
        try:

            async def seen_both() -> bool:
                for _ in range(amount(100, thoroughly=1000)):
                    seen.add((await jobs.explain(JOB))[0].why)
                return {Why.LEASED, Why.NEXT} <= seen

            await eventually_async(seen_both)
        finally:
            changing.cancel()
            with suppress(asyncio.CancelledError):
                await changing
    # Before the first claim there is no worker, or no job in Redis.
    assert seen - {Why.NOT_QUEUED, Why.NO_WORKER} == {Why.LEASED, Why.NEXT}
