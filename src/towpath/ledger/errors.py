"""Errors of the ledger.

TowpathError
├── LedgerError
│   ├── LedgerUnreachable     the database did not answer within the time limit
│   │   ├── LedgerBusy        another transaction held a lock for that long
│   │   └── LedgerUnwritable  the disk is full or fails, or the database is read-only
│   ├── LedgerRefused         the database answered with an error
│   ├── LedgerOutdated        the schema is not the one that this release needs
│   │   ├── LedgerAbsent      the database file does not exist
│   │   └── LedgerAhead       a newer release has migrated the database
│   ├── MigrationFailed       a step failed; nothing was changed
│   ├── LedgerNotInstalled    a library is missing
│   ├── LedgerMissing         a handler keeps records, but its app has no ledger
│   ├── LedgerElsewhere       the caller's transaction is on another database
│   └── LedgerClosed          the ledger is not open
├── ApiKeyError
│   ├── KeyNotFound
│   └── KeyEnded              the secret belongs to a key that is revoked or has expired
├── RecordError
│   ├── RecordNotFound
│   ├── RecordUncommitted     the transaction in which it was submitted is still open
│   ├── RecordEnded           the record ended in another state, so it can't be cancelled
│   ├── RecordNotDead         only dead, cancelled and failed records can be retried
│   ├── RecordOpen            only ended records can be deleted
│   └── RecordNotWaiting      only waiting records can be moved; running ones can't be set
└── SinkError
    ├── SinkUnreachable       the sink accepts no events now
    └── SinkNotInstalled      a library that the sink needs is missing
"""

from __future__ import annotations

from towpath.errors import RetryAdvice, TowpathError


class LedgerError(TowpathError):
    """The database can't do what was asked."""

    code = "ledger_error"
    external = True


class LedgerUnreachable(LedgerError):
    """The database gave no answer within the time limit. A change may or may not have been made."""

    code = "ledger_unreachable"
    remedy = "Check that the database runs and that DATABASE_URL is right; then try again."
    retry = RetryAdvice.LATER


class LedgerBusy(LedgerUnreachable):
    """Another transaction locked the database for longer than the time limit."""

    code = "ledger_busy"
    remedy = "Try again, or end the transaction that holds the lock (SQLite has one writer)."


class LedgerUnwritable(LedgerUnreachable):
    """The database can't write now: its disk is full or fails, or it is read-only."""

    code = "ledger_unwritable"
    remedy = "Free disk space, or make the database writable. Pending writes then continue."


class LedgerRefused(LedgerError):
    """The database answered with an error of its own; nothing was changed."""

    code = "ledger_refused"
    remedy = "Read the database's message. Check the user and its permissions."


class LedgerOutdated(LedgerError):
    """The database has no schema yet, or one that is too old for this release."""

    code = "ledger_outdated"
    remedy = "Run `towpath migrate`; it is safe to repeat."

    def __init__(self, found: str | None, wanted: str, *, of: str = "ledger") -> None:
        has = "no schema" if found is None else f"schema {found}"
        if of != "ledger":
            has += f" of {of}"
        super().__init__(f"the database has {has}, this release needs {wanted}")
        self.found, self.wanted, self.of = found, wanted, of


class LedgerAbsent(LedgerOutdated):
    """There is no such database file."""

    code = "ledger_absent"
    remedy = "Check the path; `towpath migrate` creates a new database there."

    def __init__(self, path: str) -> None:
        LedgerError.__init__(self, f"there is no database file {path}")
        self.found, self.wanted, self.of = None, "", "ledger"


class LedgerAhead(LedgerOutdated):
    """A newer release has migrated the database; this release can't use it."""

    code = "ledger_ahead"
    remedy = (
        "Install the release that migrated it, or a newer one. Migrations are never undone: to go"
        " back, restore the backup made before."
    )


class MigrationFailed(LedgerError):
    """A step of a migration failed; no table was changed."""

    code = "migration_failed"
    remedy = "Fix what the reason names, or return to the previous release; then migrate again."

    def __init__(self, line: str, reason: str) -> None:
        super().__init__(f"migration of {line}: {reason}")
        self.line, self.reason = line, reason


class LedgerNotInstalled(LedgerError):
    """A library that the database needs is not installed."""

    code = "ledger_not_installed"
    remedy = "Install towpath[server], and towpath[postgres] for PostgreSQL."

    def __init__(self, library: str) -> None:
        super().__init__(f"{library} is not installed")
        self.library = library


class LedgerClosed(LedgerError):
    """The ledger is not open; it has no connections."""

    code = "ledger_closed"
    external = False
    remedy = "Use the ledger inside `async with Ledger(…)`."

    def __init__(self) -> None:
        super().__init__("the ledger is not open")


