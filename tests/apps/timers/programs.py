"""Apps of worker processes under test. The params of a timer are the path of a file to write to."""

import asyncio
import os
from pathlib import Path

from towpath.apps.timers.plugin import Timers
from towpath.clock import seconds
from towpath.engine.retry import Fixed

timers = Timers("redis://nobody")
app = timers.app


def note(path: str, words: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{words}\n")


@timers.worker("two", retry=Fixed(seconds(0.01)))
async def first(path: str) -> None:
    note(path, "first")


@timers.worker("two")
async def second(path: str) -> None:
    """Runs for ever if a file with that name exists."""
    note(path, "second")
    if os.path.exists(f"{path}.hold"):  # noqa: ASYNC240, PTH110 -- the process is to end here
        await asyncio.Event().wait()


@timers.worker("shared")
async def shared(path: str) -> None:
    note(path, str(os.getpid()))


ordered_timers = Timers("redis://nobody")
ordered = ordered_timers.app


@ordered_timers.worker("restart", concurrency=1)
async def in_order(params: tuple[str, str]) -> None:
    path, task_id = params
    note(path, task_id)
