"""Exit codes: one per kind of failure, decided in one place."""

from __future__ import annotations

from towpath.console.errors import AppNotFound, EventNotFound, QueueNotFound, SinkNotFound
from towpath.errors import (
    InvalidInput,
    JobError,
    JobNotFound,
    LeaseError,
    QueueError,
    RetryAdvice,
    TowpathError,
)
from towpath.ledger.errors import ApiKeyError, KeyNotFound, RecordError, RecordNotFound

OK, FAILED, USAGE, REFUSED, NOT_FOUND = 0, 1, 2, 4, 5
LATER, INTERRUPTED, NOBODY_READS, TERMINATED = 75, 130, 141, 143

MEANINGS = {
    OK: "done",
    FAILED: "it did not work: the server refuses, or doctor found something bad",
    USAGE: "the command, a value or a setting is wrong; nothing was sent",
    REFUSED: "the job, its lease, its queue or the record does not allow it; nothing was changed",
    NOT_FOUND: "no such job, queue, app, key, record, sink or event",
    LATER: "may work later: server unreachable, memory or queue full, job not ended yet",
    INTERRUPTED: "interrupted (SIGINT)",
    NOBODY_READS: "nobody reads the output any more (SIGPIPE)",
    TERMINATED: "terminated (SIGTERM)",
}

_BY_KIND: tuple[tuple[type[TowpathError], int], ...] = (
    (InvalidInput, USAGE),
    (JobNotFound, NOT_FOUND),
    (QueueNotFound, NOT_FOUND),
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
"""What applications say about errors of their own."""


def exit_code(error: TowpathError) -> int:
    """The code for *error*: what may work later comes first, then its kind."""
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
