"""Due times of records: what was asked for stays, in the row and in Redis."""

from datetime import UTC, datetime

import pytest

from tests.waiting import HANGS, eventually_async
from towpath.clock import Duration, hours, instant, instant_ms, milliseconds, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import Fail, Lease, job_ref
from towpath.engine.states import State
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.attempts import Ending
from towpath.ledger.records.recorder import LedgerRecorder
from towpath.ledger.records.relay import Relay
from towpath.telemetry.logs import Log

QUEUE = "reviews"


async def claim(engine: Engine, count: int = 1) -> list[Lease]:
    return await engine.claim(
        QUEUE, worker="w", lease=seconds(HANGS), count=count, wait=seconds(HANGS)
    )


async def fail(ledger: Ledger, engine: Engine, lease: Lease) -> None:
    failure = Fail(lease, "no", milliseconds(1))
    await ledger.jobs.end(Ending(lease, failure, cancelled=False))
    await engine.settle([failure])


@pytest.mark.parametrize("far", [hours(1), milliseconds(50)])
async def test_redis_has_the_due_time_of_the_row(
    ledger: Ledger, server: EmbeddedServer, far: Duration
) -> None:
    """It is not later by the time that queuing took."""
    async with Engine(server.url) as engine:
        ledger.jobs.relay = Relay(ledger, engine, log=Log())
        for n in range(5):
            await ledger.jobs.submit(QUEUE, b"", id=f"job-{n}", delay=far)
        for n in range(5):
            record = await ledger.jobs.get(QUEUE, f"job-{n}")
            job = await engine.inspect.job(job_ref(QUEUE, f"job-{n}"))
            assert (job.due_at, job.next_try_at) == (record.due_at, None)


async def test_every_attempt_knows_the_due_time_that_was_asked_for(
    ledger: Ledger, server: EmbeddedServer
) -> None:
    async with Engine(server.url) as engine:
        relay = ledger.jobs.relay = Relay(ledger, engine, log=Log())
        margin = 50
        while True:
            due = instant(instant_ms("due", datetime.now(UTC)) + margin)
            record = (await ledger.jobs.set(QUEUE, b"", id="a", due=due)).record
            if record.created_at < due:
                break
            margin *= 10  # a slow machine: the job was due before it was queued
        recorder = LedgerRecorder(ledger.jobs)
        for _ in range(2):
            [lease] = await claim(engine)
            begun = await recorder.begin(lease)
            assert isinstance(begun, Lease)
            assert begun.due_at == due
            await fail(ledger, engine, lease)
        record = await ledger.jobs.get(QUEUE, "a")
        assert record.due_at == due
        assert record.next_try_at is not None

        server.ask("FLUSHALL")
        await relay.look()
        [again] = await claim(engine)
        assert again.due_at == due, "also after Redis has lost it"


async def test_overdue_jobs_run_in_the_order_of_due_times(
    ledger: Ledger, server: EmbeddedServer
) -> None:
    """With a record and without, when some of them are queued late."""
    async with Engine(server.url) as engine:
        margin = 200
        while not (due := await submitted_in_time(ledger, engine, margin)):
            margin *= 10  # a slow machine
        relay = Relay(ledger, engine, log=Log())

        async def all_are_due() -> bool:
            return datetime.now(UTC) > due

        await eventually_async(all_are_due)
        await relay.look()
        leases = await claim(engine, 6)
    assert [lease.id for lease in leases] == [
        "plain-6", "recorded-3", "plain-2", "recorded-5", "plain-4", "recorded-1",
    ]  # fmt: skip


async def submitted_in_time(ledger: Ledger, engine: Engine, margin: int) -> datetime | None:
    """Jobs with and without a record, and when all are due. None if one was due before it was
    queued.
    """
    base = instant_ms("now", datetime.now(UTC)) + margin
    for id, ms in (("recorded-1", 90), ("recorded-3", 30), ("recorded-5", 60)):
        await ledger.jobs.set(QUEUE, b"", id=id, due=instant(base + ms))
    for id, ms in (("plain-2", 50), ("plain-4", 80), ("plain-6", 20)):
        placed = await engine.set(QUEUE, b"", id=id, due=instant(base + ms))
        if placed.state is not State.DELAYED:
            return None
    return instant(base + 100)
