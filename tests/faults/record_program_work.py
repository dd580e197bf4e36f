"""The work of `record_program.py`, imported after the clock is shifted."""

import asyncio
from pathlib import Path

from tests.faults.planting import plant
from tests.faults.record_program import QUEUE
from tests.journals import Journal, log_to_journal
from tests.waiting import eventually
from towpath.app.app import Towpath
from towpath.clock import milliseconds, seconds, wall_ms
from towpath.engine.retry import Fixed
from towpath.ledger.ledger import Ledger
from towpath.worker.context import Context
from towpath.worker.worker import Worker

LIMIT = seconds(1)
"""How long a worker waits for the database: so it soon knows that it is away."""
NOTED = ("worker.started", "record.unwritten")
_AT_ONCE = 50


class RecordProgram:
    """A process with a connection to Redis and to the database, which keeps a journal."""

    def __init__(self, redis: str, database: str, journal: str) -> None:
        self._redis, self._database = redis, database
        self._journal = Journal(journal)
        self._gate = Path(journal).parents[1] / "gate"
        self._journal.write("clock", (wall_ms(), "-"))

    def work(self, *, fault: str) -> int:
        """Works on records until it is killed, with a planted fault if one is named."""
        if fault:
            plant(fault)
        log_to_journal(self._journal, NOTED)
        return asyncio.run(self._work())

    async def _work(self) -> int:
        async with Ledger(self._database, limit=LIMIT) as ledger:
            app = Towpath(self._redis, ledger=ledger)

            @app.handler(QUEUE, record=True, retry=Fixed(milliseconds(1)), max_attempts=20)
            async def run(ctx: Context) -> int:
                self._journal.write("ran", (ctx.token, ctx.id))
                return ctx.token

            @app.handler(QUEUE, name="slow", record=True, max_attempts=20)
            def run_slowly(ctx: Context) -> int:
                self._journal.write("began", (ctx.token, ctx.id))
                eventually(lambda: ctx.token <= int(self._gate.read_text()))
                self._journal.write("ran", (ctx.token, ctx.id))
                return ctx.token

            return await Worker(app, lease=seconds(1), concurrency=40).run()

    def make(self, numbers: range, *, handler: str) -> int:
        """Makes records, some at the same time."""
        asyncio.run(self._make(numbers, {"handler": handler} if handler else {}))
        return 0

    async def _make(self, numbers: range, headers: dict[str, str]) -> None:
        async with Towpath(self._redis, ledger=self._database) as app:

            async def one(number: int) -> None:
                id = f"r{number}"
                await app.ledger.jobs.submit(QUEUE, b"null", id=id, headers=headers)
                self._journal.write("made", (0, id))

            for start in numbers[::_AT_ONCE]:
                some = range(start, min(start + _AT_ONCE, numbers.stop))
                await asyncio.gather(*(one(number) for number in some))
