"""A job's data as scripts store it: fixed fields, a map of what is not plain, a small payload.

Scripts return it without the payload. lua/lib/record.lua writes it; a test compares the two.
"""

from __future__ import annotations

import struct
from typing import Any, cast

import msgspec

from towpath.engine.codec import unpack_raw
from towpath.engine.states import State

_START, _LAST_LEASE = struct.Struct("<B6s3s"), struct.Struct("<7sI")
"""First: state and parts, tick, and how far the tick is ahead of the time of submission. Then, if
the job was ever leased: token and attempts, followed by the worker's zero-terminated name."""
_STATE, _WAS_LEASED, _NOT_PLAIN, _UNKNOWN = 7, 8, 16, 64
"""Bits of the first byte: the state's code (three bits), a lease follows, a map follows, and the
lowest bit that no release uses yet."""
_SIZE = struct.Struct("<I")

STATES = (
    State.READY, State.DELAYED, State.WAITING, State.LEASED,
    State.DONE, State.CANCELLED, State.DEAD,
)  # fmt: skip
"""States by code, from 1."""
_WAIT = (State.READY, State.DELAYED, State.WAITING)
STORED = {
    "due_at": "asked_due", "next_try_at": "due", "claimed_at": "claimed", "ended_at": "ended",
    "cancel_requested": "cancel",
}  # fmt: skip
"""Field of `JobInfo` -> its stored name, where that is another. All other fields have one name."""


class StoredJob(msgspec.Struct, frozen=True):
    state: State
    submitted_ms: int
    tick: int
    token: int
    attempts: int
    worker: str
    more: dict[str, Any]
    """What is not plain: the options of the submit, `named`, and what scripts add (lib/record).
    Only fields that are set; texts are bytes."""

    @property
    def due_ms(self) -> int:
        """The due time that was asked for; 0 = none was. It has a field of its own only if the time
        of another try has taken its place.
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
        """When it was last claimed: the token is that time in µs, unless the time is stored."""
        return int(self.more.get(STORED["claimed_at"], self.token // 1000))


def decode(text: bytes) -> StoredJob:
    """Read what a script stored. Raises ValueError or struct.error if it is damaged."""
    parts, order, ahead = cast("tuple[int, bytes, bytes]", _START.unpack_from(text))
    token, attempts, worker, end = b"", 0, "", _START.size
    if parts >= _UNKNOWN or not parts & _STATE:
        raise ValueError("no state has that code")
    if parts & _WAS_LEASED:
        token, attempts = cast("tuple[bytes, int]", _LAST_LEASE.unpack_from(text, end))
        begin = end + _LAST_LEASE.size
        end = text.index(b"\0", begin) + 1
        worker = text[begin : end - 1].decode()
    more: dict[Any, Any] = {}
    if parts & _NOT_PLAIN:
        [size] = cast("tuple[int]", _SIZE.unpack_from(text, end))
        packed = text[end + _SIZE.size :][:size]
        if len(packed) < size:
            raise ValueError("the map is cut off")
        more = unpack_raw(packed)
    tick = int.from_bytes(order, "little")
    submitted_ms = more.pop(b"submitted_at", tick - int.from_bytes(ahead, "little"))
    return StoredJob(
        STATES[(parts & _STATE) - 1],
        int(submitted_ms),
        tick,
        int.from_bytes(token, "little"),
        attempts,
        worker,
        {str(name, "ascii"): value for name, value in more.items()},
    )


def readable(text: bytes | None) -> StoredJob | None:
    """As `decode`; None if there is no data, or it is damaged."""
    try:
        return decode(text) if text else None
    except (struct.error, ValueError, LookupError, AttributeError):
        return None
