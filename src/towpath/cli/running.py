"""Running a worker from the command line: finding the app, and starting with the settings."""

from __future__ import annotations

import asyncio
import difflib
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from typing import Any

from towpath.app.app import Towpath
from towpath.cli.fleet import Fleet, keep_running
from towpath.cli.reloading import Reloading, SourceFiles, roots_of
from towpath.console.exits import AppFailed, AppNotFound
from towpath.console.verb import Session
from towpath.errors import InvalidOption, TowpathError
from towpath.settings import Settings
from towpath.telemetry import logs
from towpath.telemetry.events import METRICS_SERVED
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics
from towpath.worker.settlements import is_installed
from towpath.worker.worker import ExitCode, Worker

_LAST_PORT = 65_535


class WorkerRun:
    """Runs one or several workers of the app at *path*, with the settings."""

    def __init__(
        self, session: Session, path: str, *, worker: Mapping[str, Any], log: Mapping[str, Any]
    ) -> None:
        self._flags = session.flags(worker=worker, log=log)
        self._settings = session.load(self._flags)
        self._out, self._path, self._debug = session.out, path, session.debug

    @cached_property
    def _app(self) -> Towpath:
        """The app. Raises AppNotFound, AppFailed."""
        app = find_app(self._path)
        # Programs that submit use the app's own URL. So a variable must not send its workers to
        # another Redis: settings only count for an app without a URL, and the flag for all.
        app.use(self._settings)
        if "url" in self._flags:
            app.url = self._settings.server
        return app

    def run(self, *, drain: bool, reload: bool) -> int:
        """Run until a signal comes or, with *drain*, no job can run now. Returns the exit code."""
        settings = self._settings
        logs.configure(form=settings.log.format, level=settings.log.level)
        if reload:
            return asyncio.run(self._reload(drain=drain))
        worker = self._worker()  # also for several processes: raises errors at once
        if settings.worker.processes > 1:
            return asyncio.run(self._keep_running(drain=drain))
        with _serve_metrics(worker.metrics, settings):
            return asyncio.run(worker.drain()) if drain else worker.run_forever()

    async def _keep_running(self, *, drain: bool) -> int:
        fleet = Fleet(
            self._commands(drain=drain),
            ended_well=lambda code: drain and code == ExitCode.CLEAN,
            log=Log(),
        )
        return await keep_running(fleet)

    async def _reload(self, *, drain: bool) -> int:
        import_from_here()
        log, sources = Log(), SourceFiles(roots_of(self._path))

        def make() -> Fleet:
            sources.changed()  # forget earlier changes: the new processes load them
            # A process that ends by itself waits for a change of its sources, unless it was killed.
            return Fleet(self._commands(drain=drain), ended_well=lambda code: code >= 0, log=log)

        return await Reloading(make, sources, log=log).run()

    def _commands(self, *, drain: bool) -> list[list[str]]:
        """The arguments of each process: those of this command, for one process."""
        given, own = self._flags, self._settings.worker
        shared = [
            f"--{option}={given[option]}"
            for option in ("url", "timeout", "config")
            if option in given
        ]
        shared += [f"--log-{name}={value}" for name, value in given.get("log", {}).items()]
        shared += ["--drain"] * drain + ["--debug"] * self._debug + ["--json"] * self._out.as_json
        if own.metrics_port + own.processes - 1 > _LAST_PORT:
            rule = f"must leave room for {own.processes} ports, up to {_LAST_PORT}"
            raise InvalidOption("worker.metrics_port", own.metrics_port, rule=rule)
        commands: list[list[str]] = []
        for number in range(own.processes):
            flags: dict[str, object] = {**given.get("worker", {}), "processes": 1}
            if own.name and own.processes > 1:
                flags["name"] = f"{own.name}.{number + 1}"
            if own.metrics_port:
                flags["metrics_port"] = own.metrics_port + number
            words = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
            commands.append(["worker", self._path, *words, *shared])
        return commands

    def check(self) -> None:
        """Check that it could start: the app loads, Redis is fit, every queue has a handler."""
        worker = self._worker()

        async def reach() -> str:
            async with self._app as app:
                facts = app.engine.facts
                return f"{facts.flavour} {facts.version} at {app.engine.url}"

        server = asyncio.run(reach())
        queues = dict(sorted(worker.weights.items()))
        weights = ", ".join(f"{name} (weight {weight})" for name, weight in queues.items())
        fields: dict[str, Any] = {"app": self._path, "server": server}
        self._out.answer(fields | {"queues": queues}, fields | {"queues": weights})

    def _worker(self) -> Worker:
        wanted = self._settings.worker
        return Worker(
            self._app,
            concurrency=wanted.concurrency,
            queues=_with_weights(self._app, wanted.queues) or None,
            grace=wanted.grace,
            lease=wanted.lease,
            unhandled_for=wanted.unhandled_for,
            name=wanted.name,
            metrics=self._app.metrics,
        )


