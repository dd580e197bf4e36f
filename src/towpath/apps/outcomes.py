"""What the end of an outgoing call means for the job that made it.

What a status asks for is in `calls/advice.py`; here is what a job does about it.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import contextmanager

from towpath.calls.advice import Next, advice
from towpath.calls.answer import Answer
from towpath.calls.errors import AnswerTooLarge, CallFailed, CallRefused
from towpath.clock import ZERO
from towpath.worker.verdicts import Discard, Retry

FINAL = frozenset({Next.NEVER, Next.MOVED, Next.GONE})
"""After these another attempt would end the same way."""


@contextmanager
def calling(who: str) -> Generator[None]:
    """A call that brought no answer as a verdict: Retry for a failed one, Discard for the rest.

    An answer too large to be read is judged by its status, if that is no success.
    """
    try:
        yield
    except CallFailed as failed:
        raise Retry(str(failed)) from failed
    except CallRefused as refused:
        raise Discard(str(refused)) from refused
    except AnswerTooLarge as large:
        require_taken(Answer(large.status, {}, b""), who)
        raise Discard(str(large)) from large


def require_taken(
    answer: Answer, who: str, *, final: Collection[Next] = FINAL, why: str = ""
) -> None:
    """Raises Discard for an answer that asks for one of *final*, Retry for any other that is no
    success. *why* becomes part of the reason. Retry-After is kept to.
    """
    asked = advice(answer)
    if asked.next is Next.DONE:
        return
    reason = f"{who} answered {answer.status}{f': {why}' if why else ''}"
    if asked.next in final:
        raise Discard(reason)
    raise Retry(reason, after=asked.after if asked.after > ZERO else None)
