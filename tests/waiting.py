"""The one place where tests let time pass: waiting for a fact, up to a deadline."""

import asyncio
import time
from collections.abc import Awaitable, Callable

_PAUSE = 0.005


def eventually(fact: Callable[[], object], *, within: float = 10.0) -> None:
    """Return as soon as *fact* holds; fail the test if it does not within that many seconds."""
    end = time.monotonic() + within
    while not fact():
        if time.monotonic() >= end:
            raise AssertionError(f"did not happen within {within:g} s: {fact}")
        time.sleep(_PAUSE)


async def eventually_async(fact: Callable[[], Awaitable[object]], *, within: float = 10.0) -> None:
    """The same for a fact that has to be awaited; the event loop runs on meanwhile."""
    end = time.monotonic() + within
    while not await fact():
        if time.monotonic() >= end:
            raise AssertionError(f"did not happen within {within:g} s: {fact}")
        await asyncio.sleep(_PAUSE)
