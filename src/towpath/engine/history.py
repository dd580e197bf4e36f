"""The history of a queue: the rows that scripts write each minute, made into columns for charts.

The first call of a minute that changes the queue writes a row, with the numbers before the change.
So all that was counted between two rows happened in the minute of the first, and in minutes without
a row the number of jobs in each state did not change.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from towpath.clock import Duration, hours, instant, milliseconds, minutes
from towpath.errors import InvalidOption

TOTALS = ("submitted", "completed", "failed", "died")
STANDS = ("ready", "delayed", "waiting", "leased", "dead")
QUEUES_MOST = 1000
"""The number of queues that have a history: the first ones in the directory of queues."""
_ROW = struct.Struct("<B10I")
_WRAPS = 2**32
_FINEST, _LONGEST = hours(24), hours(24 * 30)
_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A queue over time: each list has one number per step (a minute or an hour), oldest first."""

    begins: datetime
    """When the first step begins."""
    step: Duration
    """A minute; an hour if more than 24 hours were asked for."""
    submitted: list[int]
    """Jobs submitted in each step."""
    completed: list[int]
    """Jobs completed in each step."""
    failed: list[int]
    """Attempts that failed in each step."""
    died: list[int]
    """Jobs that died in each step."""
    ready: list[int]
    """Ready jobs at the start of each step; the last number is for now."""
    delayed: list[int]
    """Delayed jobs, counted like `ready`."""
    waiting: list[int]
    """Jobs that waited behind the head of their lane, counted like `ready`."""
    leased: list[int]
    """Leased jobs, counted like `ready`."""
    dead: list[int]
    """Dead jobs, counted like `ready`."""
    oldest: list[int | None]
    """Seconds that the oldest ready job had waited; None if none was ready."""


class Window(msgspec.Struct, frozen=True):
    """Which rows to ask for, and the steps of the columns made from them."""

    kind: str
    step_ms: int
    field_ms: int
    slots: int

    @property
    def fields(self) -> int:
        return -(-self.slots * self.step_ms // self.field_ms) + 1


def window(last: Duration) -> Window:
    """The window of the *last* time: by minute up to 24 hours, by hour up to 30 days. Raises
    InvalidOption.
    """
    if not minutes(1) <= last <= _LONGEST:
        raise InvalidOption("last", last, rule="must be from 1 minute to 30 days")
    if last <= _FINEST:
        return Window("m", 60_000, _HOUR_MS, last // minutes(1))
    return Window("h", _HOUR_MS, _DAY_MS, last // hours(1))


def columns(asked: Window, now: int, numbers: Sequence[Any], flat: Sequence[bytes]) -> History:
    """The columns of a window, from the script's answer. Minutes or hours without a row are
    filled.
    """
    step = asked.step_ms
    first = now // step - asked.slots + 1
    rows = {
        int(begins) // step + row[0] - first: row[1:]
        for begins, text in zip(flat[::2], flat[1::2], strict=True)
        for row in _ROW.iter_unpack(text[: len(text) - len(text) % _ROW.size])
    }
    after = [int(number) for number in numbers]
    found: list[list[Any]] = []
    for slot in range(asked.slots - 1, -1, -1):
        row = rows.get(slot)
        counted = map(_count_growth, row[:4], after) if row else (0, 0, 0, 0)
        if slot < asked.slots - 1:  # the last slot shows the queue as it is now
            stands = row[4:] if row else [*after[4:9], max(0, after[9] - step // 1000)]
            after[4:] = stands
        found.append([*counted, *after[4:]])
        after = list(row) if row else after
    names = (*TOTALS, *STANDS, "oldest")
    made = dict(zip(names, map(list, zip(*reversed(found), strict=True)), strict=True))
    made["oldest"] = [age - 1 if age else None for age in made["oldest"]]
    return History(begins=instant(first * step), step=milliseconds(step), **made)


def _count_growth(before: int, after: int) -> int:
    """How much a counter grew from one row to the next. Rows have 32 bits, so a counter may wrap; a
    counter that shrank was lost, and began again at 0.
    """
    more = (after - before) % _WRAPS
    return more if more < _WRAPS // 2 else after % _WRAPS


def sum_columns(parts: Iterable[History]) -> History | None:
    """The histories of several queues as one: sums, and the age of the oldest job. None if there
    are none.
    """
    found = list(parts)
    if not found:
        return None
    sums: dict[str, list[int]] = {
        name: [
            sum(amounts) for amounts in zip(*(getattr(part, name) for part in found), strict=True)
        ]
        for name in (*TOTALS, *STANDS)
    }
    oldest = [
        max((age for age in ages if age is not None), default=None)
        for ages in zip(*(part.oldest for part in found), strict=True)
    ]
    return History(begins=found[0].begins, step=found[0].step, oldest=oldest, **sums)
