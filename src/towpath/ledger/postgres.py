"""PostgreSQL: for several hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import asyncpg  # pyright: ignore[reportMissingTypeStubs] -- it has none; what is used is cast
from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from towpath.clock import Duration
from towpath.ledger.failures import meaning, wrong_url

T = TypeVar("T")

_CONNECTIONS, _MORE_AT_PEAKS = 5, 10
_ALONE = int.from_bytes(b"towpath", "big")
"""The number of the advisory lock: any, as long as nobody else takes it."""


class PostgresStore:
    """The database at *url*, which may say what libpq understands (`sslmode` and the like).

    *limit* bounds each wait: for a connection, and for the answer to a statement.
    """

    def __init__(self, url: str, *, limit: Duration) -> None:
        parts, seconds = urlsplit(url), limit.total_seconds()
        self.shown = f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._url, self._limit = url, seconds
        self._engine = _engine(
            url,
            {"timeout": seconds, "command_timeout": seconds},
            pool_size=_CONNECTIONS,
            max_overflow=_MORE_AT_PEAKS,
            pool_timeout=seconds,
            # A connection that a restart has cut is found before it is used.
            pool_pre_ping=True,
        )

    def start(self) -> None:
        """Nothing to start: a connection is made when it is needed."""

    async def close(self) -> None:
        await self._engine.dispose()

    async def read(self, query: Callable[[Connection], T]) -> T:
        """What *query* answers."""
        async with self._engine.connect() as connection:
            return await connection.run_sync(query)

    async def write(self, change: Callable[[Connection], T]) -> T:
        """What *change* answers, once it is committed. The server joins commits by itself."""
        async with self._engine.begin() as connection:
            return await connection.run_sync(change)

    async def alone(self, change: Callable[[Connection], T]) -> T:
        """Do *change* while nobody else does anything alone, however long that takes to come."""
        engine = _engine(self._url, {"timeout": self._limit}, poolclass=NullPool)
        async with engine.begin() as connection:
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({_ALONE})"))
            return await connection.run_sync(change)


def _engine(url: str, limits: dict[str, float], **pool: Any) -> AsyncEngine:
    async def connect() -> Any:
        # asyncpg reads the URL itself. SQLAlchemy, which would pass `sslmode` on as it is, never
        # sees it: nor can it show the password.
        try:
            return await cast("Any", asyncpg).connect(
                url, server_settings={"application_name": "towpath"}, **limits
            )
        except (asyncpg.PostgresError, OSError) as error:
            raise meaning(error) from error
        except (ValueError, asyncpg.InterfaceError):
            # `from None`: the error quotes the URL.
            raise wrong_url("can not be read") from None

    return create_async_engine(
        "postgresql+asyncpg://", async_creator=connect, hide_parameters=True, **pool
    )
