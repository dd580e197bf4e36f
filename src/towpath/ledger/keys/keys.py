"""API keys: created, listed, revoked, checked. Only digests of the secrets are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from hmac import compare_digest
from math import inf
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, bindparam, insert, or_, select, update
from sqlalchemy.engine import Connection, RowMapping
from sqlalchemy.exc import IntegrityError

from towpath.clock import (
    Duration,
    duration_ms,
    hours,
    instant,
    instant_ms,
    seconds,
    steady,
    wall_ms,
)
from towpath.ledger.database.schema import api_keys
from towpath.ledger.errors import KeyEnded, KeyNotFound, LedgerError
from towpath.ledger.keys.key import (
    LONGEST_SECRET,
    MOST_REAL,
    KeyEntry,
    KeyInfo,
    KeySecret,
    KnownKeys,
    NewKey,
    Scope,
    checked_expiry,
    checked_name,
    checked_owner,
    checked_queues,
    checked_scopes,
    checked_secret,
    digest,
    new_id,
    new_secret,
)
from towpath.recent import RecentCache
from towpath.supervise import Background

if TYPE_CHECKING:
    from towpath.ledger.ledger import Ledger

NOTED_EVERY = seconds(60)
"""How often a process stores when keys were last used."""
_NOTED_WITHIN = seconds(10)
OVERLAP = hours(24)
"""How long a rotated key stays valid by default."""


class ApiKeys:
    """The API keys of a ledger: `ledger.keys`."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        wall: Callable[[], int] = wall_ms,
        ticks: Callable[[], float] = steady,
        noted_every: Duration = NOTED_EVERY,
    ) -> None:
        self._ledger, self._wall, self._ticks = ledger, wall, ticks
        self._known = KnownKeys(ticks)
        self._digests = RecentCache[str, bytes](MOST_REAL)
        """Digests of keys that issued credentials, by the ids of the keys."""
        self._asked: dict[bytes, asyncio.Task[KeyEntry]] = {}
        self._asking: set[asyncio.Task[KeyEntry]] = set()
        self._used: dict[str, int] = {}
        self._noted_every = noted_every.total_seconds()
        self._closing = asyncio.Event()
        self._noting: Background | None = None

    # ── creating and ending ──────────────────────────────────────────────────────────────

    async def create(
        self,
        name: str,
        *,
        scopes: Iterable[str],
        queues: Iterable[str] = ("*",),
        owner: str | None = None,
        expires_at: datetime | None = None,
    ) -> NewKey:
        """Create a key. Only the returned value has its secret.

        What the key creates belongs to *owner*; without one, to this key alone. Several keys may
        have the same name. Raises InvalidName, InvalidOption. One transaction.
        """
        id = new_id()
        secret = new_secret(id)
        row = self._row(
            id,
            secret,
            name=name,
            scopes=scopes,
            queues=queues,
            owner=owner,
            expires_at=expires_at,
        )
        await self._ledger.write(lambda connection: connection.execute(insert(api_keys), row))
        self._forget(row["digest"])
        return NewKey(_info(row), KeySecret(secret))

    async def rotate(self, id: str, *, overlap: Duration = OVERLAP) -> NewKey:
        """Replace a key by a new one with the same name, scopes, queues and owner.

        The old key stays valid for *overlap*, unless it expires before. The new one expires when
        the old one would have. Raises KeyNotFound, KeyEnded. One transaction.
        """
        now, new = self._wall(), new_id()
        secret = new_secret(new)
        ends = now + duration_ms("overlap", overlap)

        def change(connection: Connection) -> tuple[dict[str, Any], bytes]:
            query = select(api_keys).where(api_keys.c.id == id)
            old = connection.execute(query).mappings().first()
            if old is None:
                raise KeyNotFound(id)
            if _info(old).ended(instant(now)):
                raise KeyEnded(id)
            row = dict(old) | {
                "id": new,
                "digest": digest(secret),
                "owner": old["owner"] or old["id"],
                "created_at": now,
                "last_used_at": None,
            }
            connection.execute(insert(api_keys), row)
            sooner = ends if old["expires_at"] is None else min(ends, old["expires_at"])
            replaced = update(api_keys).where(api_keys.c.id == id)
            connection.execute(
                replaced.values(expires_at=sooner)
                if sooner > now
                else replaced.values(revoked_at=now)
            )
            return row, old["digest"]

        row, old_digest = await self._ledger.write(change)
        self._forget(old_digest)
        self._forget(row["digest"])
        return NewKey(_info(row), KeySecret(secret))

    async def ensure(
        self,
        secret: str,
        *,
        name: str,
        scopes: Iterable[str] = (Scope.ADMIN,),
        queues: Iterable[str] = ("*",),
    ) -> KeyInfo:
        """Return the key with a secret that the user chose; create it if there is none.

        An existing key is not changed. Several processes may do this at once. Raises KeyEnded if
        the key was revoked or has expired, and InvalidOption, which does not show the secret, if
        the secret is too weak.
        """
        wanted = digest(checked_secret(secret))
        while (found := await self._find(wanted)) is None:
            row = self._row(new_id(), secret, name=name, scopes=scopes, queues=queues)
            await self._ledger.write(lambda connection, row=row: _insert_once(connection, row))
        self._forget(wanted)
        if found.ended(instant(self._wall())):
            raise KeyEnded(found.id)
        return found

    async def revoke(self, id: str) -> KeyInfo:
        """Revoke a key for good: here at once, in other processes within 5 s.

        Revoking it again does not change the time. Raises KeyNotFound.
        """
        now = self._wall()

        def change(connection: Connection) -> RowMapping | None:
            live = api_keys.c.id == id, api_keys.c.revoked_at.is_(None)
            connection.execute(update(api_keys).where(*live).values(revoked_at=now))
            found = connection.execute(select(api_keys).where(api_keys.c.id == id))
            return found.mappings().first()

        row = await self._ledger.write(change)
        if row is None:
            raise KeyNotFound(id)
        self._forget(row["digest"])
        return _info(row)

    async def list(self) -> list[KeyInfo]:
        """Return all keys, oldest first, also those that have ended."""
        query = select(api_keys).order_by(api_keys.c.created_at, api_keys.c.id)

        def read(connection: Connection) -> list[KeyInfo]:
            return [_info(row) for row in connection.execute(query).mappings()]

        return await self._ledger.read(read)

    async def list_without_owner(self) -> list[KeyInfo]:
        """Return the valid keys that were created by a release without owners, oldest first."""
        query = select(api_keys).where(api_keys.c.owner.is_(None)).order_by(api_keys.c.created_at)
        now = instant(self._wall())

        def read(connection: Connection) -> list[KeyInfo]:
            found = [_info(row) for row in connection.execute(query).mappings()]
            return [key for key in found if not key.ended(now)]

        return await self._ledger.read(read)

    # ── checking ─────────────────────────────────────────────────────────────────────────

    async def check(self, secret: str) -> KeyInfo | None:
        """Return the key that *secret* belongs to; None if there is none, or if it has ended.

        Takes a few microseconds for a key that was used within the last seconds; else one read,
        which all callers with the same key share. Raises LedgerError.
        """
        if not 0 < len(secret) <= LONGEST_SECRET:
            return None
        return await self.check_digest(digest(secret))

    async def check_id(self, id: str) -> KeyInfo | None:
        """Return the key with this id, for a credential that it issued; None if it has ended.

        As fast as `check`, and counts as a use. Raises LedgerError.
        """
        wanted = self._digests.get(id)
        if wanted is None:
            query = select(api_keys.c.digest).where(api_keys.c.id == id)
            wanted = await self._ledger.read(lambda connection: connection.scalar(query))
            if wanted is None:
                return None
            self._digests.put(id, wanted)
        return await self.check_digest(wanted)

    def has_seen(self, secret: str) -> bool:
        """Whether this process has recently found a key with this *secret*, or is reading it now.

        The key may have ended.
        """
        if not 0 < len(secret) <= LONGEST_SECRET:
            return False
        wanted = digest(secret)
        return self._known.has_real(wanted) or wanted in self._asked

    async def check_digest(self, wanted: bytes) -> KeyInfo | None:
        """Internal: like `check`, given the digest of the secret."""
        now = self._ticks()
        entry = self._known.find(wanted)
        if entry is None:
            entry = await asyncio.shield(self._start_read(wanted, now))
        elif now >= entry.renew_at and entry.info is not None:
            self._start_read(wanted, now)
        wall = self._wall()
        # The dict is looked up by digest, which an attacker can't choose. Compare once more in
        # constant time, so that safety does not depend on how the lookup works.
        if entry.info is None or not compare_digest(entry.digest, wanted) or wall >= entry.ends_ms:
            return None
        self._used[entry.info.id] = wall
        return entry.info

    def _start_read(self, wanted: bytes, now: float) -> asyncio.Task[KeyEntry]:
        """Read the key, or join the read that is already running."""
        task = self._asked.get(wanted)
        if task is None:
            task = self._asked[wanted] = asyncio.create_task(self._read(wanted, now))
            self._asking.add(task)
            task.add_done_callback(lambda done: self._finish_read(wanted, done))
        return task

    def _finish_read(self, wanted: bytes, task: asyncio.Task[KeyEntry]) -> None:
        self._asking.discard(task)
        overtaken = self._asked.get(wanted) is not task
        if not overtaken:
            del self._asked[wanted]
        # Callers that wait raise the task's error. If a renewal fails, the next check tries again.
        if not task.cancelled() and task.exception() is None and not overtaken:
            self._known.put(task.result())

    def _forget(self, wanted: bytes) -> None:
        """Drop what is known of a key that has changed, and the result of a read in progress."""
        self._known.forget(wanted)
        self._asked.pop(wanted, None)

    async def _read(self, wanted: bytes, now: float) -> KeyEntry:
        info = await self._find(wanted)
        ends_ms = inf
        if info is not None and info.revoked_at is not None:
            ends_ms = -inf
        elif info is not None and info.expires_at is not None:
            ends_ms = instant_ms("expires_at", info.expires_at)
        return KeyEntry(wanted, info, ends_ms, now)

    async def _find(self, wanted: bytes) -> KeyInfo | None:
        query = select(api_keys).where(api_keys.c.digest == wanted)
        row = await self._ledger.read(
            lambda connection: connection.execute(query).mappings().first()
        )
        return None if row is None else _info(row)

    # ── the times of last use ────────────────────────────────────────────────────────────

    async def note_uses(self) -> None:
        """Store when keys were last used. One transaction for all, none if no key was used.

        If the database fails, the times are kept for the next call: no request depends on them.
        """
        used, self._used = self._used, {}
        if not used:
            return
        noted, at = api_keys.c.last_used_at, bindparam("at", type_=BigInteger)
        note = (
            update(api_keys)
            .where(api_keys.c.id == bindparam("key"), or_(noted.is_(None), noted < at))
            .values(last_used_at=at)
        )
        rows = [{"key": key, "at": ms} for key, ms in used.items()]
        try:
            await self._ledger.write(lambda connection: connection.execute(note, rows))
        except LedgerError:
            self._used = used | self._used

    async def _note_now_and_then(self) -> None:
        while not self._closing.is_set():
            try:
                async with asyncio.timeout(self._noted_every):
                    await self._closing.wait()
            except TimeoutError:
                await self.note_uses()

    def start(self) -> None:
        """Begin to store uses in the background; the ledger calls this."""
        if self._noting is None:
            self._closing.clear()
            self._noting = Background("uses of keys", self._note_now_and_then).start()

    async def close(self) -> None:
        """Store the last uses; the ledger calls this."""
        if self._noting is not None:
            self._closing.set()
            await self._noting.stop(grace=_NOTED_WITHIN)
            self._noting = None
            await asyncio.gather(*self._asking, return_exceptions=True)
            await self.note_uses()

    # ── rows ─────────────────────────────────────────────────────────────────────────────

    def _row(
        self,
        id: str,
        secret: str,
        *,
        name: str,
        scopes: Iterable[str],
        queues: Iterable[str],
        owner: str | None = None,
        expires_at: datetime | None = None,
    ) -> dict[str, Any]:
        now = self._wall()
        return {
            "id": id,
            "name": checked_name(name),
            "digest": digest(secret),
            "scopes": " ".join(sorted(checked_scopes(scopes))),
            "queues": " ".join(checked_queues(queues)),
            "created_at": now,
            "expires_at": checked_expiry(expires_at, now_ms=now),
            "revoked_at": None,
            "last_used_at": None,
            "owner": checked_owner(owner) or id,
        }


def _insert_once(connection: Connection, row: dict[str, Any]) -> None:
    # Another process may insert the same key first; the caller reads the row afterwards.
    with suppress(IntegrityError), connection.begin_nested():
        connection.execute(insert(api_keys), row)


def _info(row: Mapping[Any, Any] | RowMapping) -> KeyInfo:
    def when(name: str) -> datetime | None:
        return None if row[name] is None else instant(row[name])

    return KeyInfo(
        id=row["id"],
        name=row["name"],
        scopes=frozenset(Scope(scope) for scope in row["scopes"].split()),
        queues=tuple(row["queues"].split()),
        owner=row["owner"] or row["id"],
        created_at=instant(row["created_at"]),
        expires_at=when("expires_at"),
        revoked_at=when("revoked_at"),
        last_used_at=when("last_used_at"),
    )
