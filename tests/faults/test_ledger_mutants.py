"""Records under random walks and in two critical moments, and the planted faults that must be
found.
"""

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from tests.faults import record_history
from tests.faults.planting import FAULTS, MARKED_EARLY, NUDGED_EARLY, PlantedFault, planted
from tests.faults.record_random_walk import QUEUE, GuaranteeViolated, RecordWalk
from tests.postgres import PostgresServer
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.errors import ServerError
from towpath.ledger.errors import LedgerBusy
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.relay import Relay
from towpath.telemetry.logs import Log

STEPS, WALKS = 300, 10


@pytest.fixture
async def file_ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    async with Ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        await ledger.migrate()
        await record_history.watch(ledger)
        yield ledger


async def test_any_order_of_steps_keeps_every_guarantee(
    server: EmbeddedServer, url: str, seed: int
) -> None:
    async with Ledger(url) as ledger:
        await ledger.migrate()
        await record_history.watch(ledger)
        await RecordWalk(ledger, server, seed).run(STEPS)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_a_planted_fault_is_found(
    server: EmbeddedServer, file_ledger: Ledger, fault: PlantedFault, seed: int
) -> None:
    async def walk() -> None:
        for number in range(WALKS):
            server.ask("FLUSHALL")
            await record_history.forget(file_ledger)
            await RecordWalk(file_ledger, server, seed + number).run(STEPS)

    # LedgerBusy: what is written is compared with the row, and that never fits.
    with planted(fault), pytest.raises((GuaranteeViolated, LedgerBusy)) as found:
        await walk()
    print(f"{fault}: {found.value}")  # noqa: T201 -- shown with -rP


async def refused_once(ledger: Ledger, server: EmbeddedServer) -> None:
    """Redis refuses what the relay enqueues; the next poll must enqueue it again."""
    async with Engine(server.url) as engine:
        relay = Relay(ledger, engine, log=Log())
        await ledger.jobs.submit(QUEUE, b"", id="before")
        await relay.look()
        await ledger.jobs.submit(QUEUE, b"", id="missed")
        due = text("UPDATE towpath_jobs SET relay_at = 1 WHERE id = 'missed'")
        await ledger.write(lambda connection: connection.execute(due))
        server.ask("RENAME", f"{{{QUEUE}}}:queue", f"{{{QUEUE}}}:aside")
        server.ask("SET", f"{{{QUEUE}}}:queue", "in the way")
        with suppress(ServerError):
            await relay.look()
        server.ask("RENAME", f"{{{QUEUE}}}:aside", f"{{{QUEUE}}}:queue")
        await relay.look()
        if (ready := (await engine.inspect.counts(QUEUE)).ready) != 2:
            raise GuaranteeViolated(f"{ready} of 2 are queued")


async def test_a_record_that_redis_refused_is_enqueued_again(
    server: EmbeddedServer, file_ledger: Ledger
) -> None:
    await refused_once(file_ledger, server)


async def test_marking_a_record_as_queued_too_early_is_found(
    server: EmbeddedServer, file_ledger: Ledger
) -> None:
    with planted(MARKED_EARLY), pytest.raises(GuaranteeViolated):
        await refused_once(file_ledger, server)


async def undone(url: str, server: EmbeddedServer) -> None:
    """A transaction makes a record and is rolled back; Redis must never get the job."""
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://", 1))
    async with Ledger(url) as ledger, Engine(server.url) as redis:
        await ledger.migrate()
        ledger.jobs.relay = Relay(ledger, redis, log=Log())
        async with AsyncSession(engine) as session:
            await ledger.submit(session, QUEUE, b"")
            seen = (await redis.inspect.counts(QUEUE)).ready
            await session.rollback()
    await engine.dispose()
    if seen:
        raise GuaranteeViolated("a job without a record")


async def test_redis_gets_no_record_whose_row_is_not_committed(
    server: EmbeddedServer, running_postgres: PostgresServer
) -> None:
    await undone(running_postgres.emptied(), server)


async def test_enqueuing_before_the_commit_is_found(
    server: EmbeddedServer, running_postgres: PostgresServer
) -> None:
    with planted(NUDGED_EARLY), pytest.raises(GuaranteeViolated):
        await undone(running_postgres.emptied(), server)
