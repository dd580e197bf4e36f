"""Running a command once: its output, how it ended, and no process left behind.

The command gets a process group of its own, so that all that it starts ends with it. On Linux it
also ends when this process is killed. Its input is a deleted file, not a pipe: a program that does
not read blocks nobody, and the program can open the file again as /dev/stdin.

CommandError
├── CommandUnavailable      there is no such program, or it can't be started
├── CommandTimedOut         it took longer than it may
└── OutputTooLarge          it printed more than is kept
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from towpath.clock import Duration
from towpath.errors import RetryAdvice, TowpathError
from towpath.processes.launch import follow_parent

_GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL. A worker waits two for an attempt that it has stopped."""
_DRAIN_WITHIN = 2.0
"""Seconds to read the rest of the pipes, if a process that left the group holds them open."""
_KILL_WITHIN = 5.0
_GONE_WITHIN, _GONE_PAUSE = 1.0, 0.01
"""Seconds to wait until the killed group is gone, and between two checks. In a container without
init, orphans are not reaped: they stay in the group when they are dead."""
_PROBED_WITHIN = 10.0
_INTERPRETERS = (
    (re.compile(r"(?:python|pypy)[0-9.]*"), re.compile(r"-[bBdEIOPqsSuv]+")),
    (re.compile(r"(?:ba|da|z|k)?sh"), re.compile(r"-[aefhnuvxC]+")),
    (re.compile(r"perl|ruby|php"), re.compile(r"-w")),
)
"""Programs that run other programs, and their flags that may stand before the name of one."""
_NO_MODULE = 3
_HAS_MODULE = f"""
import importlib.util, sys
try:
    found = importlib.util.find_spec(sys.argv[1])
except ModuleNotFoundError:
    found = None
sys.exit(0 if found else {_NO_MODULE})
"""
_READ_BYTES = 1 << 18
_COMPLAINT_BYTES = 4096
_COMPLAINT_SHOWN = 600


class CommandError(TowpathError):
    """The command did not finish."""

    code = "command_error"
    retry = RetryAdvice.LATER


class CommandUnavailable(CommandError):
    """The program was not found or can't be started."""

    code = "command_unavailable"
    remedy = "Install the program, or give its full path."

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(f"{program}: {reason}")
        self.program, self.reason = program, reason


class CommandTimedOut(CommandError):
    """The command exceeded its time limit; it was ended with all its processes."""

    code = "command_timed_out"
    remedy = "Give the command less work, or raise its time limit."

    def __init__(self, within: Duration, complaint: str) -> None:
        super().__init__(f"did not finish within {within}")
        self.within, self.complaint = within, complaint


class OutputTooLarge(CommandError):
    """The command printed too much; it was ended, and its output dropped."""

    code = "output_too_large"
    remedy = "Print less to standard output; send the rest to standard error."

    def __init__(self, limit: int) -> None:
        super().__init__(f"the program printed more than {limit} bytes")
        self.limit = limit


@dataclass(frozen=True, slots=True)
class Command:
    """What to run, and within which limits. No shell reads it."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    directory: Path
    within: Duration
    largest: int
    """Maximum output in bytes. A command that prints more is ended."""
    only_last: bool = False
    """Whether a command that prints more goes on, and only the last bytes are kept."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended by itself."""

    code: int
    """The exit code; the negative number of the signal, if one ended the command."""
    output: bytes
    complaint: str
    """The end of what it wrote to standard error, in one line."""


async def run(command: Command, given: bytes) -> Ended:
    """Run the command with *given* as its input. When this returns or raises, the command and all
    that it started have ended.

    Raises CommandUnavailable, CommandTimedOut, OutputTooLarge. Holds at most `largest` bytes of
    output in memory. A caller that is cancelled waits until the group is dead: about a second, if
    the program ignores SIGTERM.
    """
    running = _Running(_start(command, given), command)
    try:
        async with asyncio.timeout(command.within.total_seconds()):
            await running.finished.wait()
    except TimeoutError:
        raise CommandTimedOut(command.within, running.complaint) from None
    finally:
        await _finish(asyncio.ensure_future(_end_group(running)))
    if running.overflowed:
        raise OutputTooLarge(command.largest)
    return Ended(running.process.returncode or 0, bytes(running.output), running.complaint)


def _start(command: Command, given: bytes) -> subprocess.Popen[bytes]:
    """Start the program in one step, which can't be cancelled half-way.

    asyncio's own `subprocess_exec` takes several steps. If it is cancelled between them, as by a
    loop that closes, it waits forever for pipes that it never opened, and leaves children behind.
    """
    name, *arguments = command.argv
    path = find(name, path=command.environment.get("PATH"), directory=command.directory)
    with _deleted_file(given) as file:
        try:
            return subprocess.Popen(
                [*follow_parent(), path, *arguments],
                bufsize=0,
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(command.environment),
                cwd=command.directory,
                start_new_session=True,
            )
        except OSError as error:
            raise CommandUnavailable(name, f"can't be started: {error.strerror}") from error


