"""How an attempt ends: from what the handler did, or what was done to it, to a settlement."""

from __future__ import annotations

import traceback
from datetime import datetime
from pathlib import Path
from random import random

from towpath.clock import ZERO, Duration, duration_ms, instant, milliseconds
from towpath.engine.model import Bury, Fail, Lease, Release, Settlement
from towpath.errors import PayloadInvalid, PayloadTooLarge
from towpath.worker.attempt import Attempt, Stop
from towpath.worker.context import claimed_ms
from towpath.worker.verdicts import Discard, Retry, Snooze

LONGEST_MESSAGE = 1000


class ChildFailed(Exception):
    """A handler failed in a process of its own, which says in words how."""

    def __init__(self, error: str, reason: str) -> None:
        super().__init__(reason)
        self.error, self.reason = error, reason


class ChildDiscarded(Discard):
    """No other attempt can help, says the process; *error* is why."""

    def __init__(self, error: str, reason: str) -> None:
        super().__init__(reason)
        self.error = error


def ending(attempt: Attempt, raised: BaseException) -> Settlement:
    """The settlement for an attempt whose handler raised."""
    lease = attempt.lease
    attempt.error = _error(raised)
    match raised:
        case Snooze():
            return Release(lease, _snoozed(attempt, raised.until))
        case Discard():
            return Bury(lease, raised.reason or "discarded by its handler")
        case PayloadInvalid() | PayloadTooLarge() if attempt.ctx is None:
            return Bury(lease, str(raised))
        case Retry():
            return failed(attempt, raised.reason or "another attempt was asked for", raised.after)
        case ChildFailed():
            return failed(attempt, raised.reason)
        case _:
            return failed(attempt, reason_of(raised))


def _error(raised: BaseException) -> str:
    """What it is called in log lines; a verdict by its own name, whoever derived from it."""
    match raised:
        case ChildFailed() | ChildDiscarded():
            return raised.error
        case Snooze():
            return "Snooze"
        case Discard():
            return "Discard"
        case Retry():
            return "Retry"
        case _:
            return type(raised).__qualname__


def stopped(attempt: Attempt) -> Settlement | None:
    """The settlement for an attempt that had to end before its handler; None = nothing to say."""
    match attempt.stop:
        case Stop.LOST:
            return None
        case Stop.CANCELLED | Stop.DRAINED:
            return Release(attempt.lease)
        case Stop.TIMED_OUT:
            attempt.error = "TimeLimit"
            return failed(attempt, time_limit_reason(attempt))
        case None:
            attempt.error = "CancelledError"
            return failed(attempt, "CancelledError: the handler cancelled itself")


def failed(attempt: Attempt, reason: str, delay: Duration | None = None) -> Settlement:
    """The attempt did not work: another one by the policy of the job, its handler or its queue."""
    lease, handler = attempt.lease, attempt.handler
    if handler is None:
        return Fail(lease, reason, delay)
    if (most := own_limit(attempt)) is not None and lease.attempt >= most:
        return Bury(lease, reason)
    policy = lease.retry or handler.options.retry
    if delay is not None or policy is None:
        return Fail(lease, reason, delay)
    delay = policy.delay(lease.attempt, random())  # noqa: S311 -- jitter
    return Bury(lease, reason) if delay is None else Fail(lease, reason, delay)


def own_limit(attempt: Attempt) -> int | None:
    """How often the job may be delivered, if job or handler say so; else the queue decides."""
    handler = attempt.handler
    return attempt.lease.max_attempts or (handler.options.max_attempts if handler else None)


def time_limit_reason(attempt: Attempt) -> str:
    limit = attempt.handler.options.time_limit if attempt.handler else ZERO
    return f"TimeLimit: the handler took longer than {limit}"


def reason_of(error: BaseException) -> str:
    """An exception in one line: class, words, and where it came from."""
    try:
        words = writable(str(error)[:LONGEST_MESSAGE])
    except Exception:  # noqa: BLE001 -- an exception's own __str__ is user code and may raise too
        words = "(its message can't be read)"
    last = traceback.extract_tb(error.__traceback__, limit=-1)
    where = "".join(f" ({Path(it.filename).name}:{it.lineno} in {it.name})" for it in last)
    name = type(error).__qualname__
    return f"{name}: {words}{where}" if words else f"{name}{where}"


def writable(text: str) -> str:
    """*text* as UTF-8 can have it: names of files may hold what it can't."""
    return text.encode(errors="backslashreplace").decode()


def _snoozed(attempt: Attempt, until: datetime | Duration) -> Duration:
    if isinstance(until, datetime):
        until = max(until - server_now(attempt), ZERO)
    return milliseconds(duration_ms("until", until))


def server_now(attempt: Attempt) -> datetime:
    """About what the server's clock says: the time of the claim and how long ago that was."""
    return instant(claimed_ms(attempt.lease)) + milliseconds(attempt.held * 1000)


def handler_missing(lease: Lease, known: list[str]) -> Settlement:
    """The job names a handler that this worker does not have."""
    wanted = lease.headers.get("handler")
    asked = f"handler {wanted!r}" if wanted else "a handler without a name"
    have = ", ".join(known) or "none"
    return Bury(lease, f"HandlerNotFound: the job asks for {asked}; this worker has: {have}")
