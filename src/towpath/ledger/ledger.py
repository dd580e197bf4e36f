"""The ledger: a database, its schema, and what is kept in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, Unpack

from sqlalchemy import update
from sqlalchemy.engine import Connection

from towpath.clock import Duration, seconds, steady, wall_ms
from towpath.ledger.audit import Audit
from towpath.ledger.database.schema import LEDGER, schema_version
from towpath.ledger.database.store import open_store, translated
from towpath.ledger.database.tables import Tables, lines
from towpath.ledger.database.writing import Decide, Write
from towpath.ledger.errors import LedgerClosed
from towpath.ledger.keys.keys import NOTED_EVERY, ApiKeys
from towpath.ledger.keys.logins import Logins
from towpath.ledger.outbox.outbox import Outbox, was_put
from towpath.ledger.records.jobs import Jobs, were_made
from towpath.ledger.records.record import Recorded, RecordOptions
from towpath.ledger.records.sessions import Transactions

if TYPE_CHECKING:
    from towpath.ledger.database.migrate import Migration
    from towpath.ledger.records.sessions import Transaction

T = TypeVar("T")

LIMIT = seconds(5)
"""How long to wait for the database."""


class Ledger:
    """What Towpath keeps in the database at *url*: `async with Ledger("sqlite:///towpath.db")`.

    Entering sends nothing: the first use connects, and refuses with LedgerOutdated as long as the
    schema is not the one that this code works with. *limit* bounds each wait for the database;
    *sinks* are the names of those who get the events that are put into the outbox; *tables* are
    those of applications, which have to fit as well. Raises InvalidOption.
    `wall`, `ticks` and `noted_every` are for tests.
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
        self._made_by = (url, limit, tuple(sinks), tuple(tables), wall, ticks, noted_every)
        sinks, tables = self._made_by[2], self._made_by[3]
        self._lines = lines(LEDGER, tables)
        self._store = open_store(url, limit=limit)
        self._open = self._fits = False
        self._busy, self._idle = 0, asyncio.Event()
        self._idle.set()
        self.keys = ApiKeys(self, wall=wall, ticks=ticks, noted_every=noted_every)
        self.logins = Logins(self, wall=wall, ticks=ticks)
        self.audit = Audit(self, wall=wall)
        self.jobs = Jobs(self)
        self.transactions = Transactions(self)
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where it is entered; None while it is not."""
        self.outbox = Outbox(self, sinks=sinks, wall=wall)

    def __repr__(self) -> str:
        return f"Ledger({self._store.shown})"

    def another(self) -> Ledger:
        """The same ledger for another event loop, not yet entered."""
        url, limit, sinks, tables, wall, ticks, noted_every = self._made_by
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
        """The address as it may be shown: without credentials."""
        return self._store.shown

    # ── life ─────────────────────────────────────────────────────────────────────────────

    @property
    def entered(self) -> bool:
        """Whether somebody has entered it and not yet left."""
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
        """Do what was asked for, and close the connections. Twice does no harm."""
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
        """Make a record in the transaction that the caller has begun on this database.

        `await ledger.submit(session, "mails", b"…", id="order-7")`: it is there if and when the
        transaction commits; then the job is queued. Options and refusals are those of
        `ledger.jobs.submit`.
        """
        return await self.jobs.submit_in(session, queue, payload, **options)

    # ── schema ───────────────────────────────────────────────────────────────────────────

    async def migrate(self) -> list[Migration]:
        """Bring the schema up to date, the ledger's first, then each application's: all steps that
        are missing, or none.

        Several processes may do it at once, and again. Raises LedgerAhead, MigrationFailed.
        """
        from towpath.ledger.database.migrate import migrate  # noqa: PLC0415 -- slow to import, and rarely needed

        with self._at_work():
            done = await migrate(self._store, self._lines)
        self._fits = True
        return done

    async def drift(self) -> list[str]:
        """Where the tables that the steps have made differ from what the code says; for tests."""
        from towpath.ledger.database.migrate import drift  # noqa: PLC0415 -- see above

        return await self.read(lambda connection: drift(connection, self._lines))

    async def probe(self) -> None:
        """See that the schema fits and that a write reaches the disk. Raises LedgerError."""
        self._fits = False
        same = update(schema_version).values(version_num=schema_version.c.version_num)
        await self.write(lambda connection: connection.execute(same))

    # ── for those who keep something here ────────────────────────────────────────────────

    async def read(self, query: Callable[[Connection], T]) -> T:
        """What *query* answers. On SQLite it runs in a thread. Raises LedgerError."""

        def checked(connection: Connection) -> T:
            self._require_fit(connection)
            return query(connection)

        with self._at_work():
            return await self._store.read(checked)

    async def write(self, change: Callable[[Connection], T]) -> T:
        """Do *change* and commit; its answer. Nothing of it stays if it raises.

        It may share its transaction with others that come at the same time; what they raise is
        not its concern. Nobody else can write meanwhile on SQLite: what has to read first, or to
        think, is for `decide`. Raises LedgerError.
        """
        return await self.decide(lambda _: change)

    async def decide(self, decide: Decide[T]) -> T:
        """Let *decide* read, do what it answers as a change, and commit; the answer of that.

        On SQLite only the second step keeps others from writing. It raises Overtaken if what was
        read is not true any more: then both are done again, while nobody else writes.
        """

        def noted(connection: Connection) -> Write[tuple[T, bool, list[int]]]:
            self._require_fit(connection)
            write = decide(connection)
            return lambda writer: (write(writer), was_put(writer), were_made(writer))

        with self._at_work():
            answer, put, made = await self._store.write(noted)
        if put:
            self.outbox.nudge()
        if made:
            self.jobs.committed(made)
        return answer

    def _require_fit(self, connection: Connection) -> None:
        """See that the schema fits: the first time, and after a probe. Raises LedgerError."""
        if not self._fits:
            for line in self._lines:
                line.require(connection)
            self._fits = True

    @contextmanager
    def _at_work(self) -> Generator[None]:
        """The connections stay open until the body is done; errors say what they mean."""
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
