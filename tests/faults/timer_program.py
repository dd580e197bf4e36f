"""Processes that work on timers, which tests kill and freeze. Each keeps a journal.

    python -m tests.faults.timer_program plugin <journal> <url>
    python -m tests.faults.timer_program instance <journal> <address> <server>

Each attempt that began writes `ran`.
"""

import asyncio
import os
import sys
import threading
from typing import Any

from tests.journals import Journal
from tests.waiting import eventually, eventually_async
from towpath import Context
from towpath.app.app import Towpath
from towpath.apps.timers.client import Later, ServerAnswered, TimerCall, TimerClient
from towpath.apps.timers.plugin import Timers
from towpath.clock import seconds, wall_ms
from towpath.worker.worker import Worker

PLUGIN_TYPE, APP, APP_TYPE = "p", "shop", "t"
WORK_MS = 20
"""Milliseconds that an attempt takes: time to be killed in."""
LEASE = seconds(3)


def worked(until: int) -> None:
    """Returns at that time."""
    eventually(lambda: wall_ms() >= until)


async def worked_async(until: int) -> None:
    async def over() -> bool:
        return wall_ms() >= until

    await eventually_async(over)


def plugin(journal: str, url: str) -> None:
    """Runs a worker in a process of its own."""
    timers = Timers(Towpath(url))

    @timers.worker(PLUGIN_TYPE)
    async def _(_: Any, ctx: Context) -> None:
        Journal(journal).write("ran", (ctx.token, ctx.id))
        await worked_async(wall_ms() + WORK_MS)

    asyncio.run(Worker(timers.app, lease=LEASE).run())


def instance(journal: str, address: str, server: str) -> None:
    """Runs an instance of an app. It accepts some timers first, and ends them by their token
    later.
    """
    timers = TimerClient(APP, address, server=server, key=os.environ["TOWPATH_API_KEY"])

    def complete(call: TimerCall) -> None:
        """Repeats the call until the server has answered: it may be away."""
        while True:
            worked(wall_ms() + WORK_MS)
            try:
                timers.complete(call)
            except (OSError, ServerAnswered) as error:
                if isinstance(error, OSError) or error.status >= 500:
                    continue
            return

    @timers.on(APP_TYPE)
    def _(params: Any, call: TimerCall) -> Later | None:
        Journal(journal).write("ran", (call.token, call.task_id))
        if params % 4:
            worked(wall_ms() + WORK_MS)
            return None
        threading.Thread(target=complete, args=[call], daemon=True).start()
        return Later(LEASE)

    timers.serve()


if __name__ == "__main__":
    {"plugin": plugin, "instance": instance}[sys.argv[1]](*sys.argv[2:])
