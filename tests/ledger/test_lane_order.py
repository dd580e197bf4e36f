"""I24: records of one producer run in their lane in the order in which they were committed.

Whatever happens on the way to Redis: the row decides whose turn it is, not the order of queuing.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from tests.ledger.records import SHORT
from tests.waiting import eventually_async
from towpath import Engine, QueueOptions, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.model import Complete, Fail, Lease, Settlement
from towpath.engine.options import LanePolicy
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.record import first_name
from towpath.ledger.records.recorder import LedgerRecorder
from towpath.ledger.records.relay import Relay
from towpath.telemetry.logs import Log

CHAT = "chat"
SOON = seconds(0.02)

End = Callable[[Lease], Settlement]


@pytest.fixture
def relay(ledger: Ledger, engine: Engine) -> Relay:
    """A relay that polls when the test asks it to, and enqueues what is made until then."""
    relay = ledger.jobs.relay = Relay(ledger, engine, log=Log())
    return relay


async def make(ledger: Ledger, id: str, lane: str = "anna") -> None:
    await ledger.jobs.submit(CHAT, b"1", id=id, lane=lane)


class RecordWorker:
    """A worker that claims from Redis and asks the row, as every worker does."""

    def __init__(self, ledger: Ledger, engine: Engine) -> None:
        self._engine, self._recorder = engine, LedgerRecorder(ledger.jobs)
        self.began: list[str] = []

    async def work(self, end: End = Complete) -> None:
        """Runs the ready jobs, each to its end."""
        for lease in await self._engine.claim(CHAT, worker="w", lease=seconds(30), count=20):
            begun = await self._recorder.begin(lease)
            if isinstance(begun, Lease):
                self.began.append(first_name(lease.id))
                begun = await self._recorder.end(begun, end(begun), cancelled=False)
            if begun is not None:
                await self._engine.settle([begun])

    async def work_until(
        self, count: int, look: Callable[[], Awaitable[object]] | None = None
    ) -> list[str]:
        """The records that have begun, in order, once there are so many."""

        async def enough() -> bool:
            if look is not None:
                await look()
            await self.work()
            return len(self.began) >= count

        await eventually_async(enough)
        return self.began


async def test_a_rolled_back_savepoint_does_not_change_the_order(
    ledger: Ledger, engine: Engine, url: str
) -> None:
    """The transaction around it commits: what was made before comes before what is made after."""
    driver = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
    scheme, _, rest = url.partition("://")
    theirs = create_async_engine(f"{driver[scheme]}://{rest}")
    async with ledger.relayed(engine, log=Log()):
        async with AsyncSession(theirs) as session:
            await ledger.submit(session, CHAT, b"1", id="first", lane="anna")
            savepoint = await session.begin_nested()
            await ledger.submit(session, CHAT, b"1", id="undone", lane="anna")
            await savepoint.rollback()
            await session.commit()
        await make(ledger, "second")
        assert await RecordWorker(ledger, engine).work_until(2) == ["first", "second"]
    await theirs.dispose()


async def test_a_record_that_was_not_queued_comes_before_later_ones_that_were(
    ledger: Ledger, engine: Engine, relay: Relay
) -> None:
    """The maker of the first died before it was enqueued in Redis."""
    ledger.jobs.relay = None
    await make(ledger, "first")
    await make(ledger, "other", lane="ben")
    ledger.jobs.relay = relay
    await make(ledger, "second")
    await make(ledger, "third")
    began = await RecordWorker(ledger, engine).work_until(4)
    assert [id for id in began if id != "other"] == ["first", "second", "third"]


async def test_records_that_redis_lost_come_before_later_ones(
    ledger: Ledger, engine: Engine, relay: Relay, server: EmbeddedServer
) -> None:
    """The new one is queued before any process has noticed that Redis is empty."""
    for id in ("first", "second"):
        await make(ledger, id)
    await relay.look()
    server.ask("FLUSHALL")
    await make(ledger, "third")
    worker = RecordWorker(ledger, engine)
    await worker.work()
    assert await worker.work_until(3, relay.look) == ["first", "second", "third"]


async def test_a_running_record_keeps_its_lane_when_redis_forgets_it(
    ledger: Ledger, engine: Engine, relay: Relay, server: EmbeddedServer
) -> None:
    await make(ledger, "first")
    [lease] = await engine.claim(CHAT, worker="w", lease=seconds(30))
    recorder = LedgerRecorder(ledger.jobs)
    running = await recorder.begin(lease)
    assert isinstance(running, Lease)
    server.ask("FLUSHALL")
    await make(ledger, "second")
    worker = RecordWorker(ledger, engine)
    await worker.work()
    assert worker.began == []
    await recorder.end(running, Complete(running), cancelled=False)
    assert await worker.work_until(1, relay.look) == ["second"]


async def test_a_failed_head_keeps_its_lane_when_redis_forgets_it(
    ledger: Ledger, engine: Engine, relay: Relay, server: EmbeddedServer
) -> None:
    """The policy of its lane is `block`: the lane waits while the head retries."""
    await make(ledger, "first")
    worker = RecordWorker(ledger, engine)
    await worker.work(lambda lease: Fail(lease, "no", seconds(0.5)))
    server.ask("FLUSHALL")
    await make(ledger, "second")
    assert await worker.work_until(3, relay.look) == ["first", "first", "second"]


async def test_a_lane_that_skips_goes_on_while_its_head_retries(
    ledger: Ledger, engine: Engine, relay: Relay
) -> None:
    await engine.queues.configure(CHAT, QueueOptions(lanes=LanePolicy.SKIP))
    await make(ledger, "first")
    await make(ledger, "second")
    worker = RecordWorker(ledger, engine)
    await worker.work(lambda lease: Fail(lease, "no", seconds(60)))
    assert await worker.work_until(2, relay.look) == ["first", "second"]


async def test_a_retried_record_has_its_old_place(
    ledger: Ledger, engine: Engine, relay: Relay
) -> None:
    for id in ("first", "second", "third"):
        await make(ledger, id)
    await ledger.jobs.cancel(CHAT, "first")
    await ledger.jobs.retry(CHAT, "first")
    assert await RecordWorker(ledger, engine).work_until(3, relay.look) == [
        "first",
        "second",
        "third",
    ]


async def test_the_order_is_kept_through_an_outage_of_redis(ledger: Ledger) -> None:
    """Records are made before, while Redis is away, while it comes back, and after."""
    with EmbeddedServer() as server:
        async with (
            Engine(server.url, limits=SHORT) as engine,
            ledger.relayed(engine, log=Log(), look_every=SOON),
        ):
            ids = [f"r{n:02}" for n in range(60)]
            for number, id in enumerate(ids):
                if number == 15:
                    server.kill()
                if number == 30:
                    server.start()
                await make(ledger, id)
            assert await RecordWorker(ledger, engine).work_until(60) == ids


async def test_each_of_several_producers_keeps_its_order(
    ledger: Ledger, engine: Engine, url: str, server: EmbeddedServer
) -> None:
    """The records of three processes share lanes; some are not enqueued at once, and once Redis
    loses everything.
    """
    chance = random.Random(7)

    async def produce(name: str) -> None:
        async with (
            Ledger(url) as own,
            own.relayed(engine, log=Log(), look_every=SOON) as way,
        ):
            for number in range(20):
                own.jobs.relay = way if chance.random() < 0.7 else None
                await make(own, f"{name}-{number:02}", lane=f"lane{number % 2}")
                if name == "b" and number == 10:
                    server.ask("FLUSHALL")

    worker = RecordWorker(ledger, engine)
    async with ledger.relayed(engine, log=Log(), look_every=SOON):
        working = asyncio.create_task(worker.work_until(60))
        await asyncio.gather(*map(produce, "abc"))
        # No test waits for the two seconds in which a maker enqueues its own records.
        due = text("UPDATE towpath_jobs SET relay_at = 1 WHERE relay_at IS NOT NULL")
        await ledger.write(lambda connection: connection.execute(due))
        began = await working
    for name in "abc":
        for lane in (0, 1):
            own = [id for id in began if id.startswith(name) and int(id[2:]) % 2 == lane]
            assert own == sorted(own)
