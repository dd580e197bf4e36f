"""Starting the HTTP server from the command line: reads the settings, builds the parts."""

from __future__ import annotations

import asyncio
import logging
import shlex
import sys
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from socket import socket
from typing import Any, NamedTuple

from towpath.app.app import Towpath
from towpath.apps.application import Own, OwnObjects, StartFact, applications, tables_of
from towpath.calls.errors import SecretInvalid
from towpath.calls.signature import check_secret, new_secret
from towpath.cli.keys import SIGNING
from towpath.cli.running import import_from_here
from towpath.clock import instant, seconds, steady, wall_ms
from towpath.console.verb import Session, file_in
from towpath.embedded import EmbeddedServer
from towpath.embedded.errors import EmbeddedError
from towpath.embedded.objects import EmbeddedObjects
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.errors import InvalidOption
from towpath.files import PRIVATE, FileDamaged, durable_file, kept_file, replace_file
from towpath.ledger.keys.key import Scope
from towpath.ledger.ledger import Ledger
from towpath.ledger.outbox.options import OutboxOptions
from towpath.server.build import Parts, build
from towpath.server.run import is_local, listen, serve, url_of
from towpath.settings import Settings, load
from towpath.supervise import Background, new_loop
from towpath.telemetry import events, logs
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics
from towpath.web.limits import ServerLimits

