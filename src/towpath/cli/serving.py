"""Starting the HTTP server from the command line: settings in, parts put together, told."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from towpath.app import Towpath
from towpath.apps.messages.options import MessagesOptions
from towpath.calls.signature import new_secret
from towpath.cli.ledgers import file_in
from towpath.cli.verb import Session
from towpath.clock import seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.errors import InvalidOption
from towpath.ledger.ledger import Ledger
from towpath.server.build import Parts, build
from towpath.server.limits import ServerLimits
from towpath.server.run import is_local, listen, serve
from towpath.settings import Settings, load
from towpath.telemetry import events, logs
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics

FIRST_KEY = "first"
_LEDGER_LIMIT = seconds(1.5)
"""A caller over HTTP is told within two seconds that the database is away."""
_LOOK_EVERY = 0.5


def serve_beside(session: Session, flags: Mapping[str, Any], log: Mapping[str, Any]) -> None:
    """Serve on the servers that the settings name."""
    settings = _settings(session, flags, log)
    if settings.database is None:
        rule = "say --database sqlite:///path/to/file.db, or set DATABASE_URL; or use `towpath up`"
        raise InvalidOption("database", "", rule=rule)
    database = settings.database.get_secret_value()
    asyncio.run(_Serving(session, settings, settings.server, database).run())


def serve_alone(session: Session, flags: Mapping[str, Any], log: Mapping[str, Any]) -> None:
    """Serve on servers of its own, in the data directory."""
    settings = _settings(session, flags, log)
    database = file_in(settings.data)
    data = database.parent
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidOption("data", str(data), rule=f"can't be made: {error.strerror}") from error
    with EmbeddedServer(data=data / "valkey") as server:
        serving = _Serving(session, settings, server.url, f"sqlite:///{database}", data=data)
        asyncio.run(_with_its_store(serving, server))


async def _with_its_store(serving: _Serving, server: EmbeddedServer) -> None:
    """Serve, and start the store again if it ends by itself."""
    watching = asyncio.create_task(_keep_running(server))
    try:
        await serving.run()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _keep_running(server: EmbeddedServer) -> None:
    log = Log()
    while True:
        await asyncio.sleep(_LOOK_EVERY)
        if not server.running:
            await asyncio.to_thread(server.restart)
            log.emit(events.STORE_RESTARTED, server=server.url)


def _settings(session: Session, flags: Mapping[str, Any], log: Mapping[str, Any]) -> Settings:
    settings = load({**session.flags(log=log), **flags})
    logs.configure(form=settings.log.format, level=settings.log.level)
    logging.getLogger("alembic").setLevel(logging.WARNING)
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

    async def run(self) -> None:
        settings, log = self._settings, Log()
        # The address first: a key that is made is shown, or it is not made.
        with listen(settings.host, settings.port) as sock:
            await self._prepare()
            app = build(
                Parts(
                    connect=self._engine,
                    ledger=Ledger(self._database, limit=_LEDGER_LIMIT),
                    limits=_limits(settings),
                    metrics=Metrics(),
                    log=log,
                    version=version("towpath"),
                    messages=self._messages(),
                    app=lambda: Towpath(self._url, declared=settings.declared),
                    grace=settings.http.grace,
                )
            )
            await serve(app, sock, started=self._started, log=log, grace=settings.http.grace)

    def _engine(self, limits: Limits) -> Engine:
        return Engine(self._url, limits=limits, declared=self._settings.declared)

    def _messages(self) -> MessagesOptions:
        """How messages leave; `up` has a secret of its own to sign them with."""
        settings = self._settings
        secrets = tuple(it.get_secret_value() for it in settings.calls.secrets)
        if not secrets and self._data is not None:
            secrets = (kept_secret(self._data / "signing.secret"),)
        url = settings.messages_worker_url
        return MessagesOptions(
            worker_url=url.get_secret_value() if url else None,
            secrets=secrets,
            allow=settings.calls.allow,
        )

    async def _prepare(self) -> None:
        """The schema is up to date. A public address without a key is refused."""
        settings = self._settings
        async with Ledger(self._database) as ledger:
            await ledger.migrate()
            if settings.api_key is not None:
                await ledger.keys.ensure(settings.api_key.get_secret_value(), name=FIRST_KEY)
            elif self._data is None and not is_local(settings.host) and not await _any_key(ledger):
                rule = "is public, and there is no key: `towpath keys create --scope admin`"
                raise InvalidOption("host", settings.host, rule=rule)

    async def _started(self, address: str) -> None:
        """Say where it serves, with the first key if there was none."""
        Log().emit(events.HTTP_STARTED, address=address, version=version("towpath"))
        secret, out = await self._first_key(), self._out
        if out.as_json:
            store = self._url if self._data is not None else None
            told = {"address": address, "data": self._data, "store": store, "api_key": secret}
            out.object({name: value for name, value in told.items() if value is not None})
            sys.stdout.flush()
            return
        key = secret or "made before; `towpath keys create` makes another"
        store = self._url if self._data is not None else None
        out.facts({"serving": address, "data": self._data, "store": store, "api key": key})
        sys.stdout.flush()
        out.note(_TRY.format(address=address, key=secret or "$TOWPATH_API_KEY"))

    async def _first_key(self) -> str | None:
        """The secret of a key that was made just now, for whoever started `up`.

        None if there is one, or if the database is somebody's own: he makes his keys himself.
        """
        if self._data is None:
            return None
        async with Ledger(self._database) as ledger:
            if await _any_key(ledger):
                return None
            made = await ledger.keys.create(FIRST_KEY, scopes=["admin"])
            return made.secret.get_secret_value()


def kept_secret(path: Path) -> str:
    """The secret in *path*, made at the first start and readable for its owner alone."""
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(new_secret())
    return path.read_text()


async def _any_key(ledger: Ledger) -> bool:
    """Whether a key was ever made; one that was revoked counts, so that none appears by itself."""
    return bool(await ledger.keys.list())


_TRY = """
try  curl -s {address}/readyz
     curl -s {address}/api/v1/queues/mails/jobs -H "Authorization: Bearer {key}" \\
          -H 'Content-Type: application/json' -d '{{"payload": "hello"}}'
     curl -s {address}/api/v1/queues/mails/claim -H "Authorization: Bearer {key}" \\
          -H 'Content-Type: application/json' -d '{{"worker": "me"}}'
"""


def _limits(settings: Settings) -> ServerLimits:
    http = settings.http
    return ServerLimits(
        body=http.body, body_within=http.body_within, rate=http.rate, streams=http.streams
    )
