"""I2, I4, I12 for records after a restore: an older database beside a newer Redis, and the reverse.

One side no longer knows what happened since the backup; the other side knows it, and what neither
knows is done again. No record in the database stays open.
"""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection

from tests.amounts import amount
from tests.faults import record_history
from tests.faults.record_deployment import QUEUE
from tests.faults.record_scenario import RecordScenario, run_of
from tests.waiting import eventually_async
from towpath.clock import hours, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import Bury, Complete, Lease, Release
from towpath.engine.options import QueueOptions
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.record import Record, RecordState
from towpath.ledger.records.recorder import LedgerRecorder
from towpath.ledger.records.relay import RECONCILE_EVERY, Relay
from towpath.telemetry.logs import Log

MANY = amount(500, thoroughly=2_000)
TABLES = ("towpath_jobs", "audit")


async def test_records_end_once_after_an_older_database_is_restored(
    server: EmbeddedServer, url: str, tmp_path: Path
) -> None:
    async with run_of(MANY, server.url, url, tmp_path, workers=2) as run:
        await run.make_the_rest()
        await run.ledger.write(_back_up)
        await run.some_completed(0.9)
        await run.ledger.write(_restore)
        assert await record_history.left(run.ledger) > MANY * 0.1
        run.open_gate()
        # Asked for here; by itself it would happen within a minute.
        async with Engine(server.url) as engine:
            found = await Relay(run.ledger, engine, log=Log()).reconcile()
        assert len(found) == 1
        await _ended_but_for_what_ran(run)


def _alone(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"LOCK TABLE {', '.join(TABLES)} IN EXCLUSIVE MODE"))


def _back_up(connection: Connection) -> None:
    _alone(connection)
    for table in TABLES:
        connection.execute(text(f"CREATE TABLE old_{table} AS SELECT * FROM {table}"))  # noqa: S608 -- ours


def _restore(connection: Connection) -> None:
    _alone(connection)
    for table in TABLES:
        connection.execute(text(f"DELETE FROM {table}"))  # noqa: S608 -- ours
        over = "OVERRIDING SYSTEM VALUE" if connection.dialect.name == "postgresql" else ""
        connection.execute(text(f"INSERT INTO {table} {over} SELECT * FROM old_{table}"))  # noqa: S608 -- ours


async def _ended_but_for_what_ran(run: RecordScenario) -> None:
    """Waits until all records have ended, including those that a worker held, whose token the old
    row never saw.
    """

    async def none_left() -> bool:
        return not await record_history.left(run.ledger)

    await eventually_async(none_left)


async def test_records_end_once_after_an_older_redis_is_restored(url: str, tmp_path: Path) -> None:
    data, old = tmp_path / "data", tmp_path / "old"
    with EmbeddedServer(data=data) as server:
        async with run_of(MANY, server.url, url, tmp_path) as run:
            server.kill()
            shutil.copytree(data, old, ignore=shutil.ignore_patterns("*.sock"))
            server.start()
            await run.make_the_rest()
            await run.some_completed(0.9)
            server.kill()
            shutil.rmtree(data)
            shutil.copytree(old, data)
            server.start()


def test_a_restore_is_noticed_within_a_minute() -> None:
    """If the process that is to check dies, another one checks the next time."""
    assert 2 * RECONCILE_EVERY.total_seconds() <= 60


async def test_an_id_whose_row_was_lost_runs_when_it_is_submitted_again(
    server: EmbeddedServer, url: str
) -> None:
    """A worker had the job and found no row for it: the job is dead, and has never run."""
    async with Ledger(url) as ledger, Engine(server.url) as engine:
        await ledger.migrate()
        recorder = LedgerRecorder(ledger.jobs)
        ledger.jobs.relay = Relay(ledger, engine, log=Log())
        await ledger.jobs.submit(QUEUE, b"1", id="a")
        await ledger.write(lambda connection: connection.execute(text("DELETE FROM towpath_jobs")))
        [lease] = await engine.claim(QUEUE, worker="w", lease=seconds(30))
        missing = await recorder.begin(lease)
        assert isinstance(missing, Bury)
        await engine.settle([missing])
        assert not (await ledger.jobs.submit(QUEUE, b"1", id="a")).existed
        [lease] = await engine.claim(QUEUE, worker="w", lease=seconds(30))
        assert isinstance(await recorder.begin(lease), Lease)
        assert (await engine.inspect.counts(QUEUE)).dead == 0


