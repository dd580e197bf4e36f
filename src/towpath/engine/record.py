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
STORED = {
    "due_at": "due", "claimed_at": "claimed", "ended_at": "ended", "cancel_requested": "cancel",
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
