"""An event on its way out: what happened and to what, under an id that stays the same.

CloudEvents 1.0 in the structured mode: everything is in one JSON document, so that no sink can
lose the id or the type by dropping headers. The sinks that take it answer as is said here.
https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from towpath.clock import ZERO, Duration, instant, wall_ms
from towpath.errors import InvalidOption, PayloadInvalid, PayloadTooLarge
from towpath.ids import event_id, event_key, new_job_id

CONTENT_TYPE = "application/cloudevents+json"
LARGEST_DATA = 256 * 1024
"""Bytes. Whoever has more to say sends a reference; it keeps a batch in memory small."""
_TYPE = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
_TYPE_RULE = "1 to 128 of a-z, 0-9, '.', '_', '-', as in towpath.review.completed"
_SOURCE = re.compile(r"[!-~]{1,512}")
_SOURCE_RULE = "must be a URI reference of 1 to 512 printable ASCII characters"
_LATEST = 253_402_300_799_999
"""The end of the year 9999: what a date can say."""


class NewEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened, to be sent. Every value is checked when it is made.

    Raises InvalidName, InvalidOption, PayloadInvalid, PayloadTooLarge.
    """

    type: str
    """What happened: `towpath.<noun>.<what>`."""
    key: str
    """To what. Events of one key arrive in order; it is also their CloudEvents subject."""
    data: bytes
    """The particulars, as JSON."""
    source: str = "towpath"
    id: str = msgspec.field(default_factory=new_job_id)
    """The same however often it is sent: receivers drop what they have seen."""
    at: int = msgspec.field(default_factory=wall_ms)
    """When it happened, in ms since 1970."""

    def __post_init__(self) -> None:
        event_id(self.id)
        event_key(self.key)
        _matching("type", self.type, _TYPE, _TYPE_RULE)
        _matching("source", self.source, _SOURCE, _SOURCE_RULE)
        if not isinstance(self.at, int) or not 0 <= self.at <= _LATEST:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
            raise InvalidOption("at", self.at, rule="must be milliseconds since 1970")
        _check_json(self.data)


class OutboxEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event as it stands in the outbox, for one sink."""

    seq: int
    """Its place: of one key the lower goes first."""
    id: str
    type: str
    source: str
    key: str
    data: bytes
    at: int
    attempts: int = 0
    """How often the sink did not take it while it took others."""

    def is_whole(self) -> bool:
        """Whether it can be sent: not if somebody has spoilt its row."""
        try:
            return bool(self.encoded())
        except (TypeError, ValueError, OverflowError):
            return False

    def encoded(self) -> bytes:
        """The event as CloudEvents has it; the same bytes every time."""
        return msgspec.json.encode(
            _CloudEvent(
                specversion="1.0",
                id=self.id,
                source=self.source,
                type=self.type,
                subject=self.key,
                time=instant(self.at),
                datacontenttype="application/json",
                data=msgspec.Raw(self.data),
            )
        )


class _CloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    specversion: str
    id: str
    source: str
    type: str
    subject: str
    time: datetime
    datacontenttype: str
    data: msgspec.Raw


def _matching(what: str, value: str, pattern: re.Pattern[str], rule: str) -> None:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise InvalidOption(what, value, rule=rule)


def _check_json(data: bytes) -> None:
    if not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise InvalidOption("data", type(data).__name__, rule="must be JSON as bytes")
    if len(data) > LARGEST_DATA:
        raise PayloadTooLarge("data", len(data), limit=LARGEST_DATA)
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise PayloadInvalid("data", f"is not JSON: {error}") from error


# ── sinks: what a courier asks of one, and what it answers ───────────────────────────────


class Refusal(msgspec.Struct, frozen=True):
    """The sink will never take this event: it is set aside, and those behind it go on."""

    reason: str


class Postponed(msgspec.Struct, frozen=True):
    """The sink did not take this event now; those of its key behind it were not sent either."""

    reason: str
    after: Duration = ZERO
    """How long the sink asks to be left alone."""


class Behind(msgspec.Struct, frozen=True):
    """The event was not sent: an earlier event of its key was not accepted, or the sink is
    unreachable.
    """


Outcome = None | Refusal | Postponed | Behind
"""None = the sink has it, for good."""


class Sink(Protocol):
    """Takes events, at least once each. One send at a time; several processes take turns."""

    @property
    def name(self) -> str:
        """What its rows in the outbox are under."""
        ...

    async def send(self, events: Sequence[OutboxEvent]) -> Sequence[Outcome]:
        """Send *events*, those of one key strictly one behind the other; the outcome of each.

        An event is never sent while an earlier one of its key may still fail. Raises
        SinkUnreachable where nothing can be said of any of them: all are sent again later. It may
        be cancelled at any point; what it does meanwhile is bounded in time.
        """
        ...

    async def close(self) -> None:
        """Let go of connections; another send makes them anew."""
        ...
