"""Records that come again: submitted twice, by two at once, retried, or while Redis has lost
them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Unpack

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection

from tests.ledger.records import REVIEWS
from tests.waiting import HANGS, eventually_async
from towpath import Engine, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.model import Complete, Fail, Lease, job_ref
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.attempts import Ending, Standing
from towpath.ledger.records.record import OPEN, RecordOptions, RecordState
from towpath.ledger.records.recorder import LedgerRecorder
from towpath.ledger.records.relay import Relay
from towpath.telemetry.logs import Log


async def failed_once(ledger: Ledger, engine: Engine, **options: Unpack[RecordOptions]) -> None:
    """A record whose first attempt has failed: the next is in a minute."""
    options = {"id": "a", **options}
    await ledger.jobs.submit(REVIEWS, b"1", **options)
    [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30), wait=seconds(HANGS))
    await ledger.jobs.begin(lease)
    failure = Fail(lease, "no", seconds(60))
    await ledger.jobs.end(Ending(lease, failure, cancelled=False))
    await engine.settle([failure])


async def test_a_record_that_is_queued_again_keeps_its_due_time(
    ledger: Ledger, server: EmbeddedServer
) -> None:
    """Redis has lost it, and it was made long ago."""
    async with Engine(server.url) as engine:
        ledger.jobs.relay = Relay(ledger, engine, log=Log())
        await failed_once(ledger, engine)
        await ledger.write(
            lambda connection: connection.exec_driver_sql("UPDATE towpath_jobs SET created_at = 1")
        )
        server.ask("FLUSHALL")
        assert (await ledger.jobs.submit(REVIEWS, b"1", id="a")).existed
        job = await engine.inspect.job(job_ref(REVIEWS, "a"))
    assert job.next_try_at is not None
    assert 50 < (job.next_try_at - job.submitted_at).total_seconds() < 61


async def test_a_retried_record_leaves_no_old_job_in_redis(
    ledger: Ledger, server: EmbeddedServer
) -> None:
    async with Engine(server.url) as engine:
        ledger.jobs.relay = Relay(ledger, engine, log=Log())
        await failed_once(ledger, engine)
        await ledger.jobs.retry(REVIEWS, "a")

        async def only_the_new_one() -> bool:
            counts = await engine.inspect.counts(REVIEWS)
            return (counts.ready, counts.delayed) == (1, 0)

        await eventually_async(only_the_new_one)


async def test_a_failed_attempt_can_no_longer_complete_its_record(
    ledger: Ledger, server: EmbeddedServer
) -> None:
    """Its job stays in Redis: the row decides when it runs again."""
    async with Engine(server.url) as engine:
        ledger.jobs.relay = Relay(ledger, engine, log=Log())
        await ledger.jobs.submit(REVIEWS, b"1", id="a")
        [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30), wait=seconds(HANGS))
        recorder = LedgerRecorder(ledger.jobs)
        await recorder.begin(lease)
        await recorder.end(lease, Fail(lease, "no", seconds(60)), cancelled=False)
        told = await recorder.end(lease, Complete(lease, b"7"), cancelled=False)
        assert told is not None
        await engine.settle([told])
        assert (await engine.inspect.counts(REVIEWS)).ready == 1
        assert (await ledger.jobs.get(REVIEWS, "a")).state is RecordState.FAILED


async def moved(ledger: Ledger) -> None:
    await ledger.jobs.move(REVIEWS, "a", delay=seconds(1))


async def retried(ledger: Ledger) -> None:
    await ledger.jobs.retry(REVIEWS, "a")


async def revived(ledger: Ledger) -> None:
    """A record that was superseded by one that turns out to be older."""
    await ledger.jobs.submit(REVIEWS, b"", id="b", subject="s", revision="c1")
    assert (await ledger.jobs.get(REVIEWS, "a")).state is RecordState.SUPERSEDED
    await ledger.jobs.submit(REVIEWS, b"", id="c", subject="s", revision="c2", follows="c1")


@pytest.mark.parametrize("again", [moved, retried, revived])
async def test_a_record_with_a_new_id_keeps_the_token_of_its_last_attempt(
    ledger: Ledger, server: EmbeddedServer, again: Callable[[Ledger], Awaitable[None]]
) -> None:
    """Later tokens must be higher, even if Redis lost everything and its clock went back."""
    async with Engine(server.url) as engine:
        ledger.jobs.relay = Relay(ledger, engine, log=Log())
        await failed_once(ledger, engine, subject="s", revision="c3", follows="c2")
        before = await ledger.jobs.get(REVIEWS, "a")
        await again(ledger)
        after = await ledger.jobs.get(REVIEWS, "a")
        assert (after.state in OPEN, after.job != before.job) == (True, True)
        assert after.fence == before.fence > 0


async def test_the_later_of_two_leases_that_begin_together_holds_the_record(
    ledger: Ledger, server: EmbeddedServer
) -> None:
    """The order of the calls does not matter: the first one is alone, the others share a
    transaction.
    """
    async with Engine(server.url) as engine:
        ledger.jobs.relay = Relay(ledger, engine, log=Log())
        for id in ("a", "busy"):
            await ledger.jobs.submit(REVIEWS, b"1", id=id)
        first = await claimed(engine)
        server.ask("FLUSHALL")
        for id in ("a", "busy"):
            await ledger.jobs.submit(REVIEWS, b"1", id=id)
        second = await claimed(engine)
        leases = [first["busy"], second["a"], first["a"]]
        _, later, earlier = await asyncio.gather(*map(ledger.jobs.begin, leases))
    assert later.standing is Standing.BEGUN
    assert earlier.standing is Standing.STALE
    assert (await ledger.jobs.get(REVIEWS, "a")).fence == second["a"].token


async def claimed(engine: Engine) -> dict[str, Lease]:
    leases = await engine.claim(REVIEWS, worker="w", lease=seconds(30), count=9)
    return {lease.id: lease for lease in leases}


async def test_two_transactions_that_deadlock_both_succeed(server_url: str) -> None:
    """PostgreSQL notices it and rolls one of them back, which is repeated."""
    tries: list[int] = []

    def lock(connection: Connection, number: int) -> None:
        connection.execute(text(f"SELECT pg_advisory_xact_lock({number})"))

    def crossing(first: int, second: int) -> Callable[[Connection], int]:
        def change(connection: Connection) -> int:
            tries.append(first)
            lock(connection, first)
            held = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted")
            while len(tries) <= 2 and connection.scalar(held) != 2:
                pass  # until the other one has its first
            lock(connection, second)
            return first

        return change

    async with Ledger(server_url) as ledger:
        await ledger.migrate()
        both = await asyncio.gather(ledger.write(crossing(1, 2)), ledger.write(crossing(2, 1)))
    assert both == [1, 2]
    assert len(tries) == 3
