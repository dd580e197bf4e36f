"""How an attempt ends: from what the handler did, or was done to it, to a settlement."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from random import random
from typing import Any, cast

from towpath.clock import ZERO, Duration, duration_ms, instant, milliseconds, spelled
from towpath.engine.codec import settlement_item
from towpath.engine.model import Bury, Complete, Fail, Lease, Release, Renew, Settlement
from towpath.engine.options import LARGEST_PAYLOAD, QueueOptions
from towpath.errors import PayloadInvalid, PayloadTooLarge
from towpath.worker.attempt import Attempt, StopReason
from towpath.worker.context import AttemptEnd, Discard, HandOver, Retry, Snooze
from towpath.worker.handler import Handler

LONGEST_MESSAGE = 1000
_ANY = QueueOptions(max_payload=LARGEST_PAYLOAD)
_STANDARD = (sysconfig.get_path("stdlib"), "<frozen ")


class ChildFailed(Exception):
    """A handler failed in its own process, which says how."""

    def __init__(self, error: str, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.error, self.reason, self.trace = error, reason, trace
        if trace:
            self.add_note(f"In the handler's process:\n{trace}")


class ChildDiscarded(Discard):
    """No other attempt can help, says the process; *error* is why."""

    def __init__(self, error: str, reason: str) -> None:
        super().__init__(reason)
        self.error = error


def ending(attempt: Attempt, raised: BaseException) -> Settlement:
    """The settlement for an attempt whose handler raised."""
    lease, raised = attempt.lease, only_leaf(raised)
    attempt.error, attempt.raised = _error(raised), _tellable(raised)
    match raised:
        case Snooze():
            return Release(lease, _snoozed(attempt, raised.until))
        case HandOver():
            return Renew(lease, milliseconds(duration_ms("lease", raised.lease)))
        case Discard():
            return Bury(lease, words_of(raised.reason) or "discarded by its handler")
        case PayloadInvalid() | PayloadTooLarge() if attempt.ctx is None:
            return Bury(lease, str(raised))
        case Retry():
            reason = words_of(raised.reason) or "another attempt was asked for"
            return failed(attempt, reason, _checked(raised.after))
        case _:
            told = raised.reason if isinstance(raised, ChildFailed) else reason_of(raised)
            return failed(attempt, told)


def _error(raised: BaseException) -> str:
    """What it is called in log lines; a verdict by its own name, whoever derived from it."""
    match raised:
        case ChildFailed() | ChildDiscarded():
            return raised.error
        case Snooze():
            return "Snooze"
        case HandOver():
            return "HandOver"
        case Discard():
            return "Discard"
        case Retry():
            return "Retry"
        case _:
            return type(first_leaf(raised)[0]).__qualname__


def _tellable(raised: BaseException) -> BaseException | None:
    """What belongs in a log line with its traceback: neither verdicts nor what quotes a payload."""
    match raised:
        case AttemptEnd() | PayloadInvalid() | PayloadTooLarge() | ChildFailed(trace=""):
            return None
        case _:
            return raised


def stopped(attempt: Attempt) -> Settlement | None:
    """The settlement for an attempt that had to end before its handler; None = nothing to say."""
    match attempt.stop:
        case StopReason.LOST:
            return None
        case StopReason.CANCELLED | StopReason.STOPPING | StopReason.REMOVED | StopReason.CROWDED:
            return Release(attempt.lease)
        case StopReason.TIMED_OUT:
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
    try:
        delay = policy.delay(lease.attempt, random())  # noqa: S311 -- jitter
    except Exception:  # noqa: BLE001 -- a policy of the user's own; the queue has one, too
        return Fail(lease, reason)
    return Bury(lease, reason) if delay is None else Fail(lease, reason, delay)


def own_limit(attempt: Attempt) -> int | None:
    """How often the job may be delivered, if job or handler say so; else the queue decides."""
    handler = attempt.handler
    return attempt.lease.max_attempts or (handler.options.max_attempts if handler else None)


def time_limit_reason(attempt: Attempt) -> str:
    limit = attempt.handler.options.time_limit if attempt.handler else ZERO
    return f"TimeLimit: the handler took longer than {spelled(limit)}"


def reason_of(error: BaseException) -> str:
    """An exception in one line: class, words, and where it came from; of a group, the first."""
    error, more = first_leaf(error)
    words = words_of(error)
    name, rest = type(error).__qualname__, f", and {more} more" if more else ""
    return f"{name}: {words}{_where(error)}{rest}" if words else f"{name}{_where(error)}{rest}"


def words_of(value: object) -> str:
    """*value* as text that can be kept, whatever it is and whatever its own methods do."""
    try:
        # Not `text.encode`: a class of the user's own may have another one.
        text = str.__str__(value if isinstance(value, str) else str(value))
    except BaseException:  # noqa: BLE001 -- an exception's own __str__ is user code and may raise too
        return "(its message can't be read)"
    return writable(text[:LONGEST_MESSAGE])


def sendable(settlement: Settlement) -> Settlement:
    """*settlement*, or a failure that says why it can't be sent: it must not end the worker."""
    if isinstance(settlement, Complete) and type(settlement.result) is bytes:
        return settlement
    try:
        settlement_item(settlement, _ANY)
    except Exception as error:  # noqa: BLE001 -- what came from user code may be anything
        verb = type(settlement).__name__.lower()
        return Fail(
            settlement.lease, f"the attempt ended with an invalid {verb}: {words_of(error)}"
        )
    return settlement


