"""A run of records through worker processes, during which something breaks."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.faults import record_history
from tests.faults.record_deployment import QUEUE, RecordDeployment, record_deployment
from tests.fixtures import LEDGER_LIMIT
from tests.waiting import eventually_async, eventually_in_loop
from towpath.app.app import Towpath
from towpath.errors import TowpathError
from towpath.ledger.ledger import Ledger

_AT_ONCE = 100
SLOW = 6
"""So many of the records are in a worker's hands whatever happens, until the gate is opened."""
LANES = 80
"""Half of the others are in lanes."""


class RecordScenario:
    """A number of records, and the processes that make them and work on them."""

    def __init__(self, ledger: Ledger, processes: RecordDeployment, records: int) -> None:
        self.ledger, self.processes, self.records = ledger, processes, records
        self.acknowledged: set[str] = set()
        self.refused = 0
        """How often the database refused a record of this process."""

    async def make(self, first: int, last: int) -> None:
        """Makes records; repeats a failed one with the same id until it is acknowledged."""
        turn = asyncio.Semaphore(_AT_ONCE)

        async def one(number: int) -> None:
            headers = {"handler": "slow"} if number < SLOW else {}
            lane = f"lane{number % LANES}" if number >= SLOW and number % 2 else None

            async def made() -> bool:
                try:
                    await self.ledger.jobs.submit(
                        QUEUE, b"null", id=f"r{number}", headers=headers, lane=lane
                    )
                except TowpathError:
                    self.refused += 1
                    return False
                return True

            async with turn:
                await eventually_async(made)
                self.acknowledged.add(f"r{number}")

        await asyncio.gather(*(one(number) for number in range(first, last)))

    async def make_the_rest(self) -> None:
        await self.make(len(self.acknowledged), self.records)

    async def slow_ones_began(self, times: int = 1) -> None:
        """Returns when a worker has begun every slow record, so many times each."""

        def all_began() -> bool:
            began = Counter(entry.id for entry in self.processes.entries("began"))
            return len(began) == SLOW and min(began.values()) >= times

        await eventually_in_loop(all_began)

    def open_gate(self) -> None:
        """Lets all attempts at slow records end."""
        self.processes.open_gate(10**18)

    async def first_attempts_end(self) -> None:
        """Ends the first attempt at each slow record, which was taken for dead, while the second
        one runs.
        """
        await self.slow_ones_began(2)
        first: dict[str, int] = {}
        for entry in self.processes.entries("began"):
            first[entry.id] = min(entry.token, first.get(entry.id, entry.token))
        self.processes.open_gate(max(first.values()))

        def have_ended() -> bool:
            ran = self.processes.tokens()
            return all(first[id] in ran[id] for id in first)

        await eventually_in_loop(have_ended)

    async def some_completed(self, share: float) -> None:
        wanted = int(self.records * share)

        async def enough() -> bool:
            return await record_history.completed(self.ledger) >= wanted

        await eventually_async(enough)

    async def noticed(self, *words: str) -> None:
        """Returns when a worker has logged one of these events."""
        before = len(self.processes.entries(*words))
        await eventually_in_loop(lambda: len(self.processes.entries(*words)) > before)

    async def database_refuses(self) -> None:
        """Returns when the database has refused a write of a worker or of this process.

        Which of them is refused first depends on the free space in pages of the database.
        """
        seen = len(self.processes.entries("record.unwritten")) + self.refused
        await eventually_in_loop(
            lambda: len(self.processes.entries("record.unwritten")) + self.refused > seen
        )

    async def all_ended(self) -> None:
        """I12: returns when every record has ended; the fault is over by now."""

        async def none_left() -> bool:
            return not await record_history.left(self.ledger)

        await eventually_async(none_left)


@asynccontextmanager
async def run_of(
    records: int, redis: str, database: str, folder: Path, *, workers: int = 1, fault: str = ""
) -> AsyncGenerator[RecordScenario]:
    """Runs the body after half of the records are made and some have ended; then checks all of
    them. *fault* is planted in the workers.
    """
    async with Ledger(database, limit=LEDGER_LIMIT) as ledger:
        await ledger.migrate()
        await record_history.watch(ledger)
        with record_deployment(redis, database, folder, workers=workers, fault=fault) as processes:
            async with Towpath(redis, ledger=ledger):
                run = RecordScenario(ledger, processes, records)
                await run.make(0, records // 2)
                await run.some_completed(0.1)
                await run.slow_ones_began()
                yield run
                run.open_gate()
                await run.all_ended()
                await checked(run)
                assert len(run.acknowledged) == records


async def checked(run: RecordScenario) -> None:
    """Checks that nothing acknowledged is missing, each record ended once, and lanes kept their
    order.
    """
    found, steps = await record_history.rows(run.ledger), await record_history.history(run.ledger)
    wrong = [f"{id} is missing" for id in run.acknowledged - found.keys()]
    wrong += record_history.violations(found, steps, run.processes.tokens())
    wrong += record_history.regressions(steps) + record_history.out_of_order(found)
    wrong += [f"{id} is dead: {row.last_error}" for id, row in found.items() if row.state == "dead"]
    assert not wrong, "\n".join(wrong[:20])
