"""Sessions: requests that stay open, how many there may be, and until when their keys count."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum

from fastapi import Request

from towpath.errors import TowpathError
from towpath.ledger.keys.key import KeyInfo
from towpath.supervise import Background
from towpath.web.auth import key_of, recheck_of
from towpath.web.limits import ServerLimits
from towpath.web.problems import Refused

LOOK_EVERY = 0.5
"""Seconds between two looks at a key. What is known of one is asked for again after three seconds,
so whoever's key was revoked is shown out within five.
"""
_AGAIN = {"Retry-After": "5"}


class Kind(StrEnum):
    """What stays open."""

    STREAM = "event streams"
    WAIT = "waiting claims"


class Session:
    """One request that stays open, from `Sessions.open` to `close`."""

    __slots__ = ("_close", "_ended", "_on_end")

    def __init__(self, close: Callable[[Session], None]) -> None:
        self._close = close
        self._ended = False
        self._on_end: Callable[[], object] | None = None

    def on_end(self, then: Callable[[], object]) -> None:
        """Call *then* when the key no longer counts."""
        self._on_end = then
        if self._ended:
            then()

    def end(self) -> None:
        """The key no longer counts."""
        self._ended = True
        if self._on_end is not None:
            self._on_end()

    def close(self) -> None:
        """It is not open any more. Twice does no harm."""
        self._close(self)


class _Holder:
    """The open sessions of one key."""

    def __init__(self, recheck: Callable[[], Awaitable[KeyInfo | None]]) -> None:
        self.recheck = recheck
        self.sessions: dict[Session, Kind] = {}

    def count(self, kind: Kind) -> int:
        return sum(it is kind for it in self.sessions.values())


class Sessions:
    """All that is open, by key. A key that is revoked or has expired ends what is open with it;
    so does a database that can't say, as it does for requests.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self._together = {Kind.STREAM: limits.streams, Kind.WAIT: limits.waits}
        self._each = {Kind.STREAM: limits.streams_per_key, Kind.WAIT: limits.waits}
        self._open = dict.fromkeys(Kind, 0)
        self._holders: dict[str, _Holder] = {}
        self._watching = Background("watcher of open sessions", self._watch)

    def count(self, kind: Kind) -> int:
        """How many of *kind* are open."""
        return self._open[kind]

    def refuse_if_full(self, request: Request, kind: Kind) -> None:
        """429 if the key has too many of *kind* open, 503 if all together have."""
        holder = self._holders.get(key_of(request).id)
        if holder is not None and holder.count(kind) >= self._each[kind]:
            raise Refused(
                429,
                "too_many_of_key",
                f"{self._each[kind]} {kind} are open with this key",
                remedy="Close some, or use another key.",
                headers=_AGAIN,
            )
        if self._open[kind] >= self._together[kind]:
            raise Refused(
                503,
                f"too_many_{kind.name.lower()}s",
                f"{self._together[kind]} {kind} are open on this server",
                remedy="Close some, or start another server.",
                headers=_AGAIN,
            )

    def open(self, request: Request, kind: Kind) -> Session:
        """Count a request as open until it is closed. 429, 503."""
        self.refuse_if_full(request, kind)
        key = key_of(request).id
        holder = self._holders.get(key)
        if holder is None:
            holder = self._holders[key] = _Holder(recheck_of(request))

        def close(session: Session) -> None:
            if holder.sessions.pop(session, None) is not None:
                self._open[kind] -= 1
                if not holder.sessions and self._holders.get(key) is holder:
                    del self._holders[key]

        session = Session(close)
        holder.sessions[session] = kind
        self._open[kind] += 1
        self._watching.start()
        return session

    async def close(self) -> None:
        """Look at keys no more."""
        await self._watching.stop()

    async def _watch(self) -> None:
        while self._holders:
            await asyncio.sleep(LOOK_EVERY)
            await asyncio.gather(*map(self._look, list(self._holders.values())))
        self._watching.retire()  # until the next one is opened

    async def _look(self, holder: _Holder) -> None:
        try:
            counts = await holder.recheck() is not None
        except TowpathError:
            counts = False
        if not counts:
            for session in list(holder.sessions):
                session.end()
