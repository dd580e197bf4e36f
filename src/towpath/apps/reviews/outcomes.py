"""What the end of an outgoing call means for the job that made it."""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import contextmanager

from towpath.calls.advice import advice
from towpath.calls.answer import Answer
from towpath.calls.errors import AnswerTooLarge, CallFailed, CallRefused
from towpath.clock import ZERO
from towpath.worker.verdicts import Discard, Retry

HOPELESS = frozenset({400, 410, 413, 415, 422})
"""What was sent can't be taken. Other refusals may be a deployment that goes on, or a token that
somebody is about to replace."""


@contextmanager
def calling() -> Generator[None]:
    """A call that brought no answer as a verdict: Retry for a failed one, Discard for the rest."""
    try:
        yield
    except CallFailed as failed:
        raise Retry(str(failed)) from failed
    except (CallRefused, AnswerTooLarge) as refused:
        raise Discard(str(refused)) from refused


def require_taken(
    answer: Answer, who: str, *, hopeless: Collection[int] = HOPELESS, why: str = ""
) -> None:
    """Raises Retry or Discard for an answer that is no success, *why* being part of the reason.

    A redirect is one that is not followed: Discard. Retry-After is kept to.
    """
    if 200 <= answer.status < 300:
        return
    reason = f"{who} answered {answer.status}{f': {why}' if why else ''}"
    if answer.status in hopeless or 300 <= answer.status < 400:
        raise Discard(reason)
    after = advice(answer).after
    raise Retry(reason, after=after if after > ZERO else None)
