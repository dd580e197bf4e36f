"""The states of a job, and which verb may move it from where to where.

The `moves` line of each script's header is compared with MOVES by a test.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from enum import StrEnum


class State(StrEnum):
    """The state of a job."""

    READY = "ready"
    """Can be claimed now."""
    DELAYED = "delayed"
    """Not due yet: it was submitted with a delay, or it waits for its next attempt."""
    WAITING = "waiting"
    """Behind the head of its lane."""
    LEASED = "leased"
    """Held by a worker."""
    DONE = "done"
    CANCELLED = "cancelled"
    DEAD = "dead"
    """Its last attempt failed, or it was buried. It can be read, retried and deleted."""
    GONE = "gone"
    """It ended and is no longer kept, or never existed."""
    PENDING = "pending"
    """Submitted in a transaction that is not committed yet."""


NEW = "new"

_ENDS = {(State.DONE, State.GONE), (State.CANCELLED, State.GONE), (State.DEAD, State.GONE)}

_GIVEN_UP = {
    (State.READY, State.GONE),
    (State.DELAYED, State.GONE),
    (State.WAITING, State.GONE),
}
"""A new job under the same id replaces a waiting one."""

_BEGINNINGS = {(NEW, State.READY), (NEW, State.DELAYED), (NEW, State.WAITING)}

MOVES: Mapping[str, Set[tuple[str, str]]] = {
    "submit": _BEGINNINGS,
    "fire": _BEGINNINGS,
    "claim": {(State.READY, State.LEASED)},
    "renew": set(),
    "progress": set(),
    "complete": {(State.LEASED, State.DONE)},
    "fail": {
        (State.LEASED, State.DELAYED),
        (State.LEASED, State.DEAD),
        (State.LEASED, State.CANCELLED),
    },
    "release": {
        (State.LEASED, State.READY),
        (State.LEASED, State.DELAYED),
        (State.LEASED, State.CANCELLED),
    },
    "cancel": {
        (State.READY, State.CANCELLED),
        (State.DELAYED, State.CANCELLED),
        (State.WAITING, State.CANCELLED),
    },
    "move": {
        (State.READY, State.DELAYED),
        (State.DELAYED, State.READY),
        (State.DELAYED, State.WAITING),
    },
    "set": _BEGINNINGS | _ENDS | _GIVEN_UP,
    "promote": {(State.DELAYED, State.READY), (State.DELAYED, State.WAITING)},
    "reap": {
        (State.LEASED, State.READY),
        (State.LEASED, State.DEAD),
        (State.LEASED, State.CANCELLED),
    },
    "retry": {(State.DEAD, State.READY), (State.DEAD, State.WAITING)},
    "delete": _ENDS,
    "trim": _ENDS,
    "drop": {(State.WAITING, State.READY), (State.WAITING, State.DELAYED)},
    "pause": set(),
    "resume": set(),
}
