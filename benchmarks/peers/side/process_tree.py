"""A process and all processes that it started, even if they left its group."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")


def process_tree(pid: int) -> list[int]:
    """The process, its descendants and all of its session. Without /proc: the process alone."""
    known = {pid}
    stats = _stats()
    while True:
        found = {
            child for child, (parent, session) in stats.items() if parent in known or session == pid
        }
        if found <= known:
            return sorted(known)
        known |= found


def kill_tree(pid: int) -> None:
    """Sends SIGKILL to each of them, the eldest first, so that it cannot replace a dead child.

    The calling process, if it is among them, comes last.
    """
    me = os.getpid()
    for member in [pid, *process_tree(pid)]:
        if member != me:
            _kill(member)
    # A process that was forked meanwhile is still in the session.
    for member in process_tree(pid):
        if member != me:
            _kill(member)
    if pid == me:
        _kill(me)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _stats() -> dict[int, tuple[int, int]]:
    """Parent and session of every process that can be seen."""
    found: dict[int, tuple[int, int]] = {}
    for entry in PROC.glob("[0-9]*"):
        try:
            text = (entry / "stat").read_text()
        except OSError:
            continue
        state, parent, _, session, *_ = text.rpartition(")")[2].split()
        if state != "Z":  # a zombie
            found[int(entry.name)] = (int(parent), int(session))
    return found
