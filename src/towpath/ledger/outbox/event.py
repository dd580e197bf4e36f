"""Events of the outbox, and the interface of sinks.

Events are CloudEvents 1.0 in structured mode: everything is in one JSON document, so that no sink
can lose the id or the type by dropping headers.
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
"""In bytes. The limit keeps a batch in memory small; larger data must be sent as a reference."""
_TYPE = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
_TYPE_RULE = "1 to 128 of a-z, 0-9, '.', '_', '-', as in towpath.review.completed"
_SOURCE = re.compile(r"[!-~]{1,512}")
_SOURCE_RULE = "must be a URI reference of 1 to 512 printable ASCII characters"
_LATEST = 253_402_300_799_999
"""The end of the year 9999, the latest time that a datetime can hold."""


class NewEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event to be sent. Every value is checked when the event is created.

    Raises InvalidName, InvalidOption, PayloadInvalid, PayloadTooLarge.
    """

    type: str
    """What happened: `towpath.<noun>.<what>`."""
    key: str
    """What it happened to; also the CloudEvents subject. Events of one key arrive in order."""
    data: bytes
    """The details, as JSON."""
    source: str = "towpath"
    id: str = msgspec.field(default_factory=new_job_id)
    """The same each time the event is sent, so that receivers can ignore repetitions."""
    at: int = msgspec.field(default_factory=wall_ms)
    """When it happened, in ms since 1970."""

    def __post_init__(self) -> None:
        event_id(self.id)
        event_key(self.key)
        _check_pattern("type", self.type, _TYPE, _TYPE_RULE)
        _check_pattern("source", self.source, _SOURCE, _SOURCE_RULE)
        if not isinstance(self.at, int) or not 0 <= self.at <= _LATEST:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
            raise InvalidOption("at", self.at, rule="must be milliseconds since 1970")
        _check_json(self.data)


class OutboxEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the outbox: an event for one sink."""

    seq: int
    """The number of the row; of the events of one key, the lower number is sent first."""
    id: str
    type: str
    source: str
    key: str
    data: bytes
    at: int
    attempts: int = 0
    """How often the sink failed to accept it while it accepted others."""

    def is_whole(self) -> bool:
        """Whether the event can be encoded; False if its row was edited by hand and is invalid."""
        try:
            return bool(self.encoded())
        except (TypeError, ValueError, OverflowError):
            return False

    def encoded(self) -> bytes:
        """Encode the event as a CloudEvent; the same bytes every time."""
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


def _check_pattern(what: str, value: str, pattern: re.Pattern[str], rule: str) -> None:
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


# ── sinks, and the outcomes of sends ─────────────────────────────────────────────────────


class Refusal(msgspec.Struct, frozen=True):
    """The sink will never accept this event. It is set aside; later events of its key are sent."""

    reason: str


class Postponed(msgspec.Struct, frozen=True):
    """The sink did not accept this event now; later events of its key were not sent either."""

    reason: str
    after: Duration = ZERO
    """The minimum pause that the sink asks for."""


class Behind(msgspec.Struct, frozen=True):
    """The event was not sent: an earlier event of its key was not accepted, or the sink is
    unreachable.
    """


Outcome = None | Refusal | Postponed | Behind
"""None = the sink has stored the event."""


class Sink(Protocol):
    """Receives events, each at least once. Only one send runs at a time, over all processes."""

    @property
    def name(self) -> str:
        """The name of the sink in the rows of the outbox."""
        ...

    async def send(self, events: Sequence[OutboxEvent]) -> Sequence[Outcome]:
        """Send *events*, those of one key strictly one after the other. Returns their outcomes.

        An event must not be sent while an earlier one of its key may still fail. Raises
        SinkUnreachable if the outcome of every event is unknown: all are sent again later. The send
        may be cancelled at any point, and must then end within a bounded time.
        """
        ...

    async def close(self) -> None:
        """Close the connections; another send opens new ones."""
        ...
