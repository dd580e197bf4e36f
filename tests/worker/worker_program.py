"""A program with a worker, for tests that kill it. It keeps a journal.

    python -m tests.worker.worker_program <url> <journal> <lease in ms> <grace in ms> <concurrency>

Each line of the journal is written in one piece to a file that is only appended to: whatever ends
the process, the lines before are whole. `began` is written by a handler with its token, id and
process; the rest are lines of the log, `job.completed` for what the store accepted.
"""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

from tests.waiting import eventually, eventually_async
from towpath.app.app import Towpath
from towpath.clock import milliseconds
from towpath.engine.retry import Fixed
from towpath.telemetry.logs import LogLine
from towpath.worker.context import Context
from towpath.worker.worker import Worker

JOURNAL = "TOWPATH_TEST_JOURNAL"
QUEUE = "shop"
app = Towpath("")


def write(word: str, *more: object) -> None:
    """A line of the journal."""
    file = os.open(os.environ[JOURNAL], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, (" ".join(map(str, [word, *more])) + "\n").encode())
    os.close(file)


def began(ctx: Context) -> None:
    write("began", ctx.token, ctx.id, os.getpid())


@app.handler(QUEUE, retry=Fixed(milliseconds(1)))
async def sell(ctx: Context) -> int:
    """Done at once; returns its token."""
    began(ctx)
    return ctx.token


@app.handler(QUEUE, name="wait")
async def wait_for(path: str, ctx: Context) -> int:
    """Done when there is a file of that name."""
    began(ctx)
    there = Path(path).exists

    async def arrived() -> bool:
        return there()

    await eventually_async(arrived, within=60)
    return ctx.token


@app.handler(QUEUE, name="wait-in-thread")
def wait_in_thread(path: str, ctx: Context) -> int:
    """The same in a thread."""
    began(ctx)
    eventually(Path(path).exists, within=60)
    return ctx.token


@app.handler(QUEUE, name="wait-in-executor")
async def wait_in_executor(path: str, ctx: Context) -> int:
    """The same in a thread that the worker knows nothing of."""
    began(ctx)
    await asyncio.to_thread(eventually, Path(path).exists, within=60)
    return ctx.token


@app.handler(QUEUE, name="block")
async def block_the_loop(path: str, ctx: Context) -> int:
    """The same without letting anybody else run."""
    began(ctx)
    eventually(Path(path).exists, within=60)
    return ctx.token


@app.handler("parcels", processes=2)
def wait_in_process(path: str, ctx: Context) -> int:
    """The same in a process of its own."""
    began(ctx)
    eventually(Path(path).exists, within=60)
    return ctx.token


@app.handler(QUEUE, name="exit", max_attempts=2)
async def leave(code: int, ctx: Context) -> None:
    """Ends the whole program."""
    began(ctx)
    os._exit(code)


@app.handler(QUEUE, name="exit-in-thread", max_attempts=2)
def leave_in_thread(code: int, ctx: Context) -> None:
    """The same from a thread."""
    began(ctx)
    os._exit(code)


@app.handler("bombs", processes=1, max_attempts=2, retry=Fixed(milliseconds(1)))
def leave_in_process(code: int, ctx: Context) -> None:
    """Ends only the process that it runs in."""
    began(ctx)
    os._exit(code)


SPOKEN_OF = (
    *("job.completed", "job.stale_refused", "job.released"),
    *("worker.stopping", "worker.stopped", "worker.frozen", "loop.blocked"),
)


class AcceptedHandler(logging.Handler):
    """What the store accepted."""

    def emit(self, record: logging.LogRecord) -> None:
        line: Any = record.msg
        if type(line) is not LogLine:
            return
        if line["event"] in SPOKEN_OF:
            write(line["event"], 0, line.get("job", "-"), os.getpid())


def main() -> int:
    url, journal, lease, grace, concurrency = sys.argv[1:]
    app.url = url
    os.environ[JOURNAL] = journal
    logging.getLogger("towpath").addHandler(AcceptedHandler())
    logging.getLogger("towpath").setLevel(logging.INFO)
    worker = Worker(
        app,
        lease=milliseconds(int(lease)),
        grace=milliseconds(int(grace)),
        concurrency=int(concurrency),
    )
    return worker.run_forever()


if __name__ == "__main__":
    sys.exit(main())
