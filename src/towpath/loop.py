"""The event loop of a process that is ours: a worker's, a server's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, where it is installed (`towpath[fast]`)."""
    make: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if find_spec("uvloop") is not None:
        make = cast("Any", import_module("uvloop")).new_event_loop
    return make()
