"""The response to a call, and what it means for the job: done, retry later, or give up.

This is the only table of HTTP statuses: other modules decide by `Next`, never by numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum

from towpath.calls.errors import AnswerRefused, RefusedForGood
from towpath.clock import ZERO, Duration, days, instant, seconds, wall_ms

_LONGEST_WAIT = days(1)
"""A longer Retry-After is shortened to this."""

_LATER = {408, 425, 429}
_NEVER = {400, 413, 414, 415, 422, 431}
_OF_THE_CONTENT = {400, 410, 413, 415, 422}
"""The content itself is wrong: no other receiver of the same kind would accept it either. 414 and
431 are missing because they are about URL and headers."""


@dataclass(frozen=True, slots=True, repr=False)
class CallAnswer:
    """The complete answer of a receiver. Its repr leaves out the body, which must not be logged."""

    status: int
    headers: Mapping[str, str]
    """By name in lower case; values of repeated headers are joined by commas."""
    body: bytes
    """The bytes as they were sent, not decompressed."""

    def __repr__(self) -> str:
        return f"CallAnswer(status={self.status}, {len(self.body)} bytes)"


_CREATED = 201


def created(status: int) -> bool:
    """Whether the call created something."""
    return status == _CREATED


class Next(StrEnum):
    """What to do after an answer."""

    DONE = "done"
    """The receiver accepted the call."""
    LATER = "later"
    """The receiver did not accept the call now; the same call may succeed later."""
    REFUSED = "refused"
    """The receiver refused the call because of its own state: a wrong key, a wrong path, a
    deployment in progress. The call may succeed once its operator has changed that."""
    NEVER = "never"
    """The receiver will never accept this call: its content is wrong or too large."""
    MOVED = "moved"
    """The receiver has another URL now. Redirects are not followed."""
    GONE = "gone"
    """The receiver wants no more calls to this URL at all."""
    ACCEPTED = "accepted"
    """The receiver accepted the call and continues the work on its own."""
    ELSEWHERE = "elsewhere"
    """This receiver did not accept the call; if there are several, another one may."""


FINAL = frozenset({Next.NEVER, Next.MOVED, Next.GONE})
"""After these the same call would end the same way."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do next, and the minimum wait that the receiver asked for."""

    next: Next
    after: Duration = ZERO


def advice(answer: CallAnswer, *, now: datetime | None = None) -> Advice:
    """Return what to do after *answer*, by its status.

    2xx is done; 408, 425, 429 and 5xx are later; 400, 413, 414, 415, 422 and 431 are never; 3xx is
    moved, 410 is gone, everything else is refused. Later and refused respect the header
    Retry-After, up to a day.
    """
    status = answer.status
    if 200 <= status < 300:
        return Advice(Next.DONE)
    if 300 <= status < 400:
        return Advice(Next.MOVED)
    if status == 410:
        return Advice(Next.GONE)
    if status in _NEVER:
        return Advice(Next.NEVER)
    after = _retry_after(answer, now or instant(wall_ms()))
    is_later = status in _LATER or status >= 500
    return Advice(Next.LATER if is_later else Next.REFUSED, after)


def advice_among(answer: CallAnswer, *, now: datetime | None = None) -> Advice:
    """Like `advice`, for one of several receivers: is this receiver at fault, or the content?

    202 is accepted, other 2xx is done; 400, 410, 413, 415 and 422 are never, 5xx is later; 3xx and
    every other 4xx are elsewhere. With elsewhere, Retry-After counts if no receiver accepts.
    """
    if answer.status == 202:
        return Advice(Next.ACCEPTED)
    advised = advice(answer, now=now)
    if advised.next is Next.DONE or answer.status >= 500:
        return advised
    if answer.status in _OF_THE_CONTENT:
        return Advice(Next.NEVER)
    return Advice(Next.ELSEWHERE, advised.after)


def require_taken(
    answer: CallAnswer,
    who: str,
    *,
    asked: Advice | None = None,
    final: Collection[Next] = FINAL,
    why: str = "",
) -> None:
    """Raise RefusedForGood if the advice for *answer* is in *final*, AnswerRefused for any other
    failure. *asked* replaces the result of `advice`; *why* becomes part of the message.
    """
    advised = asked or advice(answer)
    if advised.next is not Next.DONE:
        kind = RefusedForGood if advised.next in final else AnswerRefused
        raise kind(who, answer.status, why, after=advised.after, asked=advised.next)


def _retry_after(answer: CallAnswer, now: datetime) -> Duration:
    """Return the wait in the header Retry-After (seconds or a date); zero if it is invalid."""
    text = answer.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdecimal():
        return min(seconds(int(text[:9])), _LONGEST_WAIT)
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return ZERO
    aware = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return min(max(aware - now, ZERO), _LONGEST_WAIT)
