"""`towpath worker --reload`: a worker that restarts when its sources change.

For development. Files are polled four times a second. Notifications of the kernel would need a
library, and get lost on network shares and in containers. A thousand files take a few milliseconds.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from towpath.cli.fleet import Fleet, exit_code_of, on_stop_signals
from towpath.telemetry import events
from towpath.telemetry.logs import Log

_EVERY = 0.25
"""Seconds between two polls."""
_CONFIGURED = ("towpath.toml", "pyproject.toml")
_NEVER = ("__pycache__", "node_modules", "site-packages")


class _FileVersion(NamedTuple):
    """What changes when a file is written again."""

    inode: int
    size: int
    written: int


class SourceFiles:
    """The Python files below *roots*, and the files with settings there."""

    def __init__(self, roots: list[Path]) -> None:
        self._roots = roots
        self._known = self._look()

    def changed(self) -> list[Path]:
        """The files that were created, written or deleted since the last call."""
        before, self._known = self._known, self._look()
        differ = before.items() ^ self._known.items()
        return sorted({path for path, _ in differ})

    def _look(self) -> dict[Path, _FileVersion]:
        return {path: seen for root in self._roots for path, seen in _files(root)}


def roots_of(app: str) -> list[Path]:
    """The directories with the sources of `module:name`: this one, and that of its package if it is
    elsewhere. Imports nothing.
    """
    here = Path.cwd()
    package = app.partition(":")[0].partition(".")[0]
    found = find_spec(package) if package else None
    places = [Path(place) for place in (found and found.submodule_search_locations) or ()]
    return [here, *(place for place in places if not place.is_relative_to(here))]


def _files(root: Path) -> Iterator[tuple[Path, _FileVersion]]:
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if not (name.startswith(".") or name in _NEVER)]
        if "pyvenv.cfg" in names:  # a virtual environment
            below.clear()
            continue
        for name in names:
            if name.endswith(".py") or name in _CONFIGURED:
                path = Path(folder, name)
                try:
                    stat = path.stat()
                except OSError:  # deleted meanwhile
                    continue
                yield path, _FileVersion(stat.st_ino, stat.st_size, stat.st_mtime_ns)


def fault_of(path: Path) -> str | None:
    """Why Python can't compile the file; None if it can, or if the file is gone."""
    if path.suffix != ".py":
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except OSError:
        return None
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except ValueError as error:  # a null byte
        return str(error)
    return None


class Reloading:
    """Runs the fleet that *make* creates, and replaces it when *sources* have changed.

    The old fleet is stopped as by SIGTERM: running jobs finish within their grace time, the rest is
    released. A file that Python can't compile is logged, and the worker runs on until the file is
    correct.
    """

    def __init__(self, make: Callable[[], Fleet], sources: SourceFiles, *, log: Log) -> None:
        self._make, self._sources, self._log = make, sources, log
        self._fleet, self._over = make(), asyncio.Event()

    async def run(self) -> int:
        """Run until a signal stops it. Returns the exit code."""
        with on_stop_signals(self._stop):
            while True:
                code = await self._one_run(self._fleet)
                if self._over.is_set():
                    return exit_code_of(code)
                self._fleet = self._make()

    def _stop(self) -> None:
        self._over.set()
        self._fleet.stop()

    async def _one_run(self, fleet: Fleet) -> int:
        """Run one version of the sources, until there is another one or a signal comes."""
        running = asyncio.create_task(fleet.run())
        change = asyncio.create_task(self._change())
        over = asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait((running, change), return_when=asyncio.FIRST_COMPLETED)
            if running.done() and not self._over.is_set():
                self._log.emit(events.RELOAD_WAITING, code=running.result())
                await asyncio.wait((change, over), return_when=asyncio.FIRST_COMPLETED)
            if change.done():
                files = [str(path) for path in change.result()]
                self._log.emit(events.RELOAD_CHANGED, files=files)
                fleet.stop()
            return await running
        finally:
            for task in (change, over):
                task.cancel()
            await asyncio.wait((change, over))

    async def _change(self) -> list[Path]:
        """Wait for changes. Returns the files once all can be compiled and none changes."""
        changed: set[Path] = set()
        unread: set[Path] = set()
        while True:
            await asyncio.sleep(_EVERY)
            more = await asyncio.to_thread(self._sources.changed)
            changed.update(more)
            unread.update(more)
            if more or not unread:
                continue  # nothing has changed, or an editor may still be writing
            faults = {path: fault for path in changed if (fault := fault_of(path))}
            for path in sorted(faults.keys() & unread):
                self._log.emit(events.RELOAD_REFUSED, place=str(path), reason=faults[path])
            unread.clear()
            if not faults:
                return sorted(changed)
