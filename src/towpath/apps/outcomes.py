"""How an attempt ends after an outgoing call failed or was refused.

`calls/answer.py` says what a status asks the caller to do; here, that becomes Retry or Discard.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from towpath.calls.answer import CallAnswer, require_taken
from towpath.calls.errors import AnswerRefused, AnswerTooLarge, CallFailed, CallRefused
from towpath.clock import ZERO
from towpath.errors import RetryAdvice
from towpath.worker.context import Discard, Retry


@contextmanager
def calling(who: str) -> Generator[None]:
    """Turn errors of calls into Discard if a repeat can't help, else into Retry, which respects a
    Retry-After header.

    Of an answer that is too large to read, the status decides, unless it is a success.
    """
    try:
        with _judge_by_status(who):
            yield
    except (AnswerRefused, AnswerTooLarge, CallFailed, CallRefused) as error:
        if error.retry is RetryAdvice.NEVER:
            raise Discard(str(error)) from error
        after = error.after if isinstance(error, AnswerRefused) else ZERO
        raise Retry(str(error), after=after if after > ZERO else None) from error


@contextmanager
def _judge_by_status(who: str) -> Generator[None]:
    try:
        yield
    except AnswerTooLarge as large:
        require_taken(CallAnswer(large.status, {}, b""), who)
        raise
