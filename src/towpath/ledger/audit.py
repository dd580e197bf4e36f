"""The audit log: who did what in the dashboard, and when. The newest 10,000 actions are kept."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import delete, insert, select, update
from sqlalchemy.engine import Connection

from towpath.clock import instant
from towpath.ledger.database.schema import audit

if TYPE_CHECKING:
    from towpath.ledger.keys.key import KeyInfo
    from towpath.ledger.ledger import Ledger

KEPT = 10_000
_LONGEST_PATH = 2000
_TRIMMED_EVERY = 100


class AuditEntry(msgspec.Struct, frozen=True):
    """Something that somebody asked for."""

    seq: int
    at: datetime
    key_id: str
    key_name: str
    method: str
    path: str
    status: int | None
    """How it was answered; None = it was not, or not yet."""


class ActionPage(msgspec.Struct, frozen=True):
    """A page of actions; give *after* to get the next one. None = this was the last."""

    actions: list[AuditEntry]
    after: int | None


class Audit:
    """The audit log of a ledger: `ledger.audit`."""

    def __init__(self, ledger: Ledger, *, wall: Callable[[], int]) -> None:
        self._ledger, self._wall = ledger, wall

    async def begin(self, key: KeyInfo, method: str, path: str) -> int:
        """Write down what is about to be done: its number. Raises LedgerError: do not do it then.

        So nothing is done that is not in the log, whatever happens afterwards.
        """
        row = {
            "at": self._wall(),
            "key_id": key.id,
            "key_name": key.name,
            "method": method[:8],
            "path": path[:_LONGEST_PATH],
        }

        def write(connection: Connection) -> int:
            [seq] = connection.execute(insert(audit).returning(audit.c.seq), row).one()
            if seq % _TRIMMED_EVERY == 0:
                connection.execute(delete(audit).where(audit.c.seq <= seq - KEPT))
            return seq

        return await self._ledger.write(write)

    async def end(self, seq: int, status: int) -> None:
        """Write down how it was answered."""
        known = update(audit).where(audit.c.seq == seq).values(status=status)
        await self._ledger.write(lambda connection: connection.execute(known))

    async def list(self, *, after: int | None = None, size: int = 100) -> ActionPage:
        """A page of actions, the newest first."""
        query = select(audit).order_by(audit.c.seq.desc()).limit(size + 1)
        if after is not None:
            query = query.where(audit.c.seq < after)

        def read(connection: Connection) -> list[AuditEntry]:
            return [
                AuditEntry(
                    row.seq,
                    instant(row.at),
                    row.key_id,
                    row.key_name,
                    row.method,
                    row.path,
                    row.status,
                )
                for row in connection.execute(query)
            ]

        found = await self._ledger.read(read)
        page = found[:size]
        return ActionPage(page, page[-1].seq if len(found) > size else None)
