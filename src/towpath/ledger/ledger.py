"""The ledger: the database with records, the outbox, API keys and the audit log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, Unpack

from sqlalchemy import select, update
from sqlalchemy.engine import Connection

from towpath.clock import Duration, seconds, steady, wall_ms
from towpath.ledger.audit import Audit
from towpath.ledger.database.schema import LEDGER, identity, schema_version
from towpath.ledger.database.store import open_store, translated
from towpath.ledger.database.tables import Tables, lines
from towpath.ledger.database.writing import Decide, DecideMany, SharedChange, Write
from towpath.ledger.errors import LedgerClosed
from towpath.ledger.keys.keys import NOTED_EVERY, ApiKeys
from towpath.ledger.keys.logins import Logins
from towpath.ledger.outbox.outbox import Outbox, was_put
from towpath.ledger.records.jobs import Jobs
from towpath.ledger.records.record import Recorded, RecordOptions
from towpath.ledger.records.transactions import Transactions

if TYPE_CHECKING:
    from towpath.engine.engine import Engine
    from towpath.ledger.database.migrate import Migration
    from towpath.ledger.records.relay import Relay
    from towpath.ledger.records.transactions import Transaction
    from towpath.telemetry.logs import Log

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")

LIMIT = seconds(5)
"""Default limit for waiting for the database."""


class Ledger:
    """The ledger in the database at *url*: `async with Ledger("sqlite:///towpath.db")`.

    `ledger.jobs`, `.outbox`, `.keys`, `.logins` and `.audit` have the methods for each part.
    Entering sends nothing; the first use connects, and raises LedgerOutdated if the tables are not
    up to date. *limit* is how long to wait for the database. *sinks* are the names of the sinks
    that get the events of the outbox. *tables* are the tables of applications. `wall`, `ticks` and
    `noted_every` are for tests. Raises InvalidOption.
    """

    def __init__(
        self,
        url: str,
        *,
        limit: Duration = LIMIT,
        sinks: Iterable[str] = (),
        tables: Iterable[Tables] = (),
        wall: Callable[[], int] = wall_ms,
        ticks: Callable[[], float] = steady,
        noted_every: Duration = NOTED_EVERY,
    ) -> None:
        self._arguments = (url, limit, tuple(sinks), tuple(tables), wall, ticks, noted_every)
        sinks, tables = self._arguments[2], self._arguments[3]
        self._lines = lines(LEDGER, tables)
        self._store = open_store(url, limit=limit)
        self._open = self._fits = False
        self._identity: str | None = None
        self._busy, self._idle = 0, asyncio.Event()
        self._idle.set()
        self.keys = ApiKeys(self, wall=wall, ticks=ticks, noted_every=noted_every)
        self.logins = Logins(self, wall=wall, ticks=ticks)
        self.audit = Audit(self, wall=wall)
        self.jobs = Jobs(self)
        self.transactions = Transactions(self)
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop in which the ledger was entered; None while it is not open."""
        self.outbox = Outbox(self, sinks=sinks, wall=wall)

    def __repr__(self) -> str:
        return f"Ledger({self._store.shown})"

    def another(self) -> Ledger:
        """Internal: the same ledger for another event loop, not yet entered."""
        url, limit, sinks, tables, wall, ticks, noted_every = self._arguments
        return Ledger(
            url,
            limit=limit,
            sinks=sinks,
            tables=tables,
            wall=wall,
            ticks=ticks,
            noted_every=noted_every,
        )

    @property
    def shown(self) -> str:
        """The URL without credentials, to be shown."""
        return self._store.shown

    # ── opening and closing ──────────────────────────────────────────────────────────────

    @property
    def entered(self) -> bool:
        """Whether the ledger is open."""
        return self._open

    async def __aenter__(self) -> Ledger:
        self._open, self.loop = True, asyncio.get_running_loop()
        self._store.start()
        self.keys.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish running reads and changes, and close the connections. Safe to repeat."""
        try:
            await self.jobs.close()
            await self.keys.close()
        finally:
            self._open, self.loop = False, None
            await self._idle.wait()
            await self._store.close()

    # ── records of jobs ──────────────────────────────────────────────────────────────────

    async def submit(
        self,
        session: Transaction,
        queue: str,
        payload: bytes,
        **options: Unpack[RecordOptions],
    ) -> Recorded:
        """Create a record in a transaction that the caller has begun on this database.

        `await ledger.submit(session, "mails", b"…", id="order-7")`: the record exists once the
        transaction commits; then the job is queued. Options and errors are those of
        `ledger.jobs.submit`.
        """
        return await self.jobs.submit_in(session, queue, payload, **options)

    @asynccontextmanager
    async def relayed(
        self, engine: Engine, *, log: Log, **pauses: Duration
    ) -> AsyncGenerator[Relay]:
        """Queue records in the Redis of *engine* until the body ends: new ones at once, and by a
        relay all that Redis lacks. *pauses* are those of `Relay`.
        """
        from towpath.ledger.records.relay import Relay  # noqa: PLC0415 -- it uses the ledger

        relay = Relay(self, engine, log=log, **pauses)
        self.jobs.relay = relay
        try:
            async with relay:
                yield relay
        finally:
            if self.jobs.relay is relay:
                self.jobs.relay = None

    # ── schema ───────────────────────────────────────────────────────────────────────────

    async def migrate(self) -> list[Migration]:
        """Update the tables of the ledger, then those of each application: all missing steps, or
        none. Returns the version of each line before and after.

        Several processes may do this at once. Raises LedgerAhead, MigrationFailed.
        """
        from towpath.ledger.database.migrate import migrate  # noqa: PLC0415 -- slow to import, and rarely needed

        with self._in_use():
            done = await migrate(self._store, self._lines)
        self._fits = True
        return done

    async def drift(self) -> list[str]:
        """Return the differences between the tables of the database and of the code; for tests."""
        from towpath.ledger.database.migrate import drift  # noqa: PLC0415 -- see above

        return await self.read(lambda connection: drift(connection, self._lines))

    async def probe(self) -> None:
        """Check that the tables are up to date and that a write is stored. Raises LedgerError."""
        self._fits = False
        same = update(schema_version).values(version_num=schema_version.c.version_num)
        await self.write(lambda connection: connection.execute(same))

    async def identity(self) -> str | None:
        """Return the id of the database: the same for every process, whatever URL it uses.

        None if the row was deleted. Reads the row once. Raises LedgerError.
        """
        if self._identity is None:
            self._identity = await self.read(
                lambda connection: connection.scalar(select(identity.c.id))
            )
        return self._identity

    # ── transactions ─────────────────────────────────────────────────────────────────────

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Call *query* with a connection, and return its result. On SQLite it runs in a thread.
        Raises LedgerError.
        """

        def checked(connection: Connection) -> T:
            self._require_fit(connection)
            return query(connection)

        with self._in_use():
            return await self._store.read(checked)

    async def write(self, change: Callable[[Connection], T]) -> T:
        """Call *change* with a connection and commit. Returns what *change* returns; if *change*
        raises, nothing of it is stored.

        The change may share its transaction with other changes made at the same time; their errors
        do not affect it. On SQLite it holds the write lock while it runs: use `decide` if it reads
        first. Raises LedgerError.
        """
        return await self.decide(lambda _: change)

    async def decide(self, decide: Decide[T]) -> T:
        """Call *decide*, which reads and returns a change; apply that change and commit. Returns
        what the change returns.

        On SQLite only the change holds the write lock. The change raises Overtaken if what *decide*
        read is no longer true; then both run again, on SQLite under the write lock. Raises
        LedgerError.
        """

        def noted(connection: Connection) -> Write[tuple[T, bool]]:
            self._require_fit(connection)
            write = decide(connection)
            return lambda writer: (write(writer), was_put(writer))

        with self._in_use():
            answer, put = await self._store.write(noted)
        if put:
            self.outbox.nudge()
        return answer

    def decide_together(
        self, decide: DecideMany[A, T], finish: Callable[[T], list[R]]
    ) -> Callable[[A], Awaitable[R]]:
        """Return a function that makes a change for one item. Concurrent calls share a transaction
        and its statements: *decide* gets all their items.

        Each call returns its own of the answers that *finish* makes of what the change returned;
        *finish* runs in the event loop, once per transaction. Otherwise like `decide`.
        """

        def noted(connection: Connection, items: list[A]) -> Write[tuple[T, bool]]:
            self._require_fit(connection)
            write = decide(connection, items)
            return lambda writer: (write(writer), was_put(writer))

        def finished(outcome: tuple[T, bool]) -> list[R]:
            answer, put = outcome
            if put:
                self.outbox.nudge()
            return finish(answer)

        change = SharedChange(noted, finished)

        async def ask(item: A) -> R:
            with self._in_use():
                return await self._store.write_shared(change, item)

        return ask

    def _require_fit(self, connection: Connection) -> None:
        """Check the versions of the tables, once and again after `probe`. Raises LedgerError."""
        if not self._fits:
            for line in self._lines:
                line.require(connection)
            self._fits = True

    @contextmanager
    def _in_use(self) -> Generator[None]:
        """Keep the connections open while the body runs, and translate its errors."""
        if not self._open:
            raise LedgerClosed
        self._busy += 1
        self._idle.clear()
        try:
            with translated():
                yield
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()
