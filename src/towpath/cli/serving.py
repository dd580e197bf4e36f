"""Starting the HTTP server from the command line: settings in, parts put together, told."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from towpath.cli.verb import Session
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.errors import InvalidOption
from towpath.ledger.ledger import Ledger
from towpath.server.build import Parts, build
from towpath.server.limits import ServerLimits
from towpath.server.run import is_local, listen, serve
from towpath.settings import Settings, load
from towpath.telemetry import logs
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics

FIRST_KEY = "first"


def serve_beside(session: Session, flags: Mapping[str, Any], log: Mapping[str, Any]) -> None:
    """Serve on the servers that the settings name."""
    settings = _settings(session, flags, log)
    if settings.database is None:
        rule = "say --database sqlite:///path/to/file.db, or set DATABASE_URL; or use `towpath up`"
        raise InvalidOption("database", "", rule=rule)
    asyncio.run(_Serving(session, settings, settings.server, database_of(settings)).run())


def serve_alone(session: Session, flags: Mapping[str, Any], log: Mapping[str, Any]) -> None:
    """Serve on servers of its own, in the data directory."""
    settings = _settings(session, flags, log)
    data = settings.data.expanduser().absolute()
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    with EmbeddedServer(data=data / "valkey") as server:
        database = f"sqlite:///{data / 'towpath.db'}"
        asyncio.run(_Serving(session, settings, server.url, database, data=data).run())


def database_of(settings: Settings) -> str:
    return settings.database.get_secret_value() if settings.database else ""


def _settings(session: Session, flags: Mapping[str, Any], log: Mapping[str, Any]) -> Settings:
    settings = load({**session.flags(log=log), **flags})
    logs.configure(form=settings.log.format, level=settings.log.level)
    for talkative in ("alembic", "uvicorn"):
        logging.getLogger(talkative).setLevel(logging.WARNING)
    return settings


class _Serving:
    """One run of the server."""

    def __init__(
        self,
        session: Session,
        settings: Settings,
        url: str,
        database: str,
        *,
        data: Path | None = None,
    ) -> None:
        self._out, self._settings, self._url = session.out, settings, url
        self._database, self._data = database, data
        self._secret: str | None = None

    async def run(self) -> None:
        settings = self._settings
        await self._prepare()
        sock = listen(settings.host, settings.port)
        app = build(
            Parts(
                connect=lambda limits: Engine(self._url, limits=limits, declared=settings.declared),
                ledger=Ledger(self._database),
                limits=_limits(settings),
                metrics=Metrics(),
                log=Log(),
                version=version("towpath"),
            )
        )
        await serve(app, sock, started=self._started, grace=settings.http.grace)

    async def _prepare(self) -> None:
        """The schema is up to date, and there is a key. A public address without one is refused."""
        settings = self._settings
        async with Ledger(self._database) as ledger:
            await ledger.migrate()
            if settings.api_key is not None:
                await ledger.keys.ensure(settings.api_key.get_secret_value(), name=FIRST_KEY)
            elif not await ledger.keys.list():
                if self._data is None and not is_local(settings.host):
                    rule = "is public, and there is no key: `towpath keys create --scope admin`"
                    raise InvalidOption("host", settings.host, rule=rule)
                made = await ledger.keys.create(FIRST_KEY, scopes=["admin"])
                self._secret = made.secret.get_secret_value()

    async def _started(self, address: str) -> None:
        out = self._out
        if out.as_json:
            told = {"address": address, "data": self._data, "api_key": self._secret}
            out.object({name: value for name, value in told.items() if value is not None})
            sys.stdout.flush()
            return
        key = self._secret or "(made before; `towpath keys create` makes another)"
        out.facts({"serving": address, "data": self._data, "api key": key})
        sys.stdout.flush()
        out.note(_TRY.format(address=address, key=self._secret or "$TOWPATH_API_KEY"))


_TRY = """
try  curl -s {address}/readyz
     curl -s {address}/api/v1/queues/mails/jobs -H 'Authorization: Bearer {key}' \\
          -H 'Content-Type: application/json' -d '{{"payload": "hello"}}'
     curl -s {address}/api/v1/queues/mails/claim -H 'Authorization: Bearer {key}' \\
          -H 'Content-Type: application/json' -d '{{"worker": "me"}}'
"""


def _limits(settings: Settings) -> ServerLimits:
    http = settings.http
    return ServerLimits(
        body=http.body, body_within=http.body_within, rate=http.rate, streams=http.streams
    )