class LedgerMissing(LedgerError):
    """A handler with `record=True` needs an app with a ledger."""

    code = "ledger_missing"
    remedy = (
        'Give the app a ledger: Towpath(url, ledger="sqlite:///towpath.db"). An app without a URL'
        " can use the setting `database` instead."
    )

    def __init__(self) -> None:
        super().__init__("the app has no ledger to keep records in")


class LedgerElsewhere(LedgerError):
    """The caller's transaction is on another database than the ledger; nothing was submitted."""

    code = "ledger_elsewhere"
    remedy = (
        "Use a session on the ledger's database, or make the session's database the app's ledger;"
        " `towpath migrate` creates the tables there."
    )

    def __init__(self, what: str) -> None:
        super().__init__(f"the transaction is not on the ledger's database: {what}")


class ApiKeyError(TowpathError):
    """The API key does not allow what was asked; nothing was changed."""

    code = "api_key_error"


class KeyNotFound(ApiKeyError):
    """There is no key of that id."""

    code = "key_not_found"
    remedy = "Run `towpath keys list` to see all keys."

    def __init__(self, key: str) -> None:
        super().__init__(f"key {key}: not found")
        self.key = key


class KeyEnded(ApiKeyError):
    """The secret belongs to a key that was revoked or has expired."""

    code = "key_ended"
    remedy = "Use a new key; a revoked or expired one is never accepted again."

    def __init__(self, key: str) -> None:
        super().__init__(f"key {key}: revoked or expired")
        self.key = key


class RecordError(TowpathError):
    """The record does not allow this; nothing was changed."""

    code = "record_error"

    def __init__(self, queue: str, id: str, what: str) -> None:
        super().__init__(f"record {queue}/{id}: {what}")
        self.queue, self.id = queue, id


class RecordNotFound(RecordError):
    """There is no record of that id in that queue."""

    code = "record_not_found"
    remedy = (
        "Check the queue and the id. Records that have ended are deleted after a while; one whose"
        " transaction was rolled back never existed."
    )

    def __init__(self, queue: str, id: str) -> None:
        super().__init__(queue, id, "not found")


class RecordUncommitted(RecordError):
    """The record's transaction is still open: nobody else can see the record."""

    code = "record_uncommitted"
    remedy = "Commit the transaction first. If it is rolled back, there is no job."

    def __init__(self, queue: str, id: str) -> None:
        super().__init__(queue, id, "its transaction has not been committed")


class RecordEnded(RecordError):
    """The record has already ended; it can't be cancelled."""

    code = "record_ended"
    remedy = "No action needed: the record has already ended."

    def __init__(self, queue: str, id: str, state: str) -> None:
        super().__init__(queue, id, f"ended as {state}")
        self.state = state


class RecordNotDead(RecordError):
    """Only a record that is dead, cancelled or failed can be retried."""

    code = "record_not_dead"
    remedy = "Wait until the record ends. To run the same work again, create a new record."

    def __init__(self, queue: str, id: str, state: str) -> None:
        super().__init__(queue, id, f"is {state}, not dead")
        self.state = state


class RecordOpen(RecordError):
    """Only a record that has ended can be deleted."""

    code = "record_open"
    remedy = "Cancel the record first, or wait until it ends."

    def __init__(self, queue: str, id: str, state: str) -> None:
        super().__init__(queue, id, f"is {state}; only an ended record can be deleted")
        self.state = state


class RecordNotWaiting(RecordError):
    """Only a pending or failed record can be moved; a running one can't be set either."""

    code = "record_not_waiting"
    remedy = "Wait until it ends, or cancel it first. `set` replaces one that has ended."

    def __init__(self, queue: str, id: str, state: str) -> None:
        super().__init__(queue, id, f"is {state}, not waiting")
        self.state = state


class SinkError(TowpathError):
    """The sink failed; its events stay in the outbox."""

    code = "sink_error"
    external = True

    def __init__(self, sink: str, reason: str) -> None:
        super().__init__(f"sink {sink}: {reason}")
        self.sink, self.reason = sink, reason


class SinkUnreachable(SinkError):
    """The sink takes no events now. Some may have arrived; all are sent again, in order."""

    code = "sink_unreachable"
    remedy = "Check the sink and its address; events are kept until it is back."
    retry = RetryAdvice.LATER


class SinkNotInstalled(SinkError):
    """A library that the sink needs is not installed."""

    code = "sink_not_installed"
    remedy = "Install towpath[kafka] to send events to Kafka."
