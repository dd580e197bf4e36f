"""Differences that are known and not yet mended. Each is a switch: False once it is mended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.model.values import Counts, Settle

RENEWED_AND_ENDED_KEEPS_ITS_LOCK = False
"""exchange([Renew(l), Complete(l)]) leaves the key `lock:<id>` until its own expiry."""

OLDEST_LOOKS_AT_HEADS_ONLY = True
"""counts().oldest is not the age of the oldest ready job if that is not first of its priority."""

PAST_DUE_BREAKS_THE_RECORD = False
"""submit(due=<now or earlier>) with nothing else: job() and list() raise AttributeError."""

UNNAMED_REPEAT_IS_NOT_SEEN = False
"""submit_many([job]) twice, made by new_job() without an id: the second overwrites the first."""

FAILED_NOW_IS_NOT_YET_DUE_IN_ITS_EXCHANGE = True
"""exchange([Fail(l, delay=0)], count=1) does not promote the job, a fail and a claim do."""

TRIM_COUNTS_HEADS_THAT_PARK = True
"""trim() counts dead heads that it leaves, as they park their lanes: it never answers 0."""

REFUSED_SUBMIT_TAKES_OUT_THE_OUTLIVED = False
"""A submit refused as QUEUE_FULL takes a job with that id, kept long enough, out of `done`: its
record is then never trimmed."""


def answer(verb: str, found: Any, wanted: Any) -> Any:
    """*found* without what is forgiven."""
    counted = verb == "trim" and isinstance(found, int) and isinstance(wanted, int)
    return wanted if TRIM_COUNTS_HEADS_THAT_PARK and counted and found > wanted else found


def settlements(asked: list[Settle]) -> list[Settle]:
    """*asked* without what is forgiven."""
    if RENEWED_AND_ENDED_KEEPS_ITS_LOCK:
        ended = {it.id for it in asked if it.verb != "renew"}
        asked = [it for it in asked if it.verb != "renew" or it.id not in ended]
    if FAILED_NOW_IS_NOT_YET_DUE_IN_ITS_EXCHANGE:
        asked = [_failed_later(it) if it.verb == "fail" else it for it in asked]
    return asked


def _failed_later(it: Settle) -> Settle:
    return replace(it, rest=(it.rest[0] or 1, *it.rest[1:]))


def counts(found: Counts, wanted: Counts) -> Counts:
    """*found* without what is forgiven."""
    younger = (found.oldest or 0) < (wanted.oldest or 0)
    return replace(found, oldest=wanted.oldest) if OLDEST_LOOKS_AT_HEADS_ONLY and younger else found
