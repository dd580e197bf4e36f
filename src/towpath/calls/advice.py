"""What an answer asks for: nothing more, the same again later, or never again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum

from towpath.calls.answer import Answer
from towpath.clock import ZERO, Duration, days, instant, seconds, wall_ms

_LONGEST_WAIT = days(1)
"""A receiver may ask for patience, not for a year of it."""

_LATER = {408, 429}


class Next(StrEnum):
    """What to do after an answer."""

    DONE = "done"
    """It was taken."""
    GONE = "gone"
    """The receiver wants no more calls to this URL, this one or any other."""
    LATER = "later"
    """It was not taken now; the same call may be taken later."""
    NEVER = "never"
    """It was not taken, and never will be: wrong, forbidden, or somewhere else."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do next, and for `LATER` how long to wait at least, if the receiver said so."""

    next: Next
    after: Duration = ZERO


def advice(answer: Answer, *, now: datetime | None = None) -> Advice:
    """What the receiver's answer asks for, by its status.

    2xx is done, 410 gone; 408, 429 and 5xx are later, with the Retry-After of the answer up to a
    day. All else is never, redirects too: they are not followed.
    """
    if 200 <= answer.status < 300:
        return Advice(Next.DONE)
    if answer.status == 410:
        return Advice(Next.GONE)
    if answer.status in _LATER or answer.status >= 500:
        return Advice(Next.LATER, _retry_after(answer, now or instant(wall_ms())))
    return Advice(Next.NEVER)


def _retry_after(answer: Answer, now: datetime) -> Duration:
    """The wait that the answer asks for, in seconds or as a date; zero if it can't be read."""
    text = answer.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdecimal():
        return min(seconds(int(text[:9])), _LONGEST_WAIT)
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return ZERO
    aware = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return min(max(aware - now, ZERO), _LONGEST_WAIT)
