"""`towpath worker --processes`: runs several worker processes, restarts and stops them."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress

from towpath.backoff import Backoff
from towpath.clock import steady
from towpath.console import exits
from towpath.processes.launch import follow_parent
from towpath.supervise import FIRST_PAUSE, LONGEST_PAUSE
from towpath.telemetry import events
from towpath.telemetry.logs import Log
from towpath.worker.worker import STOPPING, ExitCode

_STEADY = 60.0
"""Seconds after which a process counts as stable: then pauses are short again."""
_REFUSALS = (exits.USAGE, exits.REFUSED, exits.NOT_FOUND)
"""Exit codes after which a restart is useless, because it would end the same way."""
_COMMAND = "from towpath.cli.main import main; main()"


class Fleet:
    """Runs a `towpath` process for the arguments of each of *commands*.

    A process that ends by itself is restarted after a growing pause, unless *ended_well* accepts
    its exit code. A refused command stops all processes. Each process has its own session, so that
    Ctrl-C in a terminal reaches only this process, which passes it on. None outlives this process.
    """

    def __init__(
        self, commands: Sequence[Sequence[str]], *, ended_well: Callable[[int], bool], log: Log
    ) -> None:
        self._commands, self._ended_well, self._log = commands, ended_well, log
        self._running: set[asyncio.subprocess.Process] = set()
        self._over, self._stops = asyncio.Event(), 0
        self._codes: list[int] = []

    async def run(self) -> int:
        """Wait until all processes have ended for good. Returns the worst exit code."""
        async with asyncio.TaskGroup() as group:
            for words in self._commands:
                group.create_task(self._keep(words))
        return max(self._codes, key=_severity, default=ExitCode.CLEAN)

    def stop(self) -> None:
        """Ask all to stop: they finish running jobs. After a second call, they release them."""
        self._stops += 1
        self._over.set()
        for process in self._running:
            _ask_to_end(process)

    async def _keep(self, words: Sequence[str]) -> None:
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while True:
            began = steady()
            pid, code = await self._run_once(words)
            if self._over.is_set() or self._ended_well(code) or code in _REFUSALS:
                break
            if steady() - began >= _STEADY:
                backoff.reset()
            pause = backoff.next_pause()
            self._log.emit(events.WORKER_CHILD_DIED, pid=pid, code=code, pause=pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._over.wait()
                    return  # its jobs return when their leases end
        # SIGTERM before the worker had started: it held no jobs.
        self._codes.append(ExitCode.CLEAN if self._stops and code == -signal.SIGTERM else code)
        if code in _REFUSALS and not self._stops:
            self.stop()

    async def _run_once(self, words: Sequence[str]) -> tuple[int, int]:
        """Start one process and wait for its end. Returns its pid and exit code."""
        process = await asyncio.create_subprocess_exec(
            *follow_parent(), sys.executable, "-c", _COMMAND, *words,
            stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._running.add(process)
        self._log.emit(events.WORKER_CHILD_STARTED, pid=process.pid)
        for _ in range(self._stops):  # calls of `stop` while it was starting
            _ask_to_end(process)
        try:
            return process.pid, await process.wait()
        finally:
            self._running.discard(process)


def _ask_to_end(process: asyncio.subprocess.Process) -> None:
    # Not SIGINT: a worker treats it the same, but a process that still imports would fail.
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)


def _severity(code: int) -> int:
    """The rank of an exit code; the worst is highest."""
    if code in (ExitCode.CLEAN, ExitCode.SLOTS_LOST):
        return code
    return 3 if code in _REFUSALS else 2


def exit_code_of(code: int) -> int:
    """The exit code of the parent. A killed process has not settled its jobs: their leases end."""
    return ExitCode.UNSETTLED if code < 0 else code


@contextmanager
def on_stop_signals(stop: Callable[[], None]) -> Generator[None]:
    """Call *stop* for each SIGTERM and SIGINT while the body runs."""
    loop = asyncio.get_running_loop()
    for number in STOPPING:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in STOPPING:
            loop.remove_signal_handler(number)


async def keep_running(fleet: Fleet) -> int:
    """Run *fleet* until signals stop it. Returns the exit code."""
    with on_stop_signals(fleet.stop):
        return exit_code_of(await fleet.run())
