"""A server with uploads into a directory, and workers beside it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from tests.server.messaging import started
from tests.waiting import PATIENT
from towpath import Towpath
from towpath.apps.uploads.options import MIB, UploadsOptions
from towpath.apps.uploads.tables import TABLES
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger
from towpath.server.build import Parts, build
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics
from towpath.web.limits import ServerLimits

ORIGIN = "https://files.example"


@asynccontextmanager
async def uploads_app(
    server: EmbeddedServer, database: str, folder: Path, **more: Any
) -> AsyncGenerator[FastAPI]:
    """Room for eight parts, four of them one key's; and whatever else is said."""
    ledger = Ledger(database, tables=[TABLES])
    async with ledger:
        await ledger.migrate()
    given: dict[str, Any] = {"budget": 64 * MIB, "origins": (ORIGIN,)}
    options = UploadsOptions(directory=folder / "objects", **(given | more))
    metrics = Metrics()

    def working() -> Towpath:
        app = Towpath(server.url, ledger=ledger)
        app.metrics = metrics
        return app

    parts = Parts(
        connect=lambda _: Engine(server.url, limits=PATIENT),
        ledger=ledger,
        limits=ServerLimits(),
        metrics=metrics,
        log=Log(),
        version="0",
        options={"uploads": options},
        app=working,
    )
    async with started(build(parts)) as app:
        yield app
