"""The audit log: who changed what through the dashboard and the API, and when.

The newest 10,000 changes and the newest 100 refused requests of each key are kept. So no key can
displace the entries of another key, and refused requests do not displace changes.
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
"""How a change was requested: with a login session, or with an API key."""
KEPT, REFUSED_KEPT = 10_000, 100
_LONGEST_PATH = 2000
_TRIMMED_EVERY = 100
_REFUSED = and_(audit.c.status.is_not(None), audit.c.status.between(400, 499))


class NewEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A change that a request is about to make. The entry must not contain secrets."""

    key: KeyInfo
    via: str
    method: str
    path: str
    action: str = ""
    target: Mapping[str, Any] = {}
    changed: Mapping[str, Any] = {}


class AuditEntry(msgspec.Struct, frozen=True):
    """A requested change, and how it was answered."""

    seq: int
    at: datetime
    key_id: str
    """The id of the key that was used."""
    key_name: str
    owner: str
    """The owner of that key; empty for an entry of an older release."""
    via: str
    """`dashboard` for a login session, `api` for an API key."""
    method: str
    path: str
    """The path, without its query."""
    action: str
    """What was asked for; empty for an entry of an older release."""
    target: dict[str, Any]
    """What it was about: the names in the path."""
    changed: dict[str, Any]
    """What was changed: fields of the request and of the answer, without payloads and secrets."""
    status: int | None
    """HTTP status of the response; None if there is none yet."""

    @property
    def refused(self) -> bool:
        """Whether the request was refused, so that nothing changed."""
        return self.status is not None and 400 <= self.status < 500


class ActionPage(msgspec.Struct, frozen=True):
    """A page of actions."""

    actions: list[AuditEntry]
    after: int | None
    """Pass it as `after` to get the next page; None on the last page."""


class Audit:
    """The audit log of a ledger: `ledger.audit`."""

    def __init__(self, ledger: Ledger, *, wall: Callable[[], int]) -> None:
        self._ledger, self._wall = ledger, wall
        self._since_trim: dict[str, int] = {}

    async def begin(self, entry: NewEntry, status: int | None = None) -> int:
        """Log a change before it is made. Returns the number of the entry.

        If this raises LedgerError, do not make the change: then every change is in the log,
        whatever happens afterwards. *status* is for a request that has already been answered.
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
        """Add the *status* of the answer to an entry, and replace its `changed` by *changed*."""
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
        """Return a page of actions, newest first: of one *key*, from *since* and before *until*."""
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
    """Delete the entries of one key and *kind*, except the newest *kept*."""
    mine = and_(audit.c.key_id == key, kind)
    oldest = select(audit.c.seq).where(mine).order_by(audit.c.seq.desc()).offset(kept).limit(1)
    connection.execute(delete(audit).where(mine, audit.c.seq <= oldest.scalar_subquery()))


def _json(facts: Mapping[str, Any]) -> str | None:
    return msgspec.json.encode(facts).decode() if facts else None
