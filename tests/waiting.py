"""The one place where tests let time pass: waiting for a fact, up to a deadline."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

from towpath.clock import seconds
from towpath.engine.channel import Limits

HANGS = 300.0
"""Seconds after which something that a test waits for hangs, however busy the machine is. Limits on
time only end a test that would never end: no test is about its own speed.
"""
PATIENT = Limits(answer=seconds(30), give_up=seconds(HANGS), channels=16)
"""For a server whose test is not about a store that is away: by itself it says 503 after 1.5 s."""


def eventually(fact: Callable[[], object], *, within: float = HANGS) -> None:
    """Returns as soon as *fact* holds; fails the test if it does not within that many seconds."""
    for pause in _pauses(fact, within):
        if fact():
            return
        time.sleep(pause)


async def eventually_async(fact: Callable[[], Awaitable[object]], *, within: float = HANGS) -> None:
    """The same for a fact that has to be awaited; the event loop runs on meanwhile."""
    for pause in _pauses(fact, within):
        if await fact():
            return
        await asyncio.sleep(pause)


async def eventually_in_loop(fact: Callable[[], object], *, within: float = HANGS) -> None:
    """The same for a plain fact; other tasks of this event loop go on meanwhile."""

    async def holds() -> object:
        return fact()

    await eventually_async(holds, within=within)


def _pauses(fact: object, within: float) -> Iterator[float]:
    """Pauses that grow: looking takes CPU from what is waited for."""
    began = time.monotonic()
    while (waited := time.monotonic() - began) < within:
        yield min(0.005 + waited / 10, 0.05)
    raise AssertionError(f"did not happen within {within:g} s: {fact}")
