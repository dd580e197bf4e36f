"""The options of a queue: stored at its first use, the same for all that use it."""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Collection, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from towpath.clock import (
    ZERO,
    Duration,
    DurationField,
    days,
    default_duration,
    duration,
    duration_ms,
    hours,
)
from towpath.engine.check import integer
from towpath.engine.retry import Exponential, RetryPolicy, retry_policy
from towpath.errors import InvalidOption

LAYOUT = 1
"""The number of the layout of a queue's data. Data with another one is refused, never changed."""
LAYOUT_MARK = f"{LAYOUT}."
"""The beginning of each version of a queue's options with this layout; scripts compare it."""
ATTEMPTS, LANE_ATTEMPTS = 20, 10
"""Attempts if neither the job nor its queue sets a limit. With the default policy, 20 take about a
day; the 10 of a job that holds its lane meanwhile take up to a quarter of an hour."""
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


class EventPolicy(StrEnum):
    """Which events a queue writes."""

    FOLLOWED = "followed"
    """Those that somebody follows: all while somebody follows the queue, the ends of jobs while
    somebody waits for results; and for a minute more. A gap is marked in the stream."""
    ALL = "all"
    """All events, also for readers that come later."""
    NONE = "none"
    """No events: the queue can't be followed, and results can't be waited for."""


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a queue behaves. Every field has a default that suits most queues."""

    max_attempts: int | None = None
    """Maximum number of attempts before a job is dead; releases do not count. None = 20, and 10 for
    a job that holds its lane while it is retried (lane policies block and park)."""
    max_deaths: int = 5
    """Maximum number of deliveries that may end with the death of the worker; then the job is dead,
    whatever attempts are left. It is probably the job that kills its workers."""
    retry: RetryPolicy = Exponential()
    """How long to wait before the next attempt: Exponential, Fixed, Listed or Never."""
    lanes: LanePolicy = LanePolicy.BLOCK
    """What a lane does when its head fails: block, skip or park."""
    keep: DurationField = default_duration(ZERO)
    """How long a finished job and its result are kept."""
    keep_most: int = 100_000
    """Maximum number of finished jobs to keep; the oldest are deleted first."""
    keep_dead: DurationField = default_duration(days(30))
    """How long a dead job is kept, unless it parks its lane."""
    keep_dead_most: int = 100_000
    """Maximum number of dead jobs to keep; the oldest are deleted first."""
    remember: DurationField = default_duration(hours(1))
    """How long an id that a caller chose is remembered after its job is deleted."""
    remember_most: int = 1_000_000
    """Maximum number of remembered ids; `counts` shows the current number."""
    max_length: int = 0
    """Maximum number of jobs that wait (ready, delayed or in a lane); 0 = no limit."""
    max_payload: int = 1024 * 1024
    """Maximum bytes of a payload or a result."""
    events: EventPolicy = EventPolicy.FOLLOWED
    """Which events are written: those that somebody follows, all, or none."""
    events_most: int = 1_000
    """About how many entries of up to 8 KiB the event stream keeps."""

    def __post_init__(self) -> None:
        if self.max_attempts is not None:
            integer("max_attempts", self.max_attempts, 1, 1_000_000)
        integer("max_deaths", self.max_deaths, 1, 1_000_000)
        integer("keep_most", self.keep_most, 0, 1_000_000_000)
        integer("keep_dead_most", self.keep_dead_most, 1, 1_000_000_000)
        integer("remember_most", self.remember_most, 0, 1_000_000_000)
        integer("max_length", self.max_length, 0, 1_000_000_000)
        integer("max_payload", self.max_payload, 1, LARGEST_PAYLOAD)
        integer("events_most", self.events_most, 1, 10_000_000)
        retry_policy(self.retry)
        for name, policy in (("lanes", LanePolicy), ("events", EventPolicy)):
            if (value := getattr(self, name)) not in list(policy):
                raise InvalidOption(name, value, rule=f"must be {', '.join(policy)}")
            msgspec.structs.force_setattr(self, name, policy(value))
        for name in ("keep", "keep_dead", "remember"):
            msgspec.structs.force_setattr(self, name, duration(name, getattr(self, name)))

    def attempts_of(self, lane: str | None) -> int:
        """The maximum number of attempts of a job that sets no limit of its own."""
        if self.max_attempts is not None:
            return self.max_attempts
        return LANE_ATTEMPTS if lane and self.lanes is not LanePolicy.SKIP else ATTEMPTS


DEFAULTS = QueueOptions()
KNOWN = frozenset(QueueOptions.__struct_fields__)
"""The names of the options of this release. Queues may have others, of another release."""


class ScriptedOptions:
    """The options that scripts use: all of *kind* that are a number, a duration or a word.

    They are packed in the order of their names, after the *form*, a hash of their names, types and
    defaults. By the form a script recognizes options that another release has packed. It then takes
    the decided options by name, and its own defaults for the others.
    """

    def __init__(self, kind: type[QueueOptions] = QueueOptions) -> None:
        self._defaults = kind()
        self.names = tuple(
            name
            for name in sorted(kind.__struct_fields__)
            if not isinstance(getattr(self._defaults, name), RetryPolicy)
        )
        self._texts = [isinstance(getattr(self._defaults, name), StrEnum) for name in self.names]
        self.format = "<" + "".join("s" if is_text else "d" for is_text in self._texts)
        about = f"{self.format} {' '.join(self.names)} {' '.join(map(self.default, self.names))}"
        self.form = hashlib.sha1(about.encode(), usedforsecurity=False).hexdigest()[:8]

    def pack(self, options: QueueOptions) -> bytes:
        """The form, then each option: a zero-terminated word, or a double."""
        values = (_script_value(name, getattr(options, name)) for name in self.names)
        return self.form.encode() + b"".join(
            value.encode() + b"\0" if isinstance(value, str) else struct.pack("<d", value)
            for value in values
        )

    def decided_values(
        self, options: QueueOptions, decided: Collection[str]
    ) -> dict[str, str | float]:
        """The *decided* options by name, for scripts of releases with another form."""
        names = (name for name in self.names if name in decided)
        return {name: _script_value(name, getattr(options, name)) for name in names}

    def default(self, name: str) -> str:
        """The default of an option as Lua writes it."""
        value = _script_value(name, getattr(self._defaults, name))
        return f"'{value}'" if isinstance(value, str) else f"{value:.0f}"


def _script_value(name: str, value: int | Duration | StrEnum | None) -> str | float:
    """An option as scripts know it: a duration in ms, and 0 for None."""
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, Duration):
        return float(duration_ms(name, value))
    return float(value or 0)


SCRIPTED = ScriptedOptions()


class StoredOptions(msgspec.Struct, frozen=True):
    """The options a queue has now. Scripts refuse a call that names another version."""

    options: QueueOptions
    version: str
    declared: bytes = b""
    """The value of each option that was declared last, as stored; empty = none was declared."""
    decided: frozenset[str] = frozenset()
    """The options that were declared or changed. Only these are stored: the others follow the
    defaults of the release that reads them."""
    is_foreign: bool = False
    """Whether they were packed by a release with other options or defaults. Scripts can read them,
    but in more steps, so the next declaration packs them again."""
    beyond: dict[str, msgspec.Raw] = {}
    """Decided options that only another release knows, as stored: written back as they are."""

    @classmethod
    def of(cls, options: QueueOptions) -> StoredOptions:
        """Options that one caller chose: those that differ from the defaults are decided."""
        return cls(options, "", decided=_differing_names(options, DEFAULTS))

    @property
    def base(self) -> QueueOptions:
        """The options without later changes: the declared values, and defaults for the others.

        A declared value that only a newer release can read counts as not declared.
        """
        try:
            return msgspec.json.decode(self.declared or b"{}", type=QueueOptions)
        except (msgspec.MsgspecError, InvalidOption):
            return self._readable_base()

    def _readable_base(self) -> QueueOptions:
        """The declared values that this release can read, and defaults for the others."""
        readable: dict[str, Any] = {}
        for name, value in self._declarations().items():
            if name in KNOWN:
                with suppress(msgspec.MsgspecError, InvalidOption):
                    text = msgspec.json.encode({name: value})
                    readable[name] = getattr(msgspec.json.decode(text, type=QueueOptions), name)
        return QueueOptions(**readable)

    @property
    def is_changed(self) -> bool:
        """Whether an option was changed after it was declared, also one of another release."""
        declared = self._declarations().items()
        others = {name: value for name, value in declared if name not in KNOWN}
        beyond = {name: msgspec.json.decode(value) for name, value in self.beyond.items()}
        return self.options != self.base or beyond != others

    def with_declared(self, wanted: Mapping[str, Any]) -> StoredOptions:
        """Returns these options after *wanted* was declared. A value applies only if the option
        still has the value that was declared last: a change since then stays.
        """
        base = self.base
        holds = {
            name: value
            for name, value in wanted.items()
            if getattr(self.options, name) == getattr(base, name)
        }
        options = msgspec.structs.replace(self.options, **holds)
        known = self._declarations() | msgspec.to_builtins(dict(wanted))
        declared = msgspec.json.encode(known, order="sorted")
        decided = self.decided | holds.keys()
        return StoredOptions(options, self.version, declared, decided, beyond=self.beyond)

    def with_changes(self, options: QueueOptions, decides: Collection[str] = ()) -> StoredOptions:
        """Returns these options with the values of *options*. Options whose value differs now count
        as decided, and so do those named in *decides*.
        """
        changed = _differing_names(options, self.options).union(decides)
        return msgspec.structs.replace(self, options=options, decided=self.decided | changed)

    def with_options(self, options: QueueOptions) -> StoredOptions:
        """Returns these options with *options* in place of all options that this release knows."""
        decided = _differing_names(options, DEFAULTS) | KNOWN.intersection(self._declarations())
        return msgspec.structs.replace(self, options=options, decided=decided)

    def with_reset(self, names: Collection[str]) -> StoredOptions:
        """Returns these options with those in *names* as declared, or undecided if they were not
        declared.
        """
        base = {name: getattr(self.base, name) for name in names}
        options = msgspec.structs.replace(self.options, **base)
        decided = self.decided - (frozenset(names) - self._declarations().keys())
        return msgspec.structs.replace(self, options=options, decided=decided)

    def encode(self) -> bytes:
        """The decided options as they are stored, after the number of the layout."""
        known = {name: getattr(self.options, name) for name in self.decided}
        whole = msgspec.json.encode(self.beyond | known, order="deterministic")
        return b"[%d,%s]" % (LAYOUT, whole)

    def _declarations(self) -> dict[str, Any]:
        try:
            return msgspec.json.decode(self.declared or b"{}", type=dict[str, Any])
        except msgspec.MsgspecError:  # unreadable, so the next declaration counts as the first one
            return {}


def _differing_names(options: QueueOptions, others: QueueOptions) -> frozenset[str]:
    return frozenset(
        name
        for name in QueueOptions.__struct_fields__
        if getattr(options, name) != getattr(others, name)
    )


def version_of(whole: bytes) -> str:
    """A short name for one set of options. It begins with the number of the layout."""
    return LAYOUT_MARK + hashlib.sha1(whole, usedforsecurity=False).hexdigest()[:16]


def new_version() -> str:
    """A name that no other set of options has."""
    return LAYOUT_MARK + secrets.token_hex(8)


def layout_of(stored: bytes) -> int | None:
    """The layout of a queue, from its stored options; None = from before layouts had numbers."""
    try:
        number, _ = msgspec.json.decode(stored, type=tuple[int, msgspec.Raw])
    except msgspec.MsgspecError:
        return None
    return number


class Declared(NamedTuple):
    """The options of a queue before a declaration, and now."""

    before: QueueOptions
    now: QueueOptions


def differences(stored: QueueOptions, wanted: QueueOptions) -> str:
    """The fields that differ, in words; empty if none does."""
    return ", ".join(
        f"{name} is {getattr(stored, name)}, not {getattr(wanted, name)}"
        for name in QueueOptions.__struct_fields__
        if getattr(stored, name) != getattr(wanted, name)
    )
