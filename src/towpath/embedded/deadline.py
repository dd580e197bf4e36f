"""Waiting for a fact about another process, with an end to the waiting."""

import time
from collections.abc import Callable

_FIRST_PAUSE = 0.001
_LONGEST_PAUSE = 0.025


def wait_until(fact: Callable[[], bool], *, within: float) -> bool:
    """Look for *fact* until it holds (True) or *within* seconds have passed (False).

    The first look is immediate and the pauses grow from 1 ms, so that a quick fact is seen
    quickly and a slow one costs next to no CPU.
    """
    end = time.monotonic() + within
    pause = _FIRST_PAUSE
    while not fact():
        if time.monotonic() >= end:
            return False
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)
    return True
