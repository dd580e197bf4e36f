"""How an attempt ends: the settlement for what the handler raised, or for why it was stopped."""

from __future__ import annotations

import sysconfig
import traceback
from datetime import datetime
from pathlib import Path
from random import random
from types import TracebackType
from typing import cast

import msgspec

from towpath.clock import ZERO, Duration, duration_ms, format_duration, instant, milliseconds
from towpath.engine.codec import settlement_item
from towpath.engine.explain import HANDLER_MISSING
from towpath.engine.model import Bury, Complete, Fail, Release, Renew, Settlement
from towpath.engine.options import LARGEST_PAYLOAD, QueueOptions
from towpath.engine.retry import RetryPolicy
from towpath.errors import PayloadInvalid, PayloadTooLarge
from towpath.telemetry.logs import scrub
from towpath.worker.attempt import Attempt, StopReason
from towpath.worker.context import AttemptEnd, Discard, HandOver, Retry, Snooze

LONGEST_MESSAGE = 1000
_ANY = QueueOptions(max_payload=LARGEST_PAYLOAD)
_STANDARD = (sysconfig.get_path("stdlib"), "<frozen ")
_INSTALLED = ("site-packages", "dist-packages")
_WORKER = str(Path(__file__).parent)
_OURS = str(Path(__file__).parents[1])


