"""Names of queues, jobs, lanes, workers and others: their rules, checked in one place; new ids."""

from __future__ import annotations

import itertools
import os
import re
import secrets
from functools import lru_cache
from typing import NamedTuple, NewType

from towpath.clock import wall_ns
from towpath.errors import InvalidName

QueueName = NewType("QueueName", str)
JobId = NewType("JobId", str)
LaneKey = NewType("LaneKey", str)
Selector = NewType("Selector", str)
WorkerName = NewType("WorkerName", str)
StreamName = NewType("StreamName", str)
Token = NewType("Token", int)
"""A fencing token: grows with every delivery of a queue, also across a failover."""

_QUEUE = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_QUEUE_RULE = "1 to 64 of a-z, 0-9, '.', '_', '-', beginning with a letter or digit"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_TEXT_LONGEST = 512
_SCHEDULE_LONGEST = _SELECTOR_LONGEST = 256
_EVENT_LONGEST = 1024
"""Room for the names of a queue and of a job together."""


@lru_cache(maxsize=1024)
def queue_name(value: str) -> QueueName:
    """*value* as a queue's name, or InvalidName."""
    return QueueName(_plain("queue", value))


def stream_name(value: str) -> StreamName:
    """*value* as the name of a stream, or InvalidName: the rule is that of queues."""
    return StreamName(_plain("stream", value))


def sink_name(value: str) -> str:
    """*value* as the name of a sink, or InvalidName: the rule is that of queues."""
    return _plain("sink", value)


def space_name(value: str) -> str:
    """*value* as the name of a space, or InvalidName: the rule is that of queues."""
    return _plain("space", value)


def record_id(value: str) -> str:
    """*value* as the id of a record in a space, or InvalidName. Braces and spaces are fine."""
    return _text("record id", value)


def _plain(kind: str, value: str) -> str:
    if not isinstance(value, str) or _QUEUE.fullmatch(value) is None:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise InvalidName(kind, value, rule=_QUEUE_RULE)
    return value


def job_id(value: str) -> JobId:
    """*value* as a job's id, or InvalidName. Colons, '#' and spaces are fine."""
    return JobId(_text("job id", value))


def lane_key(value: str) -> LaneKey:
    """*value* as a lane's key, or InvalidName."""
    return LaneKey(_text("lane", value))


def selector_name(value: str) -> Selector:
    """*value* as the selector of a job, e.g. `owner/name|role`, or InvalidName."""
    return Selector(_text("selector", value, _SELECTOR_LONGEST))


def owner_name(value: str) -> str:
    """*value* as the name of a job's owner, or InvalidName."""
    return _text("owner", value)


def worker_name(value: str) -> WorkerName:
    """*value* as a worker's name, or InvalidName."""
    return WorkerName(_text("worker", value))


def channel_name(value: str) -> str:
    """*value* as the name of a channel of calls, or InvalidName."""
    return _text("channel", value)


def schedule_name(value: str) -> str:
    """*value* as the name of a schedule, or InvalidName. Its jobs' ids begin with it."""
    return _text("schedule", value, _SCHEDULE_LONGEST)


def event_id(value: str) -> str:
    """*value* as an event's id, or InvalidName."""
    return _text("event id", value, _EVENT_LONGEST)


def event_key(value: str) -> str:
    """*value* as the key of events, or InvalidName."""
    return _text("event key", value, _EVENT_LONGEST)


def text_name(kind: str, value: str, *, longest: int) -> str:
    """*value* as a name of an application's own, in at most *longest* bytes, or InvalidName."""
    return _text(kind, value, longest)


def _text(kind: str, value: str, longest: int = _TEXT_LONGEST) -> str:
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise InvalidName(kind, value, rule=f"must be text: {_text_rule(longest)}")
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidName(kind, value, rule=_text_rule(longest)) from error
    if not 1 <= size <= longest or _CONTROL.search(value) is not None:
        raise InvalidName(kind, value, rule=_text_rule(longest))
    return value


def _text_rule(longest: int) -> str:
    return f"1 to {longest} bytes of UTF-8 without control characters"


# ── new ids ──────────────────────────────────────────────────────────────────────────────
# A ULID: 48 bits of time and 80 random bits, 26 characters that sort by age. Within one
# millisecond the last 20 bits count up, so that a new id costs two table look-ups.

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]
_COUNT_BITS = 20


class _Series(NamedTuple):
    """Ids of one millisecond: a head of time and random bits, and a counter for the rest."""

    ms: int
    head: str
    counter: itertools.count[int]


def _encode(number: int, characters: int) -> str:
    text = ""
    for _ in range(0, characters, 2):
        text = _PAIRS[number & 1023] + text
        number >>= 10
    return text


def _new_series(ms: int) -> _Series:
    # Begin in the lower half, so that the counter has room.
    chance, first = divmod(secrets.randbits(60 + _COUNT_BITS - 1), 1 << _COUNT_BITS - 1)
    return _Series(ms, _encode(ms, 10) + _encode(chance, 12), itertools.count(first))


class _Ids:
    """Creates ids. Threads may share it: a series is replaced as a whole, its counter is atomic."""

    def __init__(self) -> None:
        self._series = _new_series(0)

    def restart(self) -> None:
        """Begin a new series in a forked child, which would repeat its parent's ids otherwise."""
        self._series = _new_series(0)

    def next(self) -> JobId:
        ms, series = wall_ns() // 1_000_000, self._series
        if ms > series.ms:
            series = self._series = _new_series(ms)
        n = next(series.counter)
        if n >> _COUNT_BITS:
            series = self._series = _new_series(series.ms)
            n = next(series.counter)
        return JobId(series.head + _PAIRS[n >> 10] + _PAIRS[n & 1023])


_ids = _Ids()
new_job_id = _ids.next
"""Returns a new job id: unique, 26 characters, sorted by the time of its creation."""

os.register_at_fork(after_in_child=_ids.restart)
