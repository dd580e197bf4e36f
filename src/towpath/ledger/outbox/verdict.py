"""What the outcomes of a batch mean: for its events, and for the sink."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from towpath.clock import ZERO, Duration
from towpath.ledger.outbox.event import Event
from towpath.ledger.outbox.sinks.port import Later, Outcome, Refusal

_SPOILT = Refusal("its row can't be read")


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a batch. Events that are not named are sent again."""

    taken: list[Event] = []
    refused: list[tuple[Event, Refusal]] = []
    """Set aside for good."""
    delayed: list[tuple[Event, Later]] = []
    """Not taken while others were: each keeps its key waiting."""
    reason: str = ""
    """Why nothing at all was taken or refused: the sink is away. Empty = it is there."""
    after: Duration = ZERO
    """How long it asks to be left alone."""


def judge(events: Sequence[Event], outcomes: Sequence[Outcome], *, attempts: int) -> Verdict:
    """What *outcomes* mean for *events*, one each.

    A failure counts against an event only where others got through: as long as none does, it is
    the sink that fails, and however long that lasts, nothing is given up. The last of *attempts*
    ends as a refusal, so that no event can hold up its key for ever.
    """
    answered = list(zip(events, outcomes, strict=True))
    taken = [event for event, outcome in answered if outcome is None]
    refused = [(event, outcome) for event, outcome in answered if isinstance(outcome, Refusal)]
    later = [(event, outcome) for event, outcome in answered if isinstance(outcome, Later)]
    if not taken and not refused:
        reason = later[0][1].reason if later else "nothing was sent"
        return Verdict(reason=reason, after=max((it.after for _, it in later), default=ZERO))
    last = [(event, _given_up(it, attempts)) for event, it in later if _is_last(event, attempts)]
    delayed = [(event, it) for event, it in later if not _is_last(event, attempts)]
    return Verdict(taken=taken, refused=refused + last, delayed=delayed)


def spoilt(events: Sequence[Event]) -> Verdict | None:
    """Refuse the events that somebody has spoilt by hand; None if all are whole."""
    broken = [(event, _SPOILT) for event in events if not event.is_whole()]
    return Verdict(refused=broken) if broken else None


def _is_last(event: Event, attempts: int) -> bool:
    return event.attempts + 1 >= attempts


def _given_up(outcome: Later, attempts: int) -> Refusal:
    return Refusal(f"not taken in {attempts} attempts: {outcome.reason}")
