"""Login sessions of the dashboard, and login links. Only digests of both are stored."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from sqlalchemy import delete, insert, select
from sqlalchemy.engine import Connection

from towpath.clock import duration_ms, hours, minutes, seconds
from towpath.ledger.database.schema import api_keys, logins
from towpath.ledger.keys.key import KeyInfo, digest
from towpath.recent import RecentCache

if TYPE_CHECKING:
    from towpath.ledger.ledger import Ledger

SESSION = hours(12)
"""How long a login session lasts; use does not extend it."""
LINK = minutes(10)
"""How long a link can be redeemed for a login session."""
MOST = 50
"""Maximum number of login sessions of one key, and of its unused links."""
_SESSION, _LINK = "session", "link"
_FRESH = seconds(5).total_seconds()
_KNOWN_MOST = 10_000
_LONGEST = 128


class Login(msgspec.Struct, frozen=True):
    """A valid login session."""

    key: KeyInfo
    csrf: str
    """The CSRF token that every change must send in addition to the cookie."""


class _Known(NamedTuple):
    key_digest: bytes
    expires_ms: int


class Logins:
    """The login sessions of a ledger: `ledger.logins`. A login session ends with its key."""

    def __init__(
        self, ledger: Ledger, *, wall: Callable[[], int], ticks: Callable[[], float]
    ) -> None:
        self._ledger, self._wall, self._ticks = ledger, wall, ticks
        self._known = RecentCache[bytes, _Known](_KNOWN_MOST, _FRESH, ticks=ticks)

    async def open(self, key: KeyInfo, *, most: int = MOST) -> str:
        """Begin a login session of *key*. Returns its cookie. One transaction.

        If the key has more than *most* login sessions, the oldest end: here at once, in other
        processes within 5 s.
        """
        return await self._create_login(_SESSION, key, duration_ms("session", SESSION), most)

    async def link(self, key: KeyInfo) -> str:
        """Create a link that can be redeemed once, within ten minutes, for a login session."""
        return await self._create_login(_LINK, key, duration_ms("link", LINK), MOST)

    async def redeem(self, link: str) -> KeyInfo | None:
        """Use up *link*. Returns its key; None if the link was used, has expired or never existed.

        One transaction for a link that exists. A wrong guess writes nothing.
        """
        wanted, now = digest(link), self._wall()
        exists = select(logins.c.digest).where(logins.c.digest == wanted, logins.c.kind == _LINK)
        if await self._ledger.read(lambda connection: connection.execute(exists).first()) is None:
            return None

        def use(connection: Connection) -> bytes | None:
            row = connection.execute(
                delete(logins)
                .where(logins.c.digest == wanted, logins.c.kind == _LINK)
                .returning(logins.c.key_id, logins.c.expires_at)
            ).first()
            if row is None or row.expires_at <= now:
                return None
            query = select(api_keys.c.digest).where(api_keys.c.id == row.key_id)
            return connection.execute(query).scalar()

        key = await self._ledger.write(use)
        return None if key is None else await self._ledger.keys.check_digest(key)

    async def find(self, cookie: str) -> Login | None:
        """Return the login session of *cookie*; None if there is none, or it or its key has ended.

        A login session that was found is not read again for five seconds. Raises LedgerError.
        """
        if not 0 < len(cookie) <= _LONGEST:
            return None
        wanted, now = digest(cookie), self._ticks()
        known = self._known.get(wanted)
        if known is None:
            known = await self._read(wanted, now)
        if known is None or self._wall() >= known.expires_ms:
            return None
        key = await self._ledger.keys.check_digest(known.key_digest)
        return None if key is None else Login(key, csrf_of(cookie))

    def has_seen(self, cookie: str) -> bool:
        """Whether this process has recently found a login session with this *cookie*."""
        return 0 < len(cookie) <= _LONGEST and digest(cookie) in self._known

    async def close(self, cookie: str) -> None:
        """End a login session: here at once, in other processes within 5 s."""
        wanted = digest(cookie)
        await self._ledger.write(
            lambda connection: connection.execute(delete(logins).where(logins.c.digest == wanted))
        )
        self._known.pop(wanted)

    async def _create_login(self, kind: str, key: KeyInfo, lasts_ms: int, most: int) -> str:
        token, now = secrets.token_urlsafe(32), self._wall()
        row = {
            "digest": digest(token),
            "kind": kind,
            "key_id": key.id,
            "created_at": now,
            "expires_at": now + lasts_ms,
        }
        same = logins.c.kind == kind, logins.c.key_id == key.id
        newest = logins.c.created_at.desc(), logins.c.digest
        surplus = select(logins.c.digest).where(*same).order_by(*newest).offset(most - 1)

        def make(connection: Connection) -> list[bytes]:
            connection.execute(delete(logins).where(logins.c.expires_at <= now))
            ended = list(connection.execute(surplus).scalars())
            if ended:
                connection.execute(delete(logins).where(logins.c.digest.in_(ended)))
            connection.execute(insert(logins), row)
            return ended

        for ended in await self._ledger.write(make):
            self._known.pop(ended)
        return token

    async def _read(self, wanted: bytes, now: float) -> _Known | None:
        query = (
            select(api_keys.c.digest, logins.c.expires_at)
            .join(api_keys, api_keys.c.id == logins.c.key_id)
            .where(logins.c.digest == wanted, logins.c.kind == _SESSION)
        )
        row = await self._ledger.read(lambda connection: connection.execute(query).first())
        self._known.pop(wanted)
        if row is None:
            return None
        known = _Known(row.digest, row.expires_at)
        self._known.put(wanted, known, since=now)
        return known


def csrf_of(cookie: str) -> str:
    """Return the CSRF token of a login session: only its own pages and its cookie reveal it."""
    return sha256(b"csrf\0" + cookie.encode("utf-8", "surrogatepass")).hexdigest()
