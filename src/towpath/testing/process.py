"""A real worker process to kill, freeze and stop."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from towpath.clock import DurationLike, ManualClock, duration, duration_ms, seconds, steady
from towpath.embedded.process import ServerProcess, Startable, wait_until
from towpath.telemetry.events import WORKER_STARTED
from towpath.testing.errors import NeverHappened, WorkerEnded
from towpath.worker.options import DEFAULTS

_START_WITHIN = 60.0
_STOP_WITHIN = 40.0
_PAUSE = 0.01
_FACT_WITHIN = seconds(10)
_PROGRAM = "towpath.testing.worker_program"


class WorkerProcess(Startable):
    """A worker of the app at `module:name`, on the server at *url*, in its own process.

    It has the same directory and the same `sys.path` as this process. With *clock* it uses that
    manual clock. Its heartbeats come in real time, so a clock that jumps further than *lease* makes
    it look silent, as if it were frozen. It ends with the block, `with` or `async with`, and at the
    latest with this process.
    """

    def __init__(
        self,
        app: str,
        *,
        url: str,
        clock: ManualClock | None = None,
        lease: DurationLike = DEFAULTS.lease,
        ledger: str | None = None,
    ) -> None:
        self.app = app
        self._settings = {
            "app": app,
            "url": url,
            "ledger": ledger,
            "lease_ms": duration_ms("lease", lease, least=seconds(1)),
            "path": sys.path,
        }
        self._clock = clock
        self._process: ServerProcess | None = None
        self._last_log = ""
        self._held = ExitStack()

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the process. Returns when it takes jobs, in about a second. Raises WorkerEnded."""
        if not self.running:
            folder = tempfile.TemporaryDirectory(prefix="towpath-")
            self._log = Path(self._held.enter_context(folder)) / "worker.log"
            reading, self._writing = os.pipe()
            self._held.callback(os.close, self._writing)
            try:
                self._process = self._launch(reading)
            finally:
                os.close(reading)
            self._send_settings()
            wait_until(lambda: not self.running or self._has_started(), within=_START_WITHIN)
            if not self._has_started():
                self.stop(within=0)
                raise WorkerEnded(self.app, self.exit_code, self._last_log)
        return self

    def stop(self, *, within: float = _STOP_WITHIN) -> None:
        """Send SIGTERM: running jobs finish within the worker's grace time. Returns when it has
        ended.

        A frozen process is thawed first; one that does not end in time is killed.
        """
        if self._process is not None and self.running:
            self._process.stop(within=within)
        self._last_log = self.log
        self._held.close()

    def kill(self) -> None:
        """Send SIGKILL: the worker settles nothing. Returns when it has ended."""
        self._alive().kill()

    def freeze(self) -> None:
        """Send SIGSTOP: the worker keeps its leases, and does not see time pass."""
        self._alive().send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Send SIGCONT: the worker continues."""
        self._alive().send(signal.SIGCONT)

    async def wait_for(
        self, fact: Callable[[], object], *, within: DurationLike = _FACT_WITHIN
    ) -> None:
        """Return as soon as *fact* returns a true value; it may be a coroutine function.

        Raises WorkerEnded if the process ends first, and NeverHappened after *within* of real time;
        both have the worker's log.
        """
        limit = duration("within", within)
        end = steady() + limit.total_seconds()
        while not await _evaluate(fact):
            if not self.running:
                raise WorkerEnded(self.app, self.exit_code, self.log)
            if steady() >= end:
                raise NeverHappened(limit, self.log)
            await asyncio.sleep(_PAUSE)

    # -- facts -----------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether it has not ended; a frozen process is running."""
        return self._process is not None and self._process.alive

    @property
    def pid(self) -> int:
        return self._alive().pid

    @property
    def exit_code(self) -> int | None:
        """Its `ExitCode`, or the negative number of a signal that ended it; None while it runs."""
        return None if self._process is None or self.running else self._process.exit_code

    @property
    def log(self) -> str:
        """Its log as lines of JSON, with what its handlers print."""
        log: Path | None = getattr(self, "_log", None)
        return log.read_text(errors="replace") if log and log.exists() else self._last_log

    # -- internals -------------------------------------------------------------------------------

    def _launch(self, reading: int) -> ServerProcess:
        command = [sys.executable, "-m", _PROGRAM, str(reading)]
        return ServerProcess(command, directory=Path.cwd(), log=self._log, keep=[reading])

    def _send_settings(self) -> None:
        """Send what to run, then the time whenever the clock moves."""
        now = self._clock.stamp() if self._clock else None
        self._send(json.dumps(self._settings | {"now_ms": now}))
        if self._clock is not None:
            clock = self._clock
            self._held.enter_context(clock.watched(lambda: self._send(clock.stamp())))

    def _send(self, line: str) -> None:
        with suppress(BrokenPipeError):  # the process has ended
            os.write(self._writing, f"{line}\n".encode())

    def _has_started(self) -> bool:
        return f'"{WORKER_STARTED.name}"' in self.log

    def _alive(self) -> ServerProcess:
        if self._process is None or not self.running:
            raise WorkerEnded(self.app, self.exit_code, self.log)
        return self._process


async def _evaluate(fact: Callable[[], object]) -> object:
    answer = fact()
    return await answer if inspect.isawaitable(answer) else answer
