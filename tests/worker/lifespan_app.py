"""An app with a lifespan, for handlers in processes: the other process imports this module."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

from towpath import Context, Towpath


class SharedState:
    def __init__(self) -> None:
        self.pid, self.used = os.getpid(), 0


def append_line(words: str) -> None:
    with Path(os.environ["SHARED_JOURNAL"]).open("a") as journal:
        journal.write(f"{os.getpid()} {words}\n")


async def resources() -> AsyncIterator[SharedState]:
    append_line("start")
    if os.environ.get("SHARED_WORKS_IN", str(os.getpid())) != str(os.getpid()):
        raise LookupError("no such model")
    yield SharedState()
    append_line("end")


living = Towpath("redis://nowhere", lifespan=resources, lifespan_limit="10s")


@living.handler("models", processes=1)
def predict(n: int, ctx: Context[SharedState]) -> tuple[int, int]:
    ctx.state.used += 1
    return ctx.state.pid, ctx.state.used


@living.handler("mails")
async def send(ctx: Context[SharedState]) -> int:
    return ctx.state.pid
