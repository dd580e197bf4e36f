"""A server with uploads into a directory, and workers beside it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from tests.server.in_process import build_server, started
from tests.waiting import PATIENT
from towpath.apps.uploads.options import MIB, UploadsOptions
from towpath.apps.uploads.tables import TABLES
from towpath.embedded import EmbeddedServer
from towpath.ledger.ledger import Ledger

ORIGIN = "https://files.example"


@asynccontextmanager
async def uploads_app(
    server: EmbeddedServer, database: str, folder: Path, **more: Any
) -> AsyncGenerator[FastAPI]:
    """A server with a budget of eight parts, four for each owner; *more* are further options."""
    ledger = Ledger(database, tables=[TABLES])
    async with ledger:
        await ledger.migrate()
    given: dict[str, Any] = {"budget": 64 * MIB, "owner_share": 50, "origins": (ORIGIN,)}
    options = UploadsOptions(directory=folder / "objects", **(given | more))
    built = build_server(
        server.url, ledger, {"uploads": options}, patience=PATIENT, with_workers=True
    )
    async with started(built) as app:
        yield app
