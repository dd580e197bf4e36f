"""What the program does: see `record_program.py`."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

from tests.faults.planting import plant
from tests.faults.record_program import QUEUE
from tests.waiting import eventually
from towpath.app.app import Towpath
from towpath.clock import milliseconds, seconds, wall_ms
from towpath.engine.retry import Fixed
from towpath.ledger.ledger import Ledger
from towpath.telemetry.logs import LogLine
from towpath.worker.context import Context
from towpath.worker.worker import Worker

LIMIT = seconds(1)
"""How long a worker waits for the database: so it soon knows that it is away."""
NOTED = ("worker.started", "record.unwritten")
_AT_ONCE = 50


class RecordProgram:
    """Somebody with a way to Redis and to the database, who keeps a journal."""

    def __init__(self, redis: str, database: str, journal: str) -> None:
        self._redis, self._database = redis, database
        self._journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._gate = Path(journal).parents[1] / "gate"
        self.write("clock", wall_ms(), "-")

    def write(self, word: str, token: int, id: str) -> None:
        os.write(self._journal, f"{word} {token} {id}\n".encode())

    def work(self, *, fault: str) -> int:
        """Work on records until it is killed, with this fault if it has a name."""
        if fault:
            plant(fault)
        logger = logging.getLogger("towpath")
        logger.addHandler(JournalHandler(self))
        logger.setLevel(logging.INFO)
        return asyncio.run(self._work())

    async def _work(self) -> int:
        async with Ledger(self._database, limit=LIMIT) as ledger:
            app = Towpath(self._redis, ledger=ledger)

            @app.handler(QUEUE, record=True, retry=Fixed(milliseconds(1)), max_attempts=20)
            async def run(ctx: Context) -> int:
                self.write("ran", ctx.token, ctx.id)
                return ctx.token

            @app.handler(QUEUE, name="slow", record=True, max_attempts=20)
            def run_slowly(ctx: Context) -> int:
                self.write("began", ctx.token, ctx.id)
                eventually(lambda: ctx.token <= int(self._gate.read_text()), within=60)
                self.write("ran", ctx.token, ctx.id)
                return ctx.token

            return await Worker(app, lease=seconds(1), concurrency=40).run()

    def make(self, numbers: range, *, handler: str) -> int:
        """Make records, some at once."""
        asyncio.run(self._make(numbers, {"handler": handler} if handler else {}))
        return 0

    async def _make(self, numbers: range, headers: dict[str, str]) -> None:
        async with Towpath(self._redis, ledger=self._database) as app:

            async def one(number: int) -> None:
                id = f"r{number}"
                await app.ledger.jobs.submit(QUEUE, b"null", id=id, headers=headers)
                self.write("made", 0, id)

            for start in numbers[::_AT_ONCE]:
                some = range(start, min(start + _AT_ONCE, numbers.stop))
                await asyncio.gather(*(one(number) for number in some))


class JournalHandler(logging.Handler):
    """Lines of the log that are lines of the journal."""

    def __init__(self, program: RecordProgram) -> None:
        super().__init__()
        self._clerk = program

    def emit(self, record: logging.LogRecord) -> None:
        line: Any = record.msg
        if type(line) is LogLine and line["event"] in NOTED:
            self._clerk.write(line["event"], 0, line.get("job", "-"))
