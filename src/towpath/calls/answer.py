"""The response to a call, and what it means for the job: done, retry later, or give up.

This is the one table of statuses. Whoever calls decides by its words, never by numbers.
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
"""A receiver may ask for patience, not for a year of it."""

_LATER = {408, 425, 429}
_NEVER = {400, 413, 414, 415, 422, 431}
_OF_THE_CONTENT = {400, 410, 413, 415, 422}
"""What no other receiver of the same kind would take: 414 and 431 are about URL and headers."""


@dataclass(frozen=True, slots=True, repr=False)
class CallAnswer:
    """The answer of a receiver, whole. Shown without its content, which belongs in no log."""

    status: int
    headers: Mapping[str, str]
    """By name in lower case; several of one name are joined by commas."""
    body: bytes
    """As it was sent: nothing is decompressed."""

    def __repr__(self) -> str:
        return f"CallAnswer(status={self.status}, {len(self.body)} bytes)"


_CREATED = 201


def created(status: int) -> bool:
    """Whether the call has made something that was not there before."""
    return status == _CREATED


class Next(StrEnum):
    """What to do after an answer."""

    DONE = "done"
    """It was taken."""
    LATER = "later"
    """It was not taken now; the same call may be taken later."""
    REFUSED = "refused"
    """It was not taken as the receiver is now: a key, a path, a deployment that goes on. Somebody
    may change that."""
    NEVER = "never"
    """It was not taken, and never will be: what was sent is wrong, or too large."""
    MOVED = "moved"
    """The receiver is somewhere else. Redirects are not followed."""
    GONE = "gone"
    """The receiver wants no more calls to this URL, this one or any other."""
    ACCEPTED = "accepted"
    """It was taken, and the receiver goes on with it by itself."""
    ELSEWHERE = "elsewhere"
    """It was not taken here; where there are several receivers, another one may take it."""


FINAL = frozenset({Next.NEVER, Next.MOVED, Next.GONE})
"""After these the same call would end the same way."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do next, and how long to wait at least, if the receiver said so."""

    next: Next
    after: Duration = ZERO


def advice(answer: CallAnswer, *, now: datetime | None = None) -> Advice:
    """What the receiver's answer asks for, by its status.

    2xx is done; 408, 425, 429 and 5xx are later; 400, 413, 414, 415, 422 and 431 are never; 3xx is
    moved, 410 gone, all else refused. For later and refused the Retry-After counts, up to a day.
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
    """The same for a receiver that is one of several: whether it, or what it was sent, is at fault.

    202 is accepted, other 2xx is done; 400, 410, 413, 415 and 422 are never, 5xx is later; 3xx and
    every other 4xx are elsewhere. Their Retry-After counts where no other receiver takes it.
    """
    if answer.status == 202:
        return Advice(Next.ACCEPTED)
    told = advice(answer, now=now)
    if told.next is Next.DONE or answer.status >= 500:
        return told
    if answer.status in _OF_THE_CONTENT:
        return Advice(Next.NEVER)
    return Advice(Next.ELSEWHERE, told.after)


def require_taken(
    answer: CallAnswer,
    who: str,
    *,
    asked: Advice | None = None,
    final: Collection[Next] = FINAL,
    why: str = "",
) -> None:
    """Raise RefusedForGood for an answer that asks for one of *final*, AnswerRefused for any other
    that is no success. *asked* replaces `advice`, *why* becomes part of the message.
    """
    told = asked or advice(answer)
    if told.next is not Next.DONE:
        kind = RefusedForGood if told.next in final else AnswerRefused
        raise kind(who, answer.status, why, after=told.after, asked=told.next)


def _retry_after(answer: CallAnswer, now: datetime) -> Duration:
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
