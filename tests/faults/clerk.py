"""A program that works on records, or makes them, for tests that kill it. It keeps a diary.

    python -m tests.faults.clerk work <redis> <database> <diary> <its clock's error in s> <fault>
    python -m tests.faults.clerk make <redis> <database> <diary> <first> <count> <handler>

A worker's handler writes `ran <token> <id>` before it returns its token, so that the row's result
tells which attempt was accepted; some lines of its log are lines here too. The handler called
`slow` writes `began <token> <id>` first and waits, in a thread that nobody can end, until the file
`gate` beside the folder of diaries has a number that is not below its token. A maker writes `made
0 <id>` when a record was acknowledged. Each line is written in one piece to a file that is only
appended to: whatever ends the process, the lines before are whole. Its first line is what its
clock says.
"""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

from tests.faults.shifted import shift_clock

QUEUE = "records"
LIMIT = 1.0
"""Seconds that a clerk waits for the database: so it soon knows that it is away."""
_AT_ONCE = 50
NOTED = ("worker.started", "record.unwritten")


def written(path: str) -> Any:
    """A function that writes a line of the diary at *path*."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(word: str, token: int, id: str) -> None:
        os.write(file, f"{word} {token} {id}\n".encode())

    return write


async def work(redis: str, database: str, diary: str, fault: str) -> int:
    # Only now: what is imported must not have seen the right time.
    from tests.faults.planting import plant  # noqa: PLC0415
    from tests.waiting import eventually  # noqa: PLC0415
    from towpath.app import Towpath  # noqa: PLC0415
    from towpath.clock import milliseconds, seconds, wall_ms  # noqa: PLC0415
    from towpath.engine.retry import Fixed  # noqa: PLC0415
    from towpath.ledger.ledger import Ledger  # noqa: PLC0415
    from towpath.telemetry.lines import Line  # noqa: PLC0415
    from towpath.worker.context import Context  # noqa: PLC0415
    from towpath.worker.worker import Worker  # noqa: PLC0415

    write, gate = written(diary), Path(diary).parents[1] / "gate"
    write("clock", wall_ms(), "-")
    if fault:
        plant(fault)

    class Trouble(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line: Any = record.msg
            if type(line) is Line and line["event"] in NOTED:
                write(line["event"], 0, line.get("job", "-"))

    logging.getLogger("towpath").addHandler(Trouble())
    logging.getLogger("towpath").setLevel(logging.INFO)
    async with Ledger(database, limit=seconds(LIMIT)) as ledger:
        app = Towpath(redis, ledger=ledger)

        @app.handler(QUEUE, record=True, retry=Fixed(milliseconds(1)), max_attempts=20)
        async def run(ctx: Context) -> int:
            write("ran", ctx.token, ctx.id)
            return ctx.token

        @app.handler(QUEUE, name="slow", record=True, max_attempts=20)
        def run_slowly(ctx: Context) -> int:
            write("began", ctx.token, ctx.id)
            eventually(lambda: ctx.token <= int(gate.read_text()), within=60)
            write("ran", ctx.token, ctx.id)
            return ctx.token

        return await Worker(app, lease=seconds(1), concurrency=40).run()


async def make(redis: str, database: str, diary: str, numbers: range, handler: str) -> int:
    from towpath.app import Towpath  # noqa: PLC0415 -- as above

    write, headers = written(diary), {"handler": handler} if handler else {}
    async with Towpath(redis, ledger=database) as app:

        async def one(number: int) -> None:
            made = await app.ledger.jobs.submit(QUEUE, b"null", id=f"r{number}", headers=headers)
            write("made", 0, made.record.id)

        for start in numbers[::_AT_ONCE]:
            some = range(start, min(start + _AT_ONCE, numbers.stop))
            await asyncio.gather(*(one(number) for number in some))
    return 0


def main() -> int:
    role, redis, database, diary, *more = sys.argv[1:]
    if role == "make":
        first, count, handler = more
        numbers = range(int(first), int(first) + int(count))
        return asyncio.run(make(redis, database, diary, numbers, handler))
    offset, fault = more
    if float(offset):
        shift_clock(float(offset))
    return asyncio.run(work(redis, database, diary, fault))


if __name__ == "__main__":
    sys.exit(main())
