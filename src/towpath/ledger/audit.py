"""The audit log: who changed what through the dashboard and the API, and when.

Each key has a share of its own: its newest 10,000 changes and its newest 100 refused requests are
kept. So no key can push out the entries of another one, and refusals push out no changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import ColumnElement, and_, delete, insert, not_, select, update
from sqlalchemy.engine import Connection

from towpath.clock import instant, instant_ms
from towpath.ledger.database.schema import audit

if TYPE_CHECKING:
    from towpath.ledger.keys.key import KeyInfo
    from towpath.ledger.ledger import Ledger

DASHBOARD, API = "dashboard", "api"
"""How a change came: with a login session, or with an API key."""
KEPT, REFUSED_KEPT = 10_000, 100
_LONGEST_PATH = 2000
_TRIMMED_EVERY = 100
_REFUSED = and_(audit.c.status.is_not(None), audit.c.status.between(400, 499))


class NewEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a key is about to do. It must have no secrets."""

    key: KeyInfo
    via: str
    method: str
    path: str
    action: str = ""
    target: Mapping[str, Any] = {}
    changed: Mapping[str, Any] = {}


class AuditEntry(msgspec.Struct, frozen=True):
    """A change that somebody asked for."""

    seq: int
    at: datetime
    key_id: str
    key_name: str
    owner: str
    """The owner of that key; empty for an entry of an older release."""
    via: str
    """`dashboard` or `api`."""
    method: str
    path: str
    action: str
    """What was asked for, such as `pause`; empty for an entry of an older release."""
    target: dict[str, Any]
    """What it was about: the names in the path, such as the queue and the id of a job."""
    changed: dict[str, Any]
    """The fields of the request and of the answer that say what was changed."""
    status: int | None
    """How it was answered; None = it was not, or not yet."""

    @property
    def refused(self) -> bool:
        """Whether it was refused, so that nothing was changed."""
        return self.status is not None and 400 <= self.status < 500


class ActionPage(msgspec.Struct, frozen=True):
    """A page of actions; give *after* to get the next one. None = this was the last."""

    actions: list[AuditEntry]
    after: int | None


class Audit:
    """The audit log of a ledger: `ledger.audit`."""

    def __init__(self, ledger: Ledger, *, wall: Callable[[], int]) -> None:
        self._ledger, self._wall = ledger, wall
        self._since_trim: dict[str, int] = {}

    async def begin(self, entry: NewEntry, status: int | None = None) -> int:
        """Write down what is about to be done: its number. Raises LedgerError: do not do it then.

        So nothing is done that is not in the log, whatever happens afterwards. With a *status*, it
        was answered before: it is over.
        """
        key = entry.key
        row = {
            "at": self._wall(),
            "key_id": key.id,
            "key_name": key.name,
            "owner": key.owner,
            "via": entry.via,
            "method": entry.method[:8],
            "path": entry.path[:_LONGEST_PATH],
            "action": entry.action[:64],
            "target": _json(entry.target),
            "changed": _json(entry.changed),
            "status": status,
        }
        written = self._since_trim.get(key.id, 0) + 1
        self._since_trim[key.id] = written % _TRIMMED_EVERY

        def write(connection: Connection) -> int:
            [seq] = connection.execute(insert(audit).returning(audit.c.seq), row).one()
            if written >= _TRIMMED_EVERY:
                _trim(connection, key.id, _REFUSED, REFUSED_KEPT)
                _trim(connection, key.id, not_(_REFUSED), KEPT)
            return seq

        return await self._ledger.write(write)

    async def end(self, seq: int, status: int, *, changed: Mapping[str, Any] | None = None) -> None:
        """Write down how it was answered, and *changed* instead of what was known before."""
        values: dict[str, Any] = {"status": status}
        if changed is not None:
            values["changed"] = _json(changed)
        known = update(audit).where(audit.c.seq == seq).values(values)
        await self._ledger.write(lambda connection: connection.execute(known))

    async def list(
        self,
        *,
        after: int | None = None,
        size: int = 100,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> ActionPage:
        """A page of actions, the newest first: of one *key*, from *since* and before *until*."""
        query = select(audit).order_by(audit.c.seq.desc()).limit(size + 1)
        if after is not None:
            query = query.where(audit.c.seq < after)
        if key is not None:
            query = query.where(audit.c.key_id == key)
        if since is not None:
            query = query.where(audit.c.at >= instant_ms("since", since))
        if until is not None:
            query = query.where(audit.c.at < instant_ms("until", until))

        def read(connection: Connection) -> list[AuditEntry]:
            return [
                AuditEntry(
                    row.seq,
                    instant(row.at),
                    row.key_id,
                    row.key_name,
                    row.owner or "",
                    row.via or DASHBOARD,
                    row.method,
                    row.path,
                    row.action or "",
                    msgspec.json.decode(row.target or "{}"),
                    msgspec.json.decode(row.changed or "{}"),
                    row.status,
                )
                for row in connection.execute(query)
            ]

        found = await self._ledger.read(read)
        page = found[:size]
        return ActionPage(page, page[-1].seq if len(found) > size else None)


def _trim(connection: Connection, key: str, kind: ColumnElement[bool], kept: int) -> None:
    """Delete the entries of one key and *kind*, but the newest *kept*."""
    mine = and_(audit.c.key_id == key, kind)
    oldest = select(audit.c.seq).where(mine).order_by(audit.c.seq.desc()).offset(kept).limit(1)
    connection.execute(delete(audit).where(mine, audit.c.seq <= oldest.scalar_subquery()))


def _json(facts: Mapping[str, Any]) -> str | None:
    return msgspec.json.encode(facts).decode() if facts else None
