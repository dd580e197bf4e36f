"""The interface to a reviewer, and how its answer is read.

An answer that is no review raises Retry, because the next one may be a review.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec

from towpath.apps.reviews.errors import ReviewInvalid
from towpath.apps.reviews.model import Review, ReviewTask, read_review
from towpath.worker.context import Context, Retry


class Reviewer(Protocol):
    """Reviews tasks."""

    async def review(self, task: ReviewTask, ctx: Context) -> Review:
        """The review of *task*.

        Raises Retry if another attempt may help, Discard if none can. If it is cancelled, it ends
        all that it has begun within two seconds.
        """
        ...


def printed(output: bytes) -> Review:
    """The review that a program printed or an endpoint answered: JSON, or plain text."""
    with _as_retry():
        return read_review(output)


def returned(value: Any) -> Review:
    """The review that a function returned: a Review, its text, or its fields."""
    with _as_retry():
        match value:
            case Review():
                return value
            case str():
                return read_review(value.encode(errors="replace"))
            case dict():
                return read_review(_encode(value))
            case _:
                kind = type(value).__name__
                raise ReviewInvalid("review", f"must be a Review, text or a dict, not {kind}")


def _encode(fields: Any) -> bytes:
    try:
        return msgspec.json.encode(fields)
    except (TypeError, ValueError, RecursionError) as error:
        raise ReviewInvalid("review", f"can't be written as JSON: {error}") from error


@contextmanager
def _as_retry() -> Generator[None]:
    try:
        yield
    except ReviewInvalid as error:
        raise Retry(f"ReviewInvalid: {error}") from error
