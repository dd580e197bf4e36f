"""How an attempt ends: from what the handler did, or was done to it, to a settlement."""

from __future__ import annotations

import sysconfig
import traceback
from datetime import datetime
from pathlib import Path
from random import random
from types import TracebackType
from typing import cast

import msgspec

from towpath.clock import ZERO, Duration, duration_ms, instant, milliseconds, spelled
from towpath.engine.codec import settlement_item
from towpath.engine.explain import HANDLER_MISSING
from towpath.engine.model import Bury, Complete, Fail, Release, Renew, Settlement
from towpath.engine.options import LARGEST_PAYLOAD, QueueOptions
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
            settlement = failed(attempt, reason, _checked(raised.after))
            if raised.keep_turn and isinstance(settlement, Fail):
                return msgspec.structs.replace(settlement, keep_turn=True)
            return settlement
        case _:
            reason = raised.reason if isinstance(raised, ChildFailed) else reason_of(raised)
            return failed(attempt, reason, traceback=traceback_of(raised))


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


def failed(
    attempt: Attempt, reason: str, delay: Duration | None = None, traceback: str = ""
) -> Settlement:
    """The attempt did not work: another one by the policy of the job, its handler or its queue."""
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
    except Exception:  # noqa: BLE001 -- a policy of the user's own; the queue has one, too
        return Fail(lease, reason, traceback=traceback)
    if delay is None:
        return Bury(lease, reason, traceback)
    return Fail(lease, reason, delay, traceback)


def plan_next_try(attempt: Attempt, settlement: Settlement, options: QueueOptions) -> Settlement:
    """*settlement* with the wait before the next attempt by the policy of the queue, where job and
    handler have none. So the log can name the time, and a record counts its own attempts.
    """
    attempt.most = own_limit(attempt) or options.attempts_of(attempt.lease.lane)
    if not isinstance(settlement, Fail) or settlement.delay is not None:
        return settlement
    delay = options.retry.delay(attempt.lease.attempt, random())  # noqa: S311 -- jitter
    if delay is None:
        return Bury(settlement.lease, settlement.reason, settlement.traceback)
    return msgspec.structs.replace(settlement, delay=delay)


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
    return scrub(writable(text[:LONGEST_MESSAGE]))


def traceback_of(error: BaseException) -> str:
    """The frames and the message of *error* as text, without credentials and local variables.

    The worker's own frames before the handler are left out. Verdicts of a handler have no
    traceback, nor have errors about a payload, whose messages quote it.
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
    """The traceback of *error* from the first frame outside of the worker on."""
    first = error.__traceback__
    while first is not None and first.tb_frame.f_code.co_filename.startswith(_WORKER):
        first = first.tb_next
    return first or error.__traceback__


def sendable(settlement: Settlement) -> Settlement:
    """*settlement*, or a failure that says why it can't be sent: it must not end the worker."""
    if isinstance(settlement, Complete) and type(settlement.result) is bytes:
        return settlement
    if isinstance(settlement, Release) and settlement.unhandled == HANDLER_MISSING:
        return settlement  # no part of it came from user code, and there may be many
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
    """The last line of the user's own code: the mistake is rarely in a library that it calls.

    That is the package of the handler, which may be installed like a library, and every file that
    is not installed. An error that never passed such code is located by its last line.
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


def keep_unhandled(release: Release) -> Release:
    """*release* for a job whose handler did not begin: that no worker could run it still holds."""
    if release.unhandled:
        return release
    return msgspec.structs.replace(release, unhandled=release.lease.unhandled)
