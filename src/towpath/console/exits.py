"""Errors that only commands raise, and exit codes: one per kind of failure.

TowpathError
├── AppNotFound         `module:app` does not name an app
├── AppFailed           the module of the app raised an error while it was loaded
├── SinkNotFound        no sink of that name is set, and no event waits for one
├── EventNotFound       the sink has refused no event of that id
├── NotConfirmed        the command deletes something, and `--yes` was not given
├── JobFailed           the awaited job ended dead or cancelled
├── NotInstalled        a library of an extra is not installed
├── DemoFailed          the demo could not finish
└── RemoteRefused       the HTTP server refused the request
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from towpath.errors import (
    InvalidInput,
    JobError,
    JobNotFound,
    LeaseError,
    QueueError,
    QueueNotFound,
    RetryAdvice,
    ScheduleNotFound,
    TowpathError,
    closest_name,
)
from towpath.ledger.errors import ApiKeyError, KeyNotFound, RecordError, RecordNotFound


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint at the known name that is most similar to *name*; empty if none is."""
    near = closest_name(name, known)
    return f"did you mean {near}?" if near else ""


class AppNotFound(TowpathError):
    """`module:app` does not name an app."""

    code = "app_not_found"
    remedy = "Pass the module and the name of the Towpath in it: `towpath worker shop.jobs:app`."


class AppFailed(TowpathError):
    """The module of an app raised an error while it was loaded; nothing was started."""

    code = "app_failed"
    remedy = "Fix the line that the message names. Pass --debug to see the traceback."


class SinkNotFound(TowpathError):
    """No sink has that name, and no event waits for one; nothing was changed."""

    code = "sink_not_found"
    remedy = "`towpath outbox` lists the sinks; the setting outbox.sinks configures them."

    def __init__(self, sink: str, known: Iterable[str]) -> None:
        super().__init__("; ".join(filter(None, (f"no sink {sink}", did_you_mean(sink, known)))))
        self.sink = sink


class EventNotFound(TowpathError):
    """The sink has refused no event of that id; the ids before it were processed."""

    code = "event_not_found"
    remedy = "`towpath outbox refused SINK` lists refused events; this one may have been resent."

    def __init__(self, sink: str, id: str) -> None:
        super().__init__(f"event {id}: {sink} has not refused it")
        self.sink, self.id = sink, id


class NotConfirmed(InvalidInput):
    """The command deletes something for good and was not confirmed; nothing was changed."""

    code = "not_confirmed"
    remedy = "Pass --yes to confirm."


class JobFailed(JobError):
    """The awaited job ended without being completed."""

    code = "job_failed"
    remedy = "See it with `towpath jobs show`; `towpath dead retry` gives it new attempts."


class NotInstalled(TowpathError):
    """A library of an extra is not installed."""

    code = "not_installed"
    remedy = (
        "Install the extra named in the message from your clone of Towpath; the shell needs the"
        " quotes."
    )

    def __init__(self, library: str, *, extra: str) -> None:
        super().__init__(f"{library} is not installed: pip install '/path/to/towpath[{extra}]'")
        self.library, self.extra = library, extra


class DemoFailed(TowpathError):
    """The demo could not finish, so it has no result."""

    code = "demo_failed"
    remedy = "Run the demo again with --keep, and read the logs in the folder that it prints."
    retry = RetryAdvice.LATER


class RemoteRefused(TowpathError):
    """The HTTP server refused the request. Code and remedy are the server's own."""

    code = "remote_refused"
    remedy = "Check the server's address and the key; the server's message says more."

    def __init__(self, status: int, problem: Mapping[str, Any], retry: RetryAdvice) -> None:
        super().__init__(str(problem.get("detail") or f"the server answered {status}"))
        self.status, self.fields = status, problem
        """All fields of the problem: `holder`, `expires_at`, …"""
        name = str(problem.get("type", "")).rpartition("/")[2]
        self.code = name.replace("-", "_") or self.code  # pyright: ignore[reportAttributeAccessIssue] -- the server's own
        self.remedy = str(problem.get("remedy") or self.remedy)  # pyright: ignore[reportAttributeAccessIssue] -- the same
        self.retry = retry  # pyright: ignore[reportAttributeAccessIssue] -- the same


OK, FAILED, USAGE, REFUSED, NOT_FOUND = 0, 1, 2, 4, 5
LATER, INTERRUPTED, NOBODY_READS, TERMINATED = 75, 130, 141, 143

MEANINGS = {
    OK: "done",
    FAILED: "failed: the server refused, or doctor found a fault",
    USAGE: "the command, a value or a setting is wrong; nothing was sent",
    REFUSED: "the state of the job, lease, queue or record forbids this; nothing was changed",
    NOT_FOUND: "no such job, queue, schedule, app, key, record, sink or event",
    LATER: "try again later: server unreachable, memory or queue full, job not ended yet",
    INTERRUPTED: "interrupted (SIGINT)",
    NOBODY_READS: "the output was closed (SIGPIPE)",
    TERMINATED: "terminated (SIGTERM)",
}

_BY_KIND: tuple[tuple[type[TowpathError], int], ...] = (
    (InvalidInput, USAGE),
    (JobNotFound, NOT_FOUND),
    (QueueNotFound, NOT_FOUND),
    (ScheduleNotFound, NOT_FOUND),
    (AppNotFound, NOT_FOUND),
    (SinkNotFound, NOT_FOUND),
    (EventNotFound, NOT_FOUND),
    (KeyNotFound, NOT_FOUND),
    (RecordNotFound, NOT_FOUND),
    (JobError, REFUSED),
    (LeaseError, REFUSED),
    (QueueError, REFUSED),
    (ApiKeyError, REFUSED),
    (RecordError, REFUSED),
)

OF_APPLICATIONS: dict[type[TowpathError], int] = {}
"""Exit codes of errors of applications."""


def exit_code(error: TowpathError) -> int:
    """The exit code for *error*: LATER if a repeat may help, else the code of its class."""
    if error.retry is not RetryAdvice.NEVER:
        return LATER
    own = (OF_APPLICATIONS[kind] for kind in type(error).__mro__ if kind in OF_APPLICATIONS)
    if (code := next(own, None)) is not None:
        return code
    return next((code for kind, code in _BY_KIND if isinstance(error, kind)), FAILED)


def help_text() -> str:
    """The table as `--help` shows it."""
    lines = [f"  {code:>3}  {meaning}" for code, meaning in MEANINGS.items()]
    return "\n".join(["\b", "Exit codes:", *lines])
