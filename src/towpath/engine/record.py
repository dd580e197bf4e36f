"""A job's record as the scripts write it: a head of fixed fields, and a map of what is not plain.

lua/lib/record.lua is the other side; a test compares the two.
"""

from __future__ import annotations

import struct
from typing import Any, cast

import msgspec

from towpath.engine.codec import unpack_raw
from towpath.engine.states import State

_HEAD = struct.Struct("<Bdddd")

STATES = (
    State.READY, State.DELAYED, State.WAITING, State.LEASED,
    State.DONE, State.CANCELLED, State.DEAD,
)  # fmt: skip
"""By code, from 1."""
_WAIT = (State.READY, State.DELAYED, State.WAITING)
STORED = {
    "due_at": "asked_due", "next_try_at": "due", "claimed_at": "claimed", "ended_at": "ended",
    "cancel_requested": "cancel",
}  # fmt: skip
"""What scripts call a field whose name is another in `JobInfo`: as it is stored. All else that
both know has one name."""


class StoredJob(msgspec.Struct, frozen=True):
    state: State
    submitted_ms: int
    tick: int
    token: int
    attempts: int
    worker: str
    more: dict[str, Any]
    """What is not plain: the fields that were said, `named`, and what scripts add (lib/record).
    Those that are set; texts as bytes."""

    @property
    def due_ms(self) -> int:
        """The due time that was asked for; 0 = none was. The record has it by itself only where
        the time of another try has taken its place.
        """
        due = self.more.get(STORED["next_try_at"], 0)
        return int(self.more.get(STORED["due_at"], due))

    @property
    def next_try_ms(self) -> int:
        """When another try may begin, if it waits for one; else 0."""
        again = self.state in _WAIT and STORED["due_at"] in self.more
        return int(self.more.get(STORED["next_try_at"], 0)) if again else 0

    @property
    def claimed_ms(self) -> int:
        """When it was last claimed: what its token tells, in µs, unless the record says it."""
        return int(self.more.get(STORED["claimed_at"], self.token // 1000))


def decode(text: bytes) -> StoredJob:
    """The record behind what a script wrote."""
    head = cast("tuple[int, float, float, float, float]", _HEAD.unpack_from(text))
    code, at, tick, token, attempts = head
    end = text.index(b"\0", _HEAD.size)
    worker = text[_HEAD.size : end].decode()
    rest = text[end + 1 :]
    more: dict[Any, Any] = unpack_raw(rest) if rest else {}
    return StoredJob(
        STATES[code - 1],
        int(at),
        int(tick),
        int(token),
        int(attempts),
        worker,
        {str(name, "ascii"): value for name, value in more.items()},
    )


def readable(text: bytes | None) -> StoredJob | None:
    """The same; None for what is not there, or what somebody has spoilt."""
    try:
        return decode(text) if text else None
    except (struct.error, ValueError, LookupError, AttributeError):
        return None
