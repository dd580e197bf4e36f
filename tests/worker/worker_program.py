"""A program with a worker, for tests that kill it. It keeps a journal.

    python -m tests.worker.worker_program <journal> <url> <lease in ms> <grace in ms> <concurrency>

A handler writes `began`; the other lines are copied from the log, `job.completed` for a completion
that Redis accepted.
"""

import asyncio
import os
import sys
from pathlib import Path

from tests.journals import Journal, log_to_journal
from tests.waiting import eventually, eventually_async
from towpath.app.app import Towpath
from towpath.clock import milliseconds
from towpath.engine.retry import Fixed
from towpath.worker.context import Context
from towpath.worker.worker import Worker

JOURNAL = "TOWPATH_TEST_JOURNAL"
QUEUE = "shop"
app = Towpath("")


def began(ctx: Context) -> None:
    Journal(os.environ[JOURNAL]).write("began", (ctx.token, ctx.id))


@app.handler(QUEUE, retry=Fixed(milliseconds(1)))
async def sell(ctx: Context) -> int:
    """Ends at once; returns its token."""
    began(ctx)
    return ctx.token


@app.handler(QUEUE, name="wait")
async def wait_for(path: str, ctx: Context) -> int:
    """Ends when a file with that name exists."""
    began(ctx)
    there = Path(path).exists

    async def arrived() -> bool:
        return there()

    await eventually_async(arrived)
    return ctx.token


@app.handler(QUEUE, name="wait-in-thread")
def wait_in_thread(path: str, ctx: Context) -> int:
    """The same in a thread."""
    began(ctx)
    eventually(Path(path).exists)
    return ctx.token


@app.handler(QUEUE, name="wait-in-executor")
async def wait_in_executor(path: str, ctx: Context) -> int:
    """The same in a thread that the worker does not know."""
    began(ctx)
    await asyncio.to_thread(eventually, Path(path).exists)
    return ctx.token


@app.handler(QUEUE, name="block")
async def block_the_loop(path: str, ctx: Context) -> int:
    """The same without yielding to the event loop."""
    began(ctx)
    eventually(Path(path).exists)
    return ctx.token


@app.handler("parcels", processes=2)
def wait_in_process(path: str, ctx: Context) -> int:
    """The same in a process of its own."""
    began(ctx)
    eventually(Path(path).exists)
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


JOURNALED_EVENTS = (
    *("job.completed", "job.stale_refused", "job.released"),
    *("worker.stopping", "worker.stopped", "worker.frozen", "loop.blocked"),
)


def main() -> int:
    journal, url, lease, grace, concurrency = sys.argv[1:]
    app.url = url
    os.environ[JOURNAL] = journal
    log_to_journal(Journal(journal), JOURNALED_EVENTS)
    worker = Worker(
        app,
        lease=milliseconds(int(lease)),
        grace=milliseconds(int(grace)),
        concurrency=int(concurrency),
    )
    return worker.run_forever()


if __name__ == "__main__":
    sys.exit(main())