class ChildFailed(Exception):
    """A handler failed in its own process. The error and its reason come from there."""

    def __init__(self, error: str, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.error, self.reason, self.trace = error, reason, trace
        if trace:
            self.add_note(f"In the handler's process:\n{trace}")


class ChildDiscarded(Discard):
    """A handler in its own process discarded its job; *error* names the cause."""

    def __init__(self, error: str, reason: str) -> None:
        super().__init__(reason)
        self.error = error


def settlement_for_error(attempt: Attempt, raised: BaseException) -> Settlement:
    """Returns the settlement for an attempt whose handler raised *raised*."""
    lease, raised = attempt.lease, only_leaf(raised)
    attempt.error, attempt.raised = _error_name(raised), _loggable(raised)
    match raised:
        case Snooze():
            return Release(lease, _snooze_delay(attempt, raised.until))
        case HandOver():
            return Renew(lease, milliseconds(duration_ms("lease", raised.lease)))
        case ChildDiscarded(error="PayloadInvalid"):
            attempt.is_unfit = True
            return Bury(lease, words_of(raised.reason))
        case Discard():
            return Bury(lease, words_of(raised.reason) or "discarded by its handler")
        case PayloadInvalid() | PayloadTooLarge() if attempt.ctx is None:
            attempt.is_unfit = isinstance(raised, PayloadInvalid)
            return Bury(lease, str(raised))
        case Retry():
            reason = words_of(raised.reason) or "another attempt was asked for"
            settlement = settlement_for_failure(attempt, reason, _check_delay(raised.after))
            if raised.keep_turn and isinstance(settlement, Fail):
                return msgspec.structs.replace(settlement, keep_turn=True)
            return settlement
        case _:
            reason = raised.reason if isinstance(raised, ChildFailed) else reason_of(raised)
            return settlement_for_failure(attempt, reason, traceback=traceback_of(raised))


def _error_name(raised: BaseException) -> str:
    """Returns the name of the error for log lines. A subclass of Retry, Discard, Snooze or HandOver
    has the name of its base.
    """
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


def _loggable(raised: BaseException) -> BaseException | None:
    """Returns *raised* if its traceback may be logged; None for an AttemptEnd, and for errors whose
    message quotes a payload.
    """
    match raised:
        case AttemptEnd() | PayloadInvalid() | PayloadTooLarge() | ChildFailed(trace=""):
            return None
        case _:
            return raised


def settlement_for_stop(attempt: Attempt) -> Settlement | None:
    """Returns the settlement for an attempt that was stopped; None = there is nothing to settle."""
    match attempt.stop:
        case StopReason.LOST:
            return None
        case StopReason.CANCELLED | StopReason.STOPPING | StopReason.REMOVED | StopReason.CROWDED:
            return Release(attempt.lease)
        case StopReason.TIMED_OUT:
            attempt.error = "TimeLimit"
            return settlement_for_failure(attempt, time_limit_reason(attempt))
        case None:
            attempt.error = "CancelledError"
            return settlement_for_failure(attempt, "CancelledError: the handler cancelled itself")


def settlement_for_failure(
    attempt: Attempt, reason: str, delay: Duration | None = None, traceback: str = ""
) -> Settlement:
    """Returns the settlement for a failed attempt: a retry by the policy of the job, of its handler
    or of its queue, or Bury after the last one.
    """
    lease, handler = attempt.lease, attempt.handler
    if handler is None:
        return Fail(lease, reason, delay, traceback)
    if (most := own_limit(attempt)) is not None and lease.attempt >= most:
        return Bury(lease, reason, traceback)
    policy = lease.retry or handler.options.retry
    if delay is not None or policy is None:
        return Fail(lease, reason, delay, traceback)
    try:
        delay = policy.delay(lease.attempt, random())  # noqa: S311 -- jitter
    except Exception:  # noqa: BLE001 -- user code; without a delay, the queue's policy is used
        return Fail(lease, reason, traceback=traceback)
    if delay is None:
        return Bury(lease, reason, traceback)
    return Fail(lease, reason, delay, traceback)


def plan_next_try(attempt: Attempt, settlement: Settlement, options: QueueOptions) -> Settlement:
    """Returns *settlement* with the delay by the queue's policy, if job and handler have none. So
    the log can name the time of the next attempt, and a record uses its own count of attempts.
    """
    attempt.most = own_limit(attempt) or options.attempts_of(attempt.lease.lane)
    if not isinstance(settlement, Fail) or settlement.delay is not None:
        return settlement
    return with_next_try(settlement, options.retry, attempt=attempt.lease.attempt)


def with_next_try(
    failure: Fail, policy: RetryPolicy, *, attempt: int, most: int | None = None
) -> Fail | Bury:
    """Returns *failure* with the delay that *policy* sets after this number of attempts; Bury if
    *most* are made, or if the policy allows no other.
    """
    delay = policy.delay(attempt, random())  # noqa: S311 -- jitter
    if delay is None or (most is not None and attempt >= most):
        return Bury(failure.lease, failure.reason, failure.traceback)
    return msgspec.structs.replace(failure, delay=delay)


def own_limit(attempt: Attempt) -> int | None:
    """Returns how many attempts the job or its handler allows; None = the queue decides."""
    handler = attempt.handler
    return attempt.lease.max_attempts or (handler.options.max_attempts if handler else None)


def time_limit_reason(attempt: Attempt) -> str:
    limit = attempt.handler.options.time_limit if attempt.handler else ZERO
    return f"TimeLimit: the handler took longer than {format_duration(limit)}"


def reason_of(error: BaseException) -> str:
    """Returns *error* in one line: class, message, and where it was raised; of an exception group,
    the first exception.
    """
    error, more = first_leaf(error)
    words = words_of(error)
    name, rest = type(error).__qualname__, f", and {more} more" if more else ""
    return (
        f"{name}: {words}{_location_of(error)}{rest}"
        if words
        else f"{name}{_location_of(error)}{rest}"
    )


def words_of(value: object) -> str:
    """Returns *value* as text that can be stored. Never raises, even if its `__str__` does."""
    try:
        # `str.__str__`, because a subclass of str may override methods.
        text = str.__str__(value if isinstance(value, str) else str(value))
    except BaseException:  # noqa: BLE001 -- an exception's own __str__ is user code and may raise too
        return "(its message can't be read)"
    return scrub(writable(text[:LONGEST_MESSAGE]))


def traceback_of(error: BaseException) -> str:
    """Returns the frames and the message of *error*, without credentials and local variables.

    The worker's own frames before the handler are left out. Empty for an AttemptEnd, and for errors
    about a payload, because their messages quote it.
    """
    match error:
        case AttemptEnd() | PayloadInvalid() | PayloadTooLarge():
            return ""
        case ChildFailed():
            return scrub(error.trace)
        case _:
            lines = traceback.format_exception(type(error), error, _handler_frames(error))
            return scrub(writable("".join(lines)))


def _handler_frames(error: BaseException) -> TracebackType | None:
    """Returns the traceback of *error* from its first frame outside the worker."""
    first = error.__traceback__
    while first is not None and first.tb_frame.f_code.co_filename.startswith(_WORKER):
        first = first.tb_next
    return first or error.__traceback__


def ensure_sendable(settlement: Settlement) -> Settlement:
    """Returns *settlement*; or Fail if it can't be sent, because that must not end the worker."""
    if isinstance(settlement, Complete) and type(settlement.result) is bytes:
        return settlement
    if isinstance(settlement, Release) and settlement.unhandled == HANDLER_MISSING:
        return settlement  # saves the check: there may be many, and none has parts from user code
    try:
        settlement_item(settlement, _ANY)
    except Exception as error:  # noqa: BLE001 -- values from user code may be anything
        verb = type(settlement).__name__.lower()
        return Fail(
            settlement.lease, f"the attempt ended with an invalid {verb}: {words_of(error)}"
        )
    return settlement


def _check_delay(delay: Duration | None) -> Duration | None:
    """Returns *delay*. Raises InvalidOption: a subclass of Retry may have set any value."""
    return None if delay is None else milliseconds(duration_ms("after", delay))


def _location_of(error: BaseException) -> str:
    """Returns the last line of the user's own code: the mistake is rarely in a library.

    The user's code is the package of the handler, even if it is installed like a library, and every
    file that is not installed. Without a frame in such code, returns the last line of all.
    """
    last, own, package = "", "", None
    for frame, line in traceback.walk_tb(_handler_frames(error)):
        file = frame.f_code.co_filename
        last = f" ({Path(file).name}:{line} in {frame.f_code.co_name})"
        top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        package = package or top
        if top == package or not is_installed(file):
            own = last
    return writable(own or last)


def is_installed(file: str) -> bool:
    """Whether *file* belongs to Python, to Towpath or to an installed package."""
    if file.startswith((*_STANDARD, _OURS)):
        return True
    return any(f"/{folder}/" in file for folder in _INSTALLED)


def first_leaf(error: BaseException) -> tuple[BaseException, int]:
    """Returns the first exception of an exception group, and how many others it has."""
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
    """Returns the AttemptEnd if it is the only exception of a group; otherwise *error*."""
    leaf, more = first_leaf(error)
    return leaf if isinstance(leaf, AttemptEnd) and not more else error


def writable(text: str) -> str:
    """Returns *text* with what UTF-8 can't encode escaped: file names may have such characters."""
    return str.encode(text, errors="backslashreplace").decode()


def _snooze_delay(attempt: Attempt, until: datetime | Duration) -> Duration:
    if isinstance(until, datetime):
        until = max(until - server_now(attempt), ZERO)
    return milliseconds(duration_ms("until", until))


def server_now(attempt: Attempt) -> datetime:
    """Returns Redis's time, estimated: its time with the claim plus the seconds since then."""
    return instant(attempt.taken_ms) + milliseconds(attempt.held * 1000)


def keep_unhandled(release: Release) -> Release:
    """Returns *release* with the lease's reason why no worker could run the job. The handler did
    not begin, so that is still true.
    """
    if release.unhandled:
        return release
    return msgspec.structs.replace(release, unhandled=release.lease.unhandled)
