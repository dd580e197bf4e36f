"""I2, I4, I12 for records whose database goes away during the work, and comes back.

The work of a handler that ended while the database was away is not repeated: the worker holds its
job until the row has been updated. Attempts that could not begin in the row wait.
"""

import asyncio
import shutil
import signal
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path

from tests.amounts import amount
from tests.faults.record_scenario import SLOW, RecordScenario, run_of
from tests.faults.small_disk import small_disk
from tests.postgres import PostgresServer
from tests.waiting import HANGS, eventually_async
from tests.worker.in_process_worker import working
from towpath.app.app import Towpath
from towpath.clock import milliseconds, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import JobRef
from towpath.engine.retry import Never
from towpath.engine.states import State
from towpath.ledger.ledger import Ledger

MANY = amount(500, thoroughly=2_000)


async def test_records_survive_a_crash_of_postgres(
    server: EmbeddedServer, own_postgres: PostgresServer, tmp_path: Path
) -> None:
    async with run_of(MANY, server.url, own_postgres.url(), tmp_path) as run:
        making = asyncio.create_task(run.make_the_rest())
        own_postgres.stop(signal.SIGQUIT)
        run.open_gate()
        await run.noticed("record.unwritten")
        await asyncio.to_thread(own_postgres.start)
        await making
    assert repeated(run) == set()


async def test_records_survive_a_postgres_that_stands_still(
    server: EmbeddedServer, own_postgres: PostgresServer, tmp_path: Path
) -> None:
    async with run_of(MANY, server.url, own_postgres.url(), tmp_path) as run:
        making = asyncio.create_task(run.make_the_rest())
        own_postgres.freeze()
        run.open_gate()
        try:
            await run.noticed("record.unwritten")
        finally:
            own_postgres.thaw()
        await making
    assert repeated(run) == set()


async def test_records_survive_a_lock_on_sqlite_by_another_program(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    file = tmp_path / "ledger.db"
    async with run_of(MANY, server.url, f"sqlite:///{file}", tmp_path) as run:
        making = asyncio.create_task(run.make_the_rest())
        with closing(sqlite3.connect(file, timeout=HANGS, isolation_level=None)) as foreign:
            foreign.execute("BEGIN EXCLUSIVE")
            run.open_gate()
            await run.noticed("record.unwritten")
            foreign.rollback()
        await making
    assert repeated(run) == set()


async def test_records_survive_a_full_disk_under_sqlite(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", megabytes=24) as disk:
        database = f"sqlite:///{disk.folder}/ledger.db"
        async with run_of(MANY, server.url, database, tmp_path) as run:
            disk.fill()
            making = asyncio.create_task(run.make_the_rest())
            run.open_gate()
            await run.database_refuses()
            disk.free()
            await making
    assert repeated(run) == set()


async def test_records_survive_a_full_disk_under_postgres(
    server: EmbeddedServer, own_postgres: PostgresServer, tmp_path: Path
) -> None:
    """The disk has its tables. Without room for its log PostgreSQL would stop, which is a crash."""
    own_postgres.directory.chmod(0o755)
    with small_disk(own_postgres.directory / "disk", megabytes=48) as disk:
        tables = disk.folder / "tables"
        tables.mkdir()
        tables.chmod(0o700)
        shutil.chown(tables, own_postgres.user)
        place = f"CREATE TABLESPACE small LOCATION '{tables}'"
        own_postgres.tell("postgres", place, "CREATE DATABASE records TABLESPACE small")
        async with run_of(MANY, server.url, own_postgres.url("records"), tmp_path) as run:
            disk.fill()
            making = asyncio.create_task(run.make_the_rest())
            run.open_gate()
            await run.database_refuses()
            disk.free()
            await making
        own_postgres.stop(signal.SIGQUIT)
    assert repeated(run) == set()


async def test_a_handlers_time_limit_does_not_begin_while_the_database_hangs(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """The database hangs for longer than the handler may take, and there is no second attempt."""
    file = tmp_path / "ledger.db"
    async with Ledger(f"sqlite:///{file}", limit=seconds(20)) as ledger:
        await ledger.migrate()
        app = Towpath(server.url, ledger=ledger)

        @app.handler("brief", record=True, time_limit=milliseconds(300), retry=Never())
        async def brief() -> None: ...

        async with app:
            ticket = await brief.submit()

            async def is_queued() -> bool:
                return await app.engine.inspect.state(ticket.ref) is State.READY

            await eventually_async(is_queued)
            with closing(sqlite3.connect(file, timeout=HANGS, isolation_level=None)) as foreign:
                foreign.execute("BEGIN EXCLUSIVE")
                async with working(app, lease=seconds(1)):
                    await renewed(app.engine, ticket.ref, times=3)
                    foreign.rollback()
                    await ticket.result(within=seconds(HANGS))


async def renewed(engine: Engine, job: JobRef, *, times: int) -> None:
    """Returns when the worker has renewed its lease so many times."""
    ends: set[datetime | None] = set()

    async def often_enough() -> bool:
        found = await engine.inspect.job(job)
        assert found.state in {State.READY, State.LEASED}, found.reason
        ends.add(found.expires_at)
        return len(ends - {None}) > times

    await eventually_async(often_enough)


def repeated(run: RecordScenario) -> set[str]:
    """Slow records that ended while the database was away and were run again."""
    return {f"r{n}" for n in range(SLOW) if len(run.processes.tokens()[f"r{n}"]) > 1}
