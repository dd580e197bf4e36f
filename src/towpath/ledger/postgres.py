"""PostgreSQL: for several hosts."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import urlsplit

import asyncpg  # pyright: ignore[reportMissingTypeStubs] -- it has none; what is used is cast
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from towpath.clock import Duration
from towpath.ledger.database import Database, meaning, wrong_url

_CONNECTIONS, _MORE_AT_PEAKS = 5, 10
_MIGRATION = int.from_bytes(b"towpath", "big")
"""The number of the advisory lock: any, as long as nobody else takes it."""


def open_postgres(url: str, *, limit: Duration) -> Database:
    """The database at *url*, which may say all that libpq understands (`sslmode` and the like)."""
    seconds = limit.total_seconds()
    engine = _engine(
        url,
        {"timeout": seconds, "command_timeout": seconds},
        pool_size=_CONNECTIONS,
        max_overflow=_MORE_AT_PEAKS,
        pool_timeout=seconds,
        # A connection that a restart has cut is found before it is used.
        pool_pre_ping=True,
    )
    return Database(
        shown=_shown(url),
        reads=engine,
        writes=engine,
        patient=lambda: _engine(url, {"timeout": seconds}, poolclass=NullPool),
        joins_writes=False,
        migration_lock=f"SELECT pg_advisory_xact_lock({_MIGRATION})",
    )


def _shown(url: str) -> str:
    parts = urlsplit(url)
    return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"


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
