"""Finds out whether gevent or eventlet has replaced threads by its own."""

from __future__ import annotations

import sys


def patching_library() -> str | None:
    """The library that has replaced threads in this process, if one has."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None and gevent.is_module_patched("threading"):
        return "gevent"
    if eventlet is not None and eventlet.is_monkey_patched("thread"):
        return "eventlet"
    return None
