"""What a courier asks of a sink, and what a sink answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from towpath.clock import ZERO, Duration
from towpath.ledger.outbox.event import Event


class Refusal(msgspec.Struct, frozen=True):
    """The sink will never take this event: it is set aside, and those behind it go on."""

    reason: str


class Later(msgspec.Struct, frozen=True):
    """The sink did not take this event now; those of its key behind it were not sent either."""

    reason: str
    after: Duration = ZERO
    """How long the sink asks to be left alone."""


class Behind(msgspec.Struct, frozen=True):
    """The event was not sent: an earlier one of its key was not taken, or the sink is away."""


Outcome = None | Refusal | Later | Behind
"""None = the sink has it, for good."""


class Sink(Protocol):
    """Takes events, at least once each. One send at a time; several processes take turns."""

    @property
    def name(self) -> str:
        """What its rows in the outbox are under."""
        ...

    async def send(self, events: Sequence[Event]) -> Sequence[Outcome]:
        """Send *events*, those of one key strictly one behind the other; the outcome of each.

        An event is never sent while an earlier one of its key may still fail. Raises
        SinkUnreachable where nothing can be said of any of them: all are sent again later. It may
        be cancelled at any point; what it does meanwhile is bounded in time.
        """
        ...

    async def close(self) -> None:
        """Let go of connections; another send makes them anew."""
        ...
