"""The options of a queue: written at its first use, the same for everybody who uses it."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from towpath.clock import (
    ZERO,
    Duration,
    DurationField,
    days,
    duration,
    duration_ms,
    hours,
    usually,
)
from towpath.engine.check import whole
from towpath.engine.retry import Exponential, RetryPolicy, retry_policy
from towpath.errors import InvalidOption

LARGEST_PAYLOAD = 64 * 1024 * 1024


class LanePolicy(StrEnum):
    """What a lane does when its head fails."""

    BLOCK = "block"
    """It waits while the head is retried, and continues when the head is dead."""
    SKIP = "skip"
    """It continues while the head waits for its next attempt, still one job at a time; then the
    head takes its old place."""
    PARK = "park"
    """It waits while the head is retried. A dead head stops it until `retry` or `drop`."""


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a queue behaves. Every field has a default that suits most queues."""

    max_attempts: int = 5
    """Maximum number of attempts before a job is dead; releases do not count."""
    retry: RetryPolicy = Exponential()
    """How long to wait before the next attempt: Exponential, Fixed, Listed or Never."""
    lanes: LanePolicy = LanePolicy.BLOCK
    """What a lane does when its head fails: block, skip or park."""
    keep: DurationField = usually(ZERO)
    """How long a finished job and its result are kept."""
    keep_most: int = 100_000
    """Maximum number of finished jobs to keep; the oldest are deleted first."""
    keep_dead: DurationField = usually(days(30))
    """How long a dead job is kept, unless it parks its lane."""
    keep_dead_most: int = 100_000
    """Maximum number of dead jobs to keep; the oldest are deleted first."""
    remember: DurationField = usually(hours(1))
    """How long an id that a caller chose is remembered after its job is deleted."""
    remember_most: int = 1_000_000
    """Maximum number of remembered ids; `counts` shows the current number."""
    max_length: int = 0
    """Maximum number of jobs that wait (ready, delayed or in a lane); 0 = no limit."""
    max_payload: int = 1024 * 1024
    """Maximum bytes of a payload or a result."""
    events: int = 1_000
    """About how many entries of up to 8 KiB the event stream keeps; 0 = no events."""

    def __post_init__(self) -> None:
        whole("max_attempts", self.max_attempts, 1, 1_000_000)
        whole("keep_most", self.keep_most, 0, 1_000_000_000)
        whole("keep_dead_most", self.keep_dead_most, 1, 1_000_000_000)
        whole("remember_most", self.remember_most, 0, 1_000_000_000)
        whole("max_length", self.max_length, 0, 1_000_000_000)
        whole("max_payload", self.max_payload, 1, LARGEST_PAYLOAD)
        whole("events", self.events, 0, 10_000_000)
        retry_policy(self.retry)
        if not isinstance(self.lanes, LanePolicy):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
            raise InvalidOption("lanes", self.lanes, rule="must be a LanePolicy")
        for name in ("keep", "keep_dead", "remember"):
            msgspec.structs.force_setattr(self, name, duration(name, getattr(self, name)))

    def packed(self) -> bytes:
        """Internal: the options that scripts use, in the order of SCRIPTED."""
        return b"".join(_packed(name, getattr(self, name)) for name in SCRIPTED)


SCRIPTED = (
    "max_attempts", "keep", "keep_most", "keep_dead", "keep_dead_most", "remember",
    "remember_most", "max_length", "max_payload", "events", "lanes",
)  # fmt: skip
"""The options that the scripts go by, in the order in which they are packed. Read from a map they
were 5 % of a lone submit; the loader knows their places."""


def _packed(name: str, value: int | Duration | LanePolicy) -> bytes:
    """Texts end with a zero, all else is a double; durations are ms."""
    if isinstance(value, LanePolicy):
        return value.encode() + b"\0"
    return struct.pack("<d", duration_ms(name, value) if isinstance(value, Duration) else value)


def packed_format() -> str:
    """The same as Lua's struct.unpack is told."""
    usual = QueueOptions()
    kinds = ("s" if isinstance(getattr(usual, name), LanePolicy) else "d" for name in SCRIPTED)
    return "<" + "".join(kinds)


class InForce(msgspec.Struct, frozen=True):
    """The options a queue has now. Scripts refuse a caller that goes by another version."""

    options: QueueOptions
    version: str
    declared: bytes = b""
    """What was declared of them last, option by option, as it is stored; empty = nothing was."""

    @property
    def base(self) -> QueueOptions:
        """What they would be if nobody had changed them: as declared, and the defaults.

        What only a newer release can declare is as if it had not been.
        """
        try:
            return msgspec.json.decode(self.declared or b"{}", type=QueueOptions)
        except (msgspec.MsgspecError, InvalidOption):
            return QueueOptions()

    def declaring(self, wanted: Mapping[str, Any]) -> InForce:
        """The same after *wanted* was declared, which holds for each option that still is what was
        declared of it last. What somebody changed since stays.
        """
        base = self.base
        holds = {
            name: value
            for name, value in wanted.items()
            if getattr(self.options, name) == getattr(base, name)
        }
        options = msgspec.structs.replace(self.options, **holds)
        known: dict[str, Any] = {}
        with suppress(msgspec.MsgspecError):  # somebody has spoilt it: this is the first one then
            known = msgspec.json.decode(self.declared or b"{}", type=dict[str, Any])
        declared = msgspec.json.encode(known | msgspec.to_builtins(dict(wanted)), order="sorted")
        return InForce(options, self.version, declared)


def version_of(whole: bytes) -> str:
    """A short name for one set of options."""
    return hashlib.sha1(whole, usedforsecurity=False).hexdigest()[:16]


class Declared(NamedTuple):
    """What a declaration came to: the options before it, and now."""

    before: QueueOptions
    now: QueueOptions


def differences(stored: QueueOptions, wanted: QueueOptions) -> str:
    """The fields that differ, in words; empty if none does."""
    return ", ".join(
        f"{name} is {getattr(stored, name)}, not {getattr(wanted, name)}"
        for name in QueueOptions.__struct_fields__
        if getattr(stored, name) != getattr(wanted, name)
    )
