"""An app with three queues, for a worker process; two of the queues get into trouble."""

import asyncio

from towpath.app.app import Towpath
from towpath.clock import hours
from towpath.worker.context import Context

GOOD, BAD = "q1", ("q0", "q4")
"""In a cluster of three masters, the bad ones share a master on which the good one is not."""
MOMENT = 0.1
app = Towpath("redis://localhost")


async def work(ctx: Context) -> int:
    """Takes a moment; returns its token, so the result names the attempt that was accepted."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.call_later(MOMENT, done.set_result, None)
    await done
    return ctx.token


for _queue in (GOOD, *BAD):
    app.handler(_queue, keep=hours(1))(work)