FIRST_KEY = "first"
API_KEY, LOGIN = "api.key", "login.link"
"""Files in the data directory of `towpath up`: its first key and the link that logs in, where its
output is no terminal."""
_LEDGER_LIMIT = seconds(1.5)
"""A caller over HTTP is told within two seconds that the database is away."""
_LOOK_EVERY = 0.1
_STEADY = 30.0
"""Seconds after which a store that was started counts as one that runs."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_LONGEST_AFTER_SLOW_STARTS = 10.0
_Store = EmbeddedServer | EmbeddedObjects


def serve_beside(session: Session, flags: Mapping[str, Any], log: Mapping[str, Any]) -> None:
    """Serve on the servers that the settings name."""
    settings = _settings(session, flags, log)
    if settings.database is None:
        rule = "pass --database sqlite:///path/to/file.db or set DATABASE_URL, or use `towpath up`"
        raise InvalidOption("database", "", rule=rule)
    with listen(settings.host, settings.port) as sock:
        _run(_Serving(session, settings, settings.server, settings.database).run(sock))


def serve_alone(session: Session, flags: Mapping[str, Any], log: Mapping[str, Any]) -> None:
    """Serve on a Valkey of its own and, unless the settings name one, on a database of its own."""
    settings = _settings(session, flags, log)
    # The address first: one that is taken is refused before anything is made or started.
    with listen(settings.host, settings.port) as sock:
        file = file_in(settings.data)
        data = _made(file.parent)
        _close_to_others(file)
        objects = EmbeddedObjects(data / "objects") if settings.objects else None
        with EmbeddedServer(data=data / "valkey") as server, objects or nullcontext():
            serving = _Serving(
                session,
                settings,
                server.url,
                settings.database or f"sqlite:///{file}",
                own=_own(data, objects),
            )
            _run(_with_its_stores(serving, [store for store in (server, objects) if store], sock))


def _own(data: Path, objects: EmbeddedObjects | None) -> Own:
    """What applications may use of it."""
    if objects is None:
        return Own(data)
    return Own(data, OwnObjects(objects.url, objects.access_key, objects.secret_key))


def _run(serving: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serving)


def _made(data: Path) -> Path:
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidOption("data", str(data), rule=f"can't be made: {error.strerror}") from error
    return data


def _close_to_others(database: Path) -> None:
    """A database of ours that others may read, because an older Towpath made it so."""
    for file in (
        database,
        *(database.with_name(database.name + suffix) for suffix in ("-wal", "-shm")),
    ):
        with suppress(FileNotFoundError):
            file.chmod(PRIVATE)


async def _with_its_stores(serving: _Serving, stores: Sequence[_Store], sock: socket) -> None:
    """Serve, and start a store again that ends by itself."""
    watching = [
        Background(
            "watcher of the store"
            if isinstance(store, EmbeddedServer)
            else "watcher of the objects",
            partial(_keep_running, store),
        ).start()
        for store in stores
    ]
    try:
        await serving.run(sock)
    finally:
        for task in watching:
            await task.stop()


async def _keep_running(server: _Store) -> None:
    """Start it again whenever it has ended, for as long as that takes."""
    log, pause, took, started_at = Log(), 0.0, 0.0, float("-inf")
    while True:
        await asyncio.sleep(_LOOK_EVERY)
        if server.running:
            continue
        pause = restart_pause(pause, ran=steady() - started_at, took=took)
        await asyncio.sleep(pause)
        began = steady()
        try:
            await asyncio.to_thread(server.restart)
        except (EmbeddedError, OSError) as error:
            name, reason = type(error).__qualname__, str(error)
            following = restart_pause(pause, ran=0.0, took=steady() - began)
            about = {"server": server.url, "error": name, "reason": reason, "pause": following}
            log.emit(events.STORE_DOWN, **about)
        else:
            log.emit(events.STORE_RESTARTED, server=server.url)
        started_at = steady()
        took = started_at - began


def restart_pause(last: float, *, ran: float, took: float) -> float:
    """Seconds to wait before a private server is started again, after it *ran* for that long.

    One that ran for a while is started at once. One that ends soon after each start waits longer
    each time, because it may do so until its disk has room again. A start *took* that long: one
    that reads much data is not repeated as often.
    """
    if ran >= _STEADY:
        return 0.0
    longest = min(max(_LONGEST_PAUSE, took * 2), _LONGEST_AFTER_SLOW_STARTS)
    return min(last * 2 or _FIRST_PAUSE, longest)


def _settings(session: Session, flags: Mapping[str, Any], log: Mapping[str, Any]) -> Settings:
    settings = load({**session.flags(log=log), **flags}, registry=session.registry)
    logs.configure(form=settings.log.format, level=settings.log.level)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    import_from_here()  # applications, and what they name
    applications(settings.applications)  # before anything is made: one that can't be is refused
    return settings


class _FirstSecrets(NamedTuple):
    """What whoever started `up` needs to begin."""

    key: str | None
    """To be shown; None = there is none, or it is in its file."""
    login: str | None
    files: dict[str, Path]
    """The files that there are, by name."""


class _Serving:
    """One run of the server."""

    def __init__(
        self,
        session: Session,
        settings: Settings,
        url: str,
        database: str,
        *,
        own: Own | None = None,
    ) -> None:
        data = own.data if own else None
        if not settings.calls.secrets and data is not None:
            settings = settings.signing_with((kept_secret(data / SIGNING),))
        self._out, self._settings, self._url = session.out, settings, url
        self._database, self._data = database, data
        self._objects = own.objects.url if own and own.objects else None
        self._metrics, self._limits = Metrics(), settings.of(ServerLimits)
        self._applications = applications(settings.applications)
        self._options = {
            application.name: application.with_own(settings.of(application.options), own)
            for application in self._applications
        }
        self._outbox = settings.of(OutboxOptions)
        self._tables = tables_of(self._applications)
        self._ledger = Ledger(
            database, limit=_LEDGER_LIMIT, sinks=self._outbox.sinks, tables=self._tables
        )

    async def run(self, sock: socket) -> None:
        """Serve at *sock* until a signal comes."""
        log = Log()
        await self._prepare()
        parts = Parts(
            connect=self._engine,
            ledger=self._ledger,
            limits=self._limits,
            metrics=self._metrics,
            log=log,
            version=version("towpath"),
            applications=self._applications,
            options=self._options,
            outbox=self._outbox,
            app=self._app,
        )
        app = build(parts)
        app.state.frame.compile_first()
        # A script that waits for /readyz finds the files. A terminal is shown the secrets at the
        # end: a key that is made before would be lost if the server did not start.
        made = None if sys.stdout.isatty() else await self._make_secrets(url_of(sock))
        await serve(
            app,
            sock,
            started=partial(self._started, app.state.webhooks, made),
            log=log,
            grace=self._limits.grace,
            head_within=self._limits.head_within,
        )

    def _engine(self, limits: Limits) -> Engine:
        return Engine(self._url, limits=limits, declared=self._settings.declared)

    def _app(self) -> Towpath:
        """What the server's own handlers belong to; one `/metrics` tells of both."""
        app = Towpath(self._url, declared=self._settings.declared, ledger=self._ledger)
        app.metrics = self._metrics
        return app

    async def _prepare(self) -> None:
        """The schema is up to date. A public address without a key is refused."""
        settings = self._settings
        async with Ledger(self._database, tables=self._tables) as ledger:
            await ledger.migrate()
            if settings.api_key is not None:
                await ledger.keys.ensure(settings.api_key, name=FIRST_KEY)
            elif self._data is None and not is_local(settings.host) and not await _any_key(ledger):
                rule = "is public, and there is no key: `towpath keys create NAME --scope admin`"
                raise InvalidOption("host", settings.host, rule=rule)

    async def _started(
        self, webhooks: Sequence[str], made: _FirstSecrets | None, address: str
    ) -> None:
        """Say where it serves, with the first key if there was none."""
        Log().emit(events.HTTP_STARTED, address=address, version=version("towpath"))
        (secret, login, files), out = made or await self._make_secrets(address), self._out
        store = self._url if self._data is not None else None
        database = self._ledger.shown if self._settings.database is not None else None
        own = {"data": self._data, "store": store, "database": database, "objects": self._objects}
        hooks, facts = [f"{address}{path}" for path in webhooks], self._facts()
        if out.as_json:
            told: dict[str, object] = {"address": address, **own, "api_key": secret, "login": login}
            told |= {f"{name}_file": path for name, path in files.items()}
            told |= {name: fact.value for name, fact in facts.items()} | {"webhooks": hooks or None}
            out.object({name: value for name, value in told.items() if value is not None})
            sys.stdout.flush()
            return
        key_file, link_file = files.get("api_key"), files.get("login")
        key = secret or (f"in {key_file}" if key_file else await self._about_keys())
        taken = {name: fact.value or fact.without for name, fact in facts.items()}
        hooked = {"webhooks": ", ".join(hooks) or None}
        shown = login or (f"with the link in {link_file}" if link_file else None)
        shown = f"{shown}  (this link works once, within 10 minutes)" if shown else None
        facts = {"serving": address, "dashboard": shown, **own, **hooked, **taken, "api key": key}
        out.facts(facts)
        sys.stdout.flush()
        known = f"$(cat {shlex.quote(str(key_file))})" if key_file else "$TOWPATH_API_KEY"
        shown_there = secret if secret and sys.stderr.isatty() else known
        out.note(_TRY.format(address=address, key=shown_there))

    async def _make_secrets(self, address: str) -> _FirstSecrets:
        """The first key if there was none, and a login link: for a terminal as they are, else in
        files that only their owner can read.
        """
        secret, login = await self._first_key(), await self._login(address)
        if self._data is None:
            return _FirstSecrets(None, None, {})
        key, link = (self._data / API_KEY).absolute(), (self._data / LOGIN).absolute()
        files = {"api_key": key} if key.exists() else {}
        if sys.stdout.isatty():
            return _FirstSecrets(secret, login, files)
        # What goes to a pipe or a file is often a log that others read.
        if secret is not None:
            durable_file(key, f"{secret}\n".encode())
            files["api_key"] = key
        if login is not None:
            replace_file(link, f"{login}\n")
            files["login"] = link
        return _FirstSecrets(None, None, files)

    async def _login(self, address: str) -> str | None:
        """A link to the dashboard that logs in once, for whoever started `up`.

        The session is that of the first admin key that counts; None if there is none.
        """
        if self._data is None:
            return None
        async with Ledger(self._database) as ledger:
            for key in await ledger.keys.list():
                if key.may(Scope.ADMIN) and "*" in key.queues and not key.ended(instant(wall_ms())):
                    return f"{address}/?login={await ledger.logins.link(key)}"
        return None

    def _facts(self) -> dict[str, StartFact]:
        """What the applications tell at the start."""
        told: dict[str, StartFact] = {}
        for application in self._applications:
            told |= (
                application.load(application.facts)(self._options[application.name])
                if application.facts
                else {}
            )
        return told

    async def _about_keys(self) -> str:
        """Where a key is to be had; the secret of one that was made before is known to nobody."""
        async with Ledger(self._database) as ledger:
            if await _any_key(ledger):
                return "created earlier; `towpath keys create` makes another"
        return "none yet: `towpath keys create NAME --scope admin` makes one"

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
    """The secret in *path*, made at the first start and readable for its owner alone.

    Raises FileDamaged for one that is none: signed with that, no call would be believed.
    """
    secret = kept_file(path, new_secret()).strip()
    try:
        check_secret(secret)
    except SecretInvalid as error:
        raise FileDamaged(path) from error
    return secret


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
