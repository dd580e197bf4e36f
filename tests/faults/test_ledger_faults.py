"""I2, I4, I12 for records: whatever is lost, all that were acknowledged end once, by one attempt.

Worker processes work on records while something breaks. The database notes every change of a
record's state by itself; the journals of the handlers tell which attempts ran.
"""

import asyncio
import random
from pathlib import Path

import pytest

from tests.amounts import amount
from tests.faults import record_history
from tests.faults.record_deployment import record_deployment
from tests.faults.record_scenario import SLOW, RecordScenario, checked, run_of
from tests.fixtures import LEDGER_LIMIT
from tests.waiting import HANGS, eventually_in_loop
from towpath.embedded import EmbeddedServer
from towpath.ledger.ledger import Ledger

MANY, SOME, KILLS = amount(500, thoroughly=2_000), amount(200, thoroughly=400), 3


class TestRecordsOfARedis:
    async def test_that_forgets_everything_end_once(
        self, server: EmbeddedServer, url: str, tmp_path: Path
    ) -> None:
        async with run_of(MANY, server.url, url, tmp_path, workers=2) as run:
            server.ask("FLUSHALL")
            await run.make_the_rest()
            await run.first_attempts_end()

    async def test_that_forgets_are_doubled_by_a_worker_that_ignores_fencing(
        self, server: EmbeddedServer, tmp_path: Path
    ) -> None:
        """Shows that the check can fail: the outcome of an attempt counts that was taken for
        dead.
        """
        file, fault = f"sqlite:///{tmp_path}/ledger.db", "end ignores the fence"

        async def forgetting() -> None:
            async with run_of(SOME, server.url, file, tmp_path, fault=fault) as run:
                server.ask("FLUSHALL")
                await run.first_attempts_end()
                await run.make_the_rest()

        with pytest.raises(AssertionError, match="was completed by"):
            await forgetting()

    async def test_that_dies_and_comes_back_empty_end_once(self, url: str, tmp_path: Path) -> None:
        with EmbeddedServer() as server:
            async with run_of(MANY, server.url, url, tmp_path) as run:
                await killed(server, run)
                await run.first_attempts_end()

    async def test_that_dies_and_comes_back_with_its_data_end_once(
        self, url: str, tmp_path: Path
    ) -> None:
        with EmbeddedServer(data=tmp_path / "data") as server:
            async with run_of(MANY, server.url, url, tmp_path) as run:
                await killed(server, run)


async def killed(server: EmbeddedServer, run: RecordScenario) -> None:
    """Kills Redis. Records are made while it is away, and each is acknowledged in time."""
    server.kill()
    async with asyncio.timeout(HANGS):
        await run.make_the_rest()
    server.start()


async def test_records_end_once_when_workers_are_killed_at_random(
    server: EmbeddedServer, url: str, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    async with run_of(MANY, server.url, url, tmp_path, workers=2) as run:
        await run.make_the_rest()
        for number in range(KILLS):
            await run.some_completed(0.8 * (number + chance.random()) / KILLS)
            run.processes.kill_one(chance)


async def test_records_end_once_when_the_process_that_submits_them_is_killed(
    server: EmbeddedServer, url: str, tmp_path: Path, seed: int
) -> None:
    """Every record that it acknowledged exists; other records that were made end too."""
    chance = random.Random(seed)
    async with Ledger(url, limit=LEDGER_LIMIT) as ledger:
        await ledger.migrate()
        await record_history.watch(ledger)
        with record_deployment(server.url, url, tmp_path, workers=1) as processes:
            run = RecordScenario(ledger, processes, MANY)
            maker = processes.start_maker(0, 100_000)
            share = chance.randrange(100, MANY)
            await eventually_in_loop(lambda: len(processes.entries("made")) >= share)
            maker.kill()
            await run.all_ended()
            run.acknowledged |= {entry.id for entry in processes.entries("made")}
            await checked(run)


async def test_records_lost_by_redis_run_after_their_submitter_has_gone(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """A worker that never made a record itself notices that the records of its queue are lost."""
    database = f"sqlite:///{tmp_path}/ledger.db"
    async with Ledger(database, limit=LEDGER_LIMIT) as ledger:
        await ledger.migrate()
        await record_history.watch(ledger)
        with record_deployment(server.url, database, tmp_path, workers=1) as processes:
            run = RecordScenario(ledger, processes, SLOW)
            await run.noticed("worker.started")
            maker = processes.start_maker(0, SLOW, handler="slow")
            await run.slow_ones_began()
            await asyncio.to_thread(maker.wait)
            server.ask("FLUSHALL")
            await run.first_attempts_end()
            run.open_gate()
            await run.all_ended()
            await checked(run)