class _Running:
    """A started program, with its output up to a limit and the end of its standard error."""

    def __init__(self, process: subprocess.Popen[bytes], command: Command) -> None:
        self.process = process
        self.output, self.overflowed = bytearray(), False
        self._largest, self._only_last = command.largest, command.only_last
        self._complaint = b""
        self.finished = asyncio.Event()
        """Set when the program has exited, or must be ended because it printed too much."""
        self.exited, self.output_ended = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        streams = {1: process.stdout, 2: process.stderr}
        self._open = {number: stream for number, stream in streams.items() if stream is not None}
        for number, stream in self._open.items():
            os.set_blocking(stream.fileno(), False)
            self._loop.add_reader(stream.fileno(), self._read, number, stream)
        # A thread waits for the child, because event loops differ in how they wait for children.
        threading.Thread(target=self._wait, name="towpath-command", daemon=True).start()

    def _read(self, number: int, stream: IO[bytes]) -> None:
        try:
            data = os.read(stream.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        if data:
            self._store_output(number, data)
        else:
            self._stop_reading(number)

    def _stop_reading(self, number: int) -> None:
        stream = self._open.pop(number, None)
        if stream is not None:
            self._loop.remove_reader(stream.fileno())
            stream.close()
        if not self._open:
            self.output_ended.set()

    def close(self) -> None:
        """Stop reading; what was not read yet is dropped."""
        for number in list(self._open):
            self._stop_reading(number)

    def _wait(self) -> None:
        self.process.wait()
        with suppress(RuntimeError):  # the loop is closed, so nothing waits for the exit
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self.exited.set()
        self.finished.set()

    def _store_output(self, number: int, data: bytes) -> None:
        if number == 2:
            self._complaint = (self._complaint + data)[-_COMPLAINT_BYTES:]
        elif len(self.output) + len(data) <= self._largest:
            self.output += data
        elif self._only_last:
            self.output += data
            del self.output[: -self._largest]
        else:  # read and drop until it is dead: it may ignore SIGTERM while it waits to write
            self.overflowed = True
            self.finished.set()

    @property
    def complaint(self) -> str:
        words = " ".join(self._complaint.decode(errors="replace").split())
        shown = "".join(char if char.isprintable() else "·" for char in words)
        return shown if len(shown) <= _COMPLAINT_SHOWN else "…" + shown[-_COMPLAINT_SHOWN:]


# ── start ────────────────────────────────────────────────────────────────────────────────


def find(name: str, *, path: str | None, directory: Path) -> str:
    """The absolute path of a program: a name is searched on *path*, a path from *directory*.

    Raises CommandUnavailable if there is no such program.
    """
    if os.sep in name:
        found = shutil.which(str(directory.absolute() / name))
    else:
        found = shutil.which(name, path=os.defpath if path is None else path)
    if found is None:
        raise CommandUnavailable(name, "there is no such program")
    return str(Path(found).absolute())


def require_script(command: Command) -> None:
    """Raises CommandUnavailable if the command is an interpreter and what it is to run is missing.

    It knows the usual forms: `python script.py`, `python -m module`, `sh script`. Other arguments
    are not checked.
    """
    name, *rest = command.argv
    found = find(name, path=command.environment.get("PATH"), directory=command.directory)
    flags = next(
        (options for kind, options in _INTERPRETERS if kind.fullmatch(Path(name).name)), None
    )
    if flags is None:
        return
    while rest and flags.fullmatch(rest[0]):
        del rest[0]
    match rest:
        case ["-m", module, *_]:
            asked = [found, "-c", _HAS_MODULE, module]
            if _exit_code(asked, command) == _NO_MODULE:
                raise CommandUnavailable(module, "there is no such module")
        case [script, *_] if not script.startswith("-"):
            on_path = os.sep not in script and shutil.which(script, path=os.defpath)
            if not (command.directory / script).exists() and not on_path:
                raise CommandUnavailable(script, "there is no such file")
        case _:
            return


def _exit_code(argv: Sequence[str], command: Command) -> int:
    """The exit code of a short program, run in place of *command*; 0 if it takes too long."""
    try:
        ran = subprocess.run(
            argv,
            env=dict(command.environment),
            cwd=command.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBED_WITHIN,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return ran.returncode


@contextmanager
def _deleted_file(content: bytes) -> Generator[IO[bytes]]:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        yield file


# ── end ──────────────────────────────────────────────────────────────────────────────────


async def _end_group(running: _Running) -> None:
    group = running.process.pid
    try:
        if running.exited.is_set():
            # End what the program left in the background. The id of the group is not reused so
            # soon after the program's exit.
            _signal_group(group, signal.SIGKILL)
            await _wait_for(running.output_ended, within=_DRAIN_WITHIN)
        else:
            _signal_group(group, signal.SIGTERM)
            await _wait_for(running.exited, within=_GRACE)
            _signal_group(group, signal.SIGKILL)
            await _wait_for(running.exited, within=_KILL_WITHIN)
        await _wait_until_gone(group)
    finally:
        if not running.exited.is_set():  # the loop is closing, and has cancelled the steps above
            _signal_group(group, signal.SIGKILL)
        running.close()


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # no process is left, or none of ours
        os.killpg(group, number)


async def _wait_until_gone(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError, TimeoutError):
        async with asyncio.timeout(_GONE_WITHIN):
            while True:
                os.killpg(group, 0)
                await asyncio.sleep(_GONE_PAUSE)


async def _wait_for(event: asyncio.Event, *, within: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(within):
            await event.wait()


async def _finish(task: asyncio.Task[Any]) -> None:
    """Wait for the end of *task*, even while being cancelled; then raise the cancellation."""
    cancelled = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()
