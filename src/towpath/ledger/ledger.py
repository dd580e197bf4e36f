"""The ledger: a database, its schema, and what is kept in it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TypeVar

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from towpath.clock import Duration, seconds, steady, wall_ms
from towpath.ledger.database import open_database, translated
from towpath.ledger.errors import LedgerClosed
from towpath.ledger.keys import NOTED_EVERY, Keys
from towpath.ledger.migrate import Migration, migrate
from towpath.ledger.schema import found_version, require, schema_version
from towpath.ledger.writing import Change, JoinedWrites, OwnWrites, Writes

T = TypeVar("T")

LIMIT = seconds(5)


class Ledger:
    """What Towpath keeps in the database at *url*: `async with Ledger("sqlite:///towpath.db")`.

    Entering sends nothing: the first use connects, and refuses with LedgerOutdated as long as the
    schema is not the one that this code works with. *limit* bounds each wait for the database.
    `wall`, `ticks` and `noted_every` are for tests.
    """

    def __init__(
        self,
        url: str,
        *,
        limit: Duration = LIMIT,
        wall: Callable[[], int] = wall_ms,
        ticks: Callable[[], float] = steady,
        noted_every: Duration = NOTED_EVERY,
    ) -> None:
        self._database = open_database(url, limit=limit)
        kind = JoinedWrites if self._database.joins_writes else OwnWrites
        self._writes: Writes = kind(self._database.writes)
        self._open = self._fits = False
        self.keys = Keys(self, wall=wall, ticks=ticks, noted_every=noted_every)

    def __repr__(self) -> str:
        return f"Ledger({self._database})"

    @property
    def shown(self) -> str:
        """The address as it may be shown: without credentials."""
        return self._database.shown

    # ── life ─────────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Ledger:
        self._open = True
        self._writes.start()
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
        """Write what was asked for, and close the connections. Twice does no harm."""
        try:
            await self.keys.close()
            await self._writes.close()
        finally:
            self._open = False
            await self._database.close()

    # ── schema ───────────────────────────────────────────────────────────────────────────

    async def migrate(self) -> Migration:
        """Bring the schema up to date: all steps that are missing, or none.

        Several processes may do it at once, and again. Raises LedgerAhead.
        """
        self._must_be_open()
        with translated():
            done = await migrate(self._database)
        self._fits = True
        return done

    async def probe(self) -> None:
        """See that the schema fits and that a write reaches the disk. Raises LedgerError."""
        self._fits = False
        same = update(schema_version).values(version_num=schema_version.c.version_num)
        await self.write(lambda connection: connection.execute(same))

    # ── for those who keep something here ────────────────────────────────────────────────

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[AsyncConnection]:
        """A connection that only reads, and sees one moment. Raises LedgerError."""
        self._must_be_open()
        with translated():
            async with self._database.reads.connect() as connection:
                if not self._fits:
                    require(await connection.run_sync(found_version))
                    self._fits = True
                yield connection

    async def write(self, change: Change[T]) -> T:
        """Do *change* and commit; its answer. Nothing of it stays if it raises.

        It may share its transaction with others that come at the same time; what they raise is
        not its concern. Raises LedgerError.
        """
        if not self._fits:
            async with self.reading():
                pass  # which looks at the schema
        self._must_be_open()
        with translated():
            return await self._writes.write(change)

    def _must_be_open(self) -> None:
        if not self._open:
            raise LedgerClosed