class TestARestoredRow:
    """Redis has ended its job, which the older row does not know."""

    @pytest.fixture
    async def engine(self, server: EmbeddedServer) -> AsyncIterator[Engine]:
        async with Engine(server.url) as engine:
            await engine.queues.configure(QUEUE, QueueOptions(keep=hours(1)))
            yield engine

    @pytest.fixture
    async def ledger(self, url: str) -> AsyncIterator[Ledger]:
        async with Ledger(url) as ledger:
            await ledger.migrate()
            yield ledger

    async def claimed(self, engine: Engine, id: str) -> Lease:
        """The leased job of a record."""
        await engine.submit(QUEUE, b"1", id=id, lane="l")
        [lease] = await engine.claim(QUEUE, worker="w", lease=seconds(30))
        return lease

    async def told(self, ledger: Ledger, engine: Engine, lease: Lease) -> None:
        """A worker asks for the row's decision, and tells Redis."""
        settlement = await LedgerRecorder(ledger.jobs).begin(lease)
        assert settlement is not None
        assert not isinstance(settlement, Lease)
        await engine.settle([settlement])

    async def restored(self, ledger: Ledger, engine: Engine, id: str) -> Record:
        """The row as it was before, after Redis was asked about it."""
        old = "UPDATE towpath_jobs SET job = :id, state = 'pending', fence = 0, attempts = 0,"
        old += " result = NULL, relay_at = 0 WHERE id = :id"
        await ledger.write(lambda connection: connection.execute(text(old), {"id": id}))
        await Relay(ledger, engine, log=Log()).reconcile()
        return await ledger.jobs.get(QUEUE, id)

    async def test_whose_first_job_came_before_its_turn_has_not_run(
        self, ledger: Ledger, engine: Engine
    ) -> None:
        """Its job was queued again under another id: the end of the first job says nothing."""
        for id in "ab":
            await ledger.jobs.submit(QUEUE, b"1", id=id, lane="l")
        await self.told(ledger, engine, await self.claimed(engine, "b"))
        assert (await ledger.jobs.get(QUEUE, "b")).job != "b"
        assert (await self.restored(ledger, engine, "b")).state is RecordState.PENDING
        ran: list[str] = []
        recorder = LedgerRecorder(ledger.jobs)
        while leases := await engine.claim(QUEUE, worker="w", lease=seconds(30)):
            settlement = await recorder.begin(leases[0])
            if isinstance(settlement, Lease):
                ran.append(settlement.payload.decode())
                settlement = Complete(leases[0], b"1")
                await recorder.end(leases[0], settlement, cancelled=False)
            assert settlement is not None
            await engine.settle([settlement])
            await Relay(ledger, engine, log=Log()).reconcile()
        assert ran == ["1", "1"]

    async def test_that_was_cancelled_is_not_shown_as_completed(
        self, ledger: Ledger, engine: Engine
    ) -> None:
        await ledger.jobs.submit(QUEUE, b"1", id="a")
        lease = await self.claimed(engine, "a")
        await ledger.jobs.cancel(QUEUE, "a")
        await self.told(ledger, engine, lease)
        assert (await self.restored(ledger, engine, "a")).state is RecordState.CANCELLED

    async def test_that_was_completed_has_its_result(self, ledger: Ledger, engine: Engine) -> None:
        """This holds even if the worker that ran it could not tell Redis, and another one did."""
        await ledger.jobs.submit(QUEUE, b"1", id="a")
        first = await self.claimed(engine, "a")
        recorder = LedgerRecorder(ledger.jobs)
        assert isinstance(await recorder.begin(first), Lease)
        await recorder.end(first, Complete(first, b"7"), cancelled=False)
        await engine.settle([Release(first)])
        [again] = await engine.claim(QUEUE, worker="other", lease=seconds(30))
        await self.told(ledger, engine, again)
        record = await self.restored(ledger, engine, "a")
        assert (record.state, record.result) == (RecordState.COMPLETED, b"7")