def _checked(delay: Duration | None) -> Duration | None:
    """Raises InvalidOption: a class derived from Retry may have put anything there."""
    return None if delay is None else milliseconds(duration_ms("after", delay))


def _where(error: BaseException) -> str:
    """Its last line outside of the standard library, which is not where the mistake is."""
    last = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        is_standard = file.startswith(_STANDARD) and "site-packages" not in file
        if last is None or not is_standard:
            last = f" ({Path(file).name}:{line} in {frame.f_code.co_name})"
    return writable(last or "")


def first_leaf(error: BaseException) -> tuple[BaseException, int]:
    """The first exception in a group of them, and how many others there are."""
    more = 0
    while isinstance(error, BaseExceptionGroup):
        first, *others = cast("tuple[BaseException, ...]", error.exceptions)
        more += sum(map(_leaves, others))
        error = first
    return error, more


def _leaves(error: BaseException) -> int:
    if not isinstance(error, BaseExceptionGroup):
        return 1
    return sum(map(_leaves, cast("tuple[BaseException, ...]", error.exceptions)))


def only_leaf(error: BaseException) -> BaseException:
    """What a handler has raised: a verdict that is alone in a group of tasks is a verdict."""
    leaf, more = first_leaf(error)
    return leaf if isinstance(leaf, AttemptEnd) and not more else error


def writable(text: str) -> str:
    """*text* as UTF-8 can have it: names of files may hold what it can't."""
    return str.encode(text, errors="backslashreplace").decode()


def _snoozed(attempt: Attempt, until: datetime | Duration) -> Duration:
    if isinstance(until, datetime):
        until = max(until - server_now(attempt), ZERO)
    return milliseconds(duration_ms("until", until))


def server_now(attempt: Attempt) -> datetime:
    """About what the server's clock says: what it said with the job, and how long ago that was."""
    return instant(attempt.taken_ms) + milliseconds(attempt.held * 1000)


def handler_missing(lease: Lease, known: Iterable[Handler[Any, Any, Any]]) -> Settlement:
    """The job names a handler that this worker does not have."""
    wanted = lease.headers.get("handler")
    asked = f"handler {wanted!r}" if wanted else "a handler without a name"
    names = [handler.named or f"{handler.name} (without a name)" for handler in known]
    have = ", ".join(names) or "none"
    return Bury(lease, f"HandlerNotFound: the job asks for {asked}; this worker has: {have}")
