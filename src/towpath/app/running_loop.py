"""Refuses to block a thread that runs an event loop, except in notebooks."""

from __future__ import annotations

import asyncio
import sys

from towpath.errors import EventLoopRunning


def refuse_in_running_loop() -> None:
    """Raise EventLoopRunning in a thread that runs an event loop: blocking would stop that loop.

    IPython and Jupyter run cells in such a thread, one after the other: there it may be blocked.
    """
    if asyncio._get_running_loop() is not None and not _is_notebook():  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- the public function raises, which takes three times as long
        raise EventLoopRunning


def _is_notebook() -> bool:
    shell = sys.modules.get("IPython")
    return shell is not None and shell.get_ipython() is not None