def find_app(path: str) -> Towpath:
    """The app at `module:name`, the current directory included.

    Raises AppNotFound, and AppFailed if the module raises an error. An error of Towpath, such as
    an invalid option of a handler, is raised as it is, with the line of the module.
    """
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise AppNotFound(f"{path} is not MODULE:APP")
    import_from_here()
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(f"{missing}."):
            text = f"no module {missing}, neither in this folder nor installed"
        else:
            text = f"module {module_name} imports {missing}, which is not installed"
        raise AppNotFound(text) from error
    except TowpathError as error:
        error.args = (f"{_place_of(error)}: {error}", *error.args[1:])
        raise
    except Exception as error:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        raise AppFailed(f"{_place_of(error)}: {type(error).__name__}: {text}") from error
    return _pick_app(path, vars(module), name)


def _place_of(error: Exception) -> str:
    """The line of the user's code that an error comes from: `jobs.py, line 12`."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}, line {error.lineno}"
    frames = [(frame.filename, frame.lineno) for frame in extract_tb(error.__traceback__)]
    own = [frame for frame in frames if not is_installed(frame[0])]
    file, line = (own or frames)[-1]
    return f"{Path(file).name}, line {line}"


def import_from_here() -> None:
    """Add the current directory to the import path, where an installed command lacks it."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def _pick_app(path: str, names: Mapping[str, object], name: str) -> Towpath:
    found = names.get(name)
    if isinstance(found, Towpath):
        return found
    apps = [other for other, value in names.items() if isinstance(value, Towpath)]
    near = difflib.get_close_matches(name, apps, n=1, cutoff=0.0)
    hint = f"; did you mean {near[0]}?" if near else "; it has no Towpath"
    if name not in names:
        raise AppNotFound(f"{path}: the module has no {name}{hint}")
    raise AppNotFound(f"{path} is a {type(found).__name__}, not a Towpath{hint}")


def _with_weights(app: Towpath, queues: Mapping[str, int]) -> dict[str, int]:
    """The queues with their weights; a queue without one gets the weight of its handlers."""
    own: dict[str, int] = {}
    for handler in app.handlers:
        own[handler.queue] = max(own.get(handler.queue, 1), handler.options.weight)
    return {queue: weight or own.get(queue, 1) for queue, weight in queues.items()}


@contextmanager
def _serve_metrics(metrics: Metrics, settings: Settings) -> Generator[None]:
    """Serve the metrics over HTTP while the body runs, if a port is set."""
    port, host = settings.worker.metrics_port, settings.worker.metrics_host
    if not port:
        yield
        return
    try:
        endpoint = metrics.serve(port=port, addr=host)
    except OSError as error:
        rule = f"can't be served on {host}: {error.strerror}"
        raise InvalidOption("worker.metrics_port", port, rule=rule) from error
    with endpoint:
        Log().emit(METRICS_SERVED, address=str(endpoint))
        yield
