"""The interface to a forge for posting, and how an attempt ends if the forge refuses."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

import msgspec

from towpath.apps.outcomes import calling
from towpath.apps.reviews.model import Review, ReviewTask
from towpath.forges.client import ForgeClient
from towpath.worker.context import Discard


class Posted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a review can be read at its forge."""

    url: str = ""
    """Empty where the forge does not say."""
    existed: bool = False
    """An earlier attempt had posted it; this one added nothing."""


class Poster(Protocol):
    """Posts reviews to one forge."""

    async def post(self, task: ReviewTask, review: Review, *, key: str) -> Posted:
        """Post *review*, once per *key* if the forge shows what was posted before.

        Raises Retry for a failure that may pass (no answer, or a rate limit, after the time that it
        asks for), Discard for one that won't (no such pull request, a task of another host).
        """
        ...


@contextmanager
def as_posting(forge: ForgeClient, task: ReviewTask) -> Generator[None]:
    """Turn refusals of the forge into Retry or Discard. A task of another host is discarded: the
    same name may be another repository there.
    """
    if not task.is_from(forge.host):
        raise Discard(f"the task is not from {forge.host}, where its review would be posted")
    with calling(forge.name):
        yield
