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
from towpath.apps.application import (
    BundledObjectStore,
    BundledServices,
    StartFact,
    applications,
    tables_of,
)
from towpath.backoff import Backoff
from towpath.calls.errors import SecretInvalid
from towpath.calls.signature import check_secret, new_secret
from towpath.cli.keys import SIGNING
from towpath.cli.running import import_from_here
from towpath.clock import instant, seconds, steady, wall_ms
from towpath.console.verb import Session, file_in
from towpath.embedded import EmbeddedServer
from towpath.embedded.errors import EmbeddedError
from towpath.embedded.objects import EmbeddedObjects
from towpath.engine.engine import Engine
from towpath.errors import InvalidOption
from towpath.files import PRIVATE, FileDamaged, durable_file, kept_file, replace_file
from towpath.ledger.keys.key import Scope
from towpath.ledger.ledger import Ledger
from towpath.ledger.outbox.options import OutboxOptions
from towpath.server.build import LIMITS, ServerSetup, build
from towpath.server.run import is_local, listen, serve, url_of
from towpath.settings import Settings, load
from towpath.supervise import Background, new_loop
from towpath.telemetry import events, logs
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics
from towpath.web.limits import ServerLimits

FIRST_KEY = "first"
API_KEY, LOGIN = "api.key", "login.link"
"""Files in the data directory of `towpath up`: its first key and the login link, written if its
output is not a terminal."""
_LEDGER_LIMIT = seconds(1.5)
"""Short, so that an HTTP client gets an error within two seconds if the database is unreachable."""
_LOOK_EVERY = 0.1
_STEADY = 30.0
"""Seconds after which a private server that was started counts as stable."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_LONGEST_AFTER_SLOW_STARTS = 10.0
_BundledServer = EmbeddedServer | EmbeddedObjects


def serve_beside(session: Session, flags: Mapping[str, Any], log: Mapping[str, Any]) -> None:
    """Serve with the Redis and the database of the settings."""
    settings = _settings(session, flags, log)
    if settings.database is None:
        rule = "pass --database sqlite:///path/to/file.db or set DATABASE_URL, or use `towpath up`"
        raise InvalidOption("database", "", rule=rule)
    with listen(settings.host, settings.port) as sock:
        _run(_Serving(session, settings, settings.server, settings.database).run(sock))


def serve_alone(session: Session, flags: Mapping[str, Any], log: Mapping[str, Any]) -> None:
    """Serve with a private Valkey and, unless the settings have a database, a private one."""
    settings = _settings(session, flags, log)
    # Listen first: if the address is taken, nothing is created or started.
    with listen(settings.host, settings.port) as sock:
        file = file_in(settings.data)
        data = _make_directory(file.parent)
        _make_private(file)
        objects = EmbeddedObjects(data / "objects") if settings.objects else None
        with EmbeddedServer(data=data / "valkey") as server, objects or nullcontext():
            serving = _Serving(
                session,
                settings,
                server.url,
                settings.database or f"sqlite:///{file}",
                bundled=_bundled_services(data, objects),
            )
            _run(_serve_with_bundled(serving, [each for each in (server, objects) if each], sock))


def _bundled_services(data: Path, objects: EmbeddedObjects | None) -> BundledServices:
    """What applications may use: the data directory, and the object store if there is one."""
    if objects is None:
        return BundledServices(data)
    return BundledServices(
        data, BundledObjectStore(objects.url, objects.access_key, objects.secret_key)
    )


def _run(serving: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serving)


def _make_directory(data: Path) -> Path:
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidOption("data", str(data), rule=f"can't be made: {error.strerror}") from error
    return data


def _make_private(database: Path) -> None:
    """Make the files of the database private: an older release created them readable for others."""
    for file in (
        database,
        *(database.with_name(database.name + suffix) for suffix in ("-wal", "-shm")),
    ):
        with suppress(FileNotFoundError):
            file.chmod(PRIVATE)


async def _serve_with_bundled(
    serving: _Serving, bundled: Sequence[_BundledServer], sock: socket
) -> None:
    """Serve, and restart Valkey or the object store if one ends by itself."""
    watching = [
        Background(
            "watcher of the store"
            if isinstance(server, EmbeddedServer)
            else "watcher of the objects",
            partial(_keep_running, server),
        ).start()
        for server in bundled
    ]
    try:
        await serving.run(sock)
    finally:
        for task in watching:
            await task.stop()


async def _keep_running(server: _BundledServer) -> None:
    """Restart *server* whenever it has ended; repeats a restart until it succeeds."""
    log, backoff = Log(), Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
    pause: float | None = None  # None = to be chosen when the server has ended
    took, started_at = 0.0, float("-inf")
    while True:
        await asyncio.sleep(_LOOK_EVERY)
        if server.running:
            continue
        if pause is None:
            pause = restart_pause(backoff, ran=steady() - started_at, took=took)
        await asyncio.sleep(pause)
        began = steady()
        try:
            await asyncio.to_thread(server.restart)
        except (EmbeddedError, OSError) as error:
            name, reason = type(error).__qualname__, str(error)
            pause = restart_pause(backoff, ran=0.0, took=steady() - began)
            about = {"server": server.url, "error": name, "reason": reason, "pause": pause}
            log.emit(events.STORE_DOWN, **about)
        else:
            pause = None
            log.emit(events.STORE_RESTARTED, server=server.url)
        started_at = steady()
        took = started_at - began


def restart_pause(backoff: Backoff, *, ran: float, took: float) -> float:
    """Seconds to wait before a private server is started again, after it *ran* for that long.

    A server that ran for a while is restarted at once. For one that ends soon after each start, the
    pauses grow: it may do so until its disk has room again. After a start that *took* long, because
    it reads much data, the longest pause is longer.
    """
    if ran >= _STEADY:
        backoff.reset()
        return 0.0
    longest = min(max(_LONGEST_PAUSE, took * 2), _LONGEST_AFTER_SLOW_STARTS)
    return backoff.next_pause(longest=longest)


def _settings(session: Session, flags: Mapping[str, Any], log: Mapping[str, Any]) -> Settings:
    settings = load({**session.flags(log=log), **flags}, registry=session.registry)
    logs.configure(form=settings.log.format, level=settings.log.level)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    import_from_here()  # for applications, and modules that they name
    applications(settings.applications)  # raises before anything is created
    return settings


class _FirstSecrets(NamedTuple):
    """The key and the login link of `towpath up`."""

    key: str | None
    """The key to show; None = there is no new one, or it is in its file."""
    login: str | None
    files: dict[str, Path]
    """Paths of the files with the key and the link, by name."""


class _Serving:
    """One run of the server."""

    def __init__(
        self,
        session: Session,
        settings: Settings,
        url: str,
        database: str,
        *,
        bundled: BundledServices | None = None,
    ) -> None:
        data = bundled.data if bundled else None
        if not settings.calls.secrets and data is not None:
            settings = settings.signing_with((kept_secret(data / SIGNING),))
        self._out, self._settings, self._url = session.out, settings, url
        self._database, self._data = database, data
        self._objects = bundled.objects.url if bundled and bundled.objects else None
        self._metrics, self._limits = Metrics(), settings.of(ServerLimits)
        self._applications = applications(settings.applications)
        self._options = {
            application.name: application.with_bundled(settings.of(application.options), bundled)
            for application in self._applications
        }
        self._outbox = settings.of(OutboxOptions)
        self._tables = tables_of(self._applications)
        self._ledger = Ledger(
            database, limit=_LEDGER_LIMIT, sinks=self._outbox.sinks, tables=self._tables
        )

    async def run(self, sock: socket) -> None:
        """Serve on *sock* until a signal comes."""
        log = Log()
        await self._prepare()
        setup = ServerSetup(
            engine=Engine(self._url, limits=LIMITS, declared=self._settings.declared),
            ledger=self._ledger,
            limits=self._limits,
            metrics=self._metrics,
            log=log,
            version=version("towpath"),
            applications=self._applications,
            options=self._options,
            outbox=self._outbox,
            app=self._app(),
        )
        app = build(setup)
        app.state.frame.compile_first()
        # Files are written before /readyz answers, so that a waiting script finds them. For a
        # terminal, secrets are created last: otherwise they would be lost if the start failed.
        made = None if sys.stdout.isatty() else await self._make_secrets(url_of(sock))
        await serve(
            app,
            sock,
            started=partial(self._print_start, app.state.webhooks, made),
            log=log,
        )

    def _app(self) -> Towpath:
        """The app of the server's own handlers. It shares the metrics of the server."""
        app = Towpath(self._url, declared=self._settings.declared, ledger=self._ledger)
        app.metrics = self._metrics
        return app

    async def _prepare(self) -> None:
        """Migrate the schema and create the key of the settings. Raises InvalidOption for a public
        address without a key.
        """
        settings = self._settings
        async with Ledger(self._database, tables=self._tables) as ledger:
            await ledger.migrate()
            if settings.api_key is not None:
                await ledger.keys.ensure(settings.api_key, name=FIRST_KEY)
            elif self._data is None and not is_local(settings.host) and not await _any_key(ledger):
                rule = "is public, and there is no key: `towpath keys create NAME --scope admin`"
                raise InvalidOption("host", settings.host, rule=rule)

    async def _print_start(
        self, webhooks: Sequence[str], made: _FirstSecrets | None, address: str
    ) -> None:
        """Print the address and the facts of the server, with the first key if it is new."""
        Log().emit(events.HTTP_STARTED, address=address, version=version("towpath"))
        (secret, login, files), out = made or await self._make_secrets(address), self._out
        store = self._url if self._data is not None else None
        database = self._ledger.shown if self._settings.database is not None else None
        own = {"data": self._data, "store": store, "database": database, "objects": self._objects}
        hooks, facts = [f"{address}{path}" for path in webhooks], self._facts()
        if out.as_json:
            fields: dict[str, object] = {
                "address": address,
                **own,
                "api_key": secret,
                "login": login,
            }
            fields |= {f"{name}_file": path for name, path in files.items()}
            fields |= {name: fact.value for name, fact in facts.items()} | {
                "webhooks": hooks or None
            }
            out.object({name: value for name, value in fields.items() if value is not None})
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
        """Create the first key if there is none, and a login link: to be shown in a terminal, else
        written to files that only their owner can read.
        """
        secret, login = await self._first_key(), await self._login(address)
        if self._data is None:
            return _FirstSecrets(None, None, {})
        key, link = (self._data / API_KEY).absolute(), (self._data / LOGIN).absolute()
        files = {"api_key": key} if key.exists() else {}
        if sys.stdout.isatty():
            return _FirstSecrets(secret, login, files)
        # Output to a pipe or a file is often a log that others can read.
        if secret is not None:
            durable_file(key, f"{secret}\n".encode())
            files["api_key"] = key
        if login is not None:
            replace_file(link, f"{login}\n")
            files["login"] = link
        return _FirstSecrets(None, None, files)

    async def _login(self, address: str) -> str | None:
        """A one-time login link to the dashboard, for the user of `up`.

        It opens a session of the first valid admin key; None if there is none.
        """
        if self._data is None:
            return None
        async with Ledger(self._database) as ledger:
            for key in await ledger.keys.list():
                if key.may(Scope.ADMIN) and "*" in key.queues and not key.ended(instant(wall_ms())):
                    return f"{address}/?login={await ledger.logins.link(key)}"
        return None

    def _facts(self) -> dict[str, StartFact]:
        """The facts of applications that are printed at the start."""
        facts: dict[str, StartFact] = {}
        for application in self._applications:
            facts |= (
                application.load(application.facts)(self._options[application.name])
                if application.facts
                else {}
            )
        return facts

    async def _about_keys(self) -> str:
        """How to get a key, if no new one can be shown: secrets of earlier keys are not stored."""
        async with Ledger(self._database) as ledger:
            if await _any_key(ledger):
                return "created earlier; `towpath keys create` makes another"
        return "none yet: `towpath keys create NAME --scope admin` makes one"

    async def _first_key(self) -> str | None:
        """Create the first key of `up`, and return its secret.

        None if a key exists, or with `serve` (the operator creates keys).
        """
        if self._data is None:
            return None
        async with Ledger(self._database) as ledger:
            if await _any_key(ledger):
                return None
            made = await ledger.keys.create(FIRST_KEY, scopes=["admin"])
            return made.secret.get_secret_value()


def kept_secret(path: Path) -> str:
    """The signing secret in *path*, created at the first start and readable by its owner only.

    Raises FileDamaged if the file has no valid secret: receivers would refuse calls signed with it.
    """
    secret = kept_file(path, new_secret()).strip()
    try:
        check_secret(secret)
    except SecretInvalid as error:
        raise FileDamaged(path) from error
    return secret


async def _any_key(ledger: Ledger) -> bool:
    """Whether a key was ever created. Revoked ones count, so that no key is created by itself."""
    return bool(await ledger.keys.list())


_TRY = """
try  curl -s {address}/readyz
     curl -s {address}/api/v1/queues/mails/jobs -H "Authorization: Bearer {key}" \\
          -H 'Content-Type: application/json' -d '{{"payload": "hello"}}'
     curl -s {address}/api/v1/queues/mails/claim -H "Authorization: Bearer {key}" \\
          -H 'Content-Type: application/json' -d '{{"worker": "me"}}'
"""
