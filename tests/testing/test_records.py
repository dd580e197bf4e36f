"""An app with a ledger on a bench: the bench has a database of its own."""

from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from tests.waiting import HANGS
from towpath import Towpath, hours
from towpath.ledger.records.record import RecordState
from towpath.testing.bench import running


async def test_records_are_made_and_run_in_a_database_of_the_bench(tmp_path: Path) -> None:
    real = tmp_path / "real.db"
    app = Towpath("redis://localhost:1", ledger=f"sqlite:///{real}")

    @app.handler("invoices", record=True)
    async def send(order: int) -> int:
        return order * 2

    async with running(app) as bench:
        now = await send.submit(21, id="a")
        later = await send.submit(4, id="b", delay=hours(1))
        assert [attempt.job for attempt in await bench.drain()] == [now.ref]
        assert (await app.ledger.jobs.get("invoices", "a")).result == b"42"
        bench.advance(hours=1)
        await bench.drain()
        assert (await app.ledger.jobs.get("invoices", later.id)).state is RecordState.COMPLETED
    assert not real.exists()


async def test_a_test_can_submit_in_a_transaction_on_the_database_of_the_bench(
    tmp_path: Path,
) -> None:
    app = Towpath("redis://production", ledger=f"sqlite:///{tmp_path}/production.db")

    @app.handler("invoices", record=True)
    async def send(number: int) -> int:
        return number

    async with running(app) as bench:
        database = create_async_engine(str(bench.database).replace("sqlite:", "sqlite+aiosqlite:"))
        async with AsyncSession(database) as session:
            job = await send.submit(7, in_transaction=session)
            await session.commit()
        await database.dispose()
        assert [attempt.job for attempt in await bench.drain()] == [job.ref]
        assert await job.result(within=HANGS) == 7


async def test_a_bench_without_records_has_no_database() -> None:
    app = Towpath("redis://production")
    async with running(app) as bench:
        assert bench.database is None
