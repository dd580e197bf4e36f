"""Runs our programs in processes of their own, without loading their modules each time.

Loading takes up to a second of a core, most programs run for a twentieth of one, and the suite
starts more than a thousand of them. So one process, the loader, imports everything, and each
program is a fork of it: with its own arguments, environment, directory, streams and signals, and
killed, frozen and waited for like any other. A test about the start of a program, or about what the
interpreter prints while it shuts down, uses `Bounded`, which is a plain `Popen`.

`python -m tests.programs FD` is the loader. For each request it forks a keeper, which forks the
program, sends its pid, waits for it and sends its exit status.
"""

import atexit
import gc
import json
import logging
import os
import random
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import IO, Any, AnyStr, Generic, NoReturn, Self, cast

from tests.journals import JournalEntry, read_journals
from tests.waiting import HANGS

COMMAND = Path(sysconfig.get_path("scripts")) / "towpath"
ROOT = Path(__file__).parents[1]
_LOADED = (
    "alembic.command",
    "asyncpg",
    "confluent_kafka",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "towpath.apps.reviews.queue",
    "towpath.cli.doctor",
    "towpath.cli.main",
    "towpath.cli.serving",
    "towpath.cli.top",
    "towpath.ledger.database.migrate",
    "towpath.ledger.outbox.sinks.kafka",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
)
_APPLICATIONS = [
    f"towpath.apps.{name}.{part}"
    for name in ("issues", "messages", "reviews", "timers", "uploads")
    for part in ("http", "pages", "service")
]
_WARNINGS = "PYTHONWARNINGS"
_LARGEST = 1 << 18
_LONGEST = HANGS
"""Seconds that anybody waits for a program's end. Then it is killed, and the test fails."""


# ── in the process of the tests ──────────────────────────────────────────────────────────


@dataclass(frozen=True)
class ProgramResult:
    """The exit code of a program, and its output."""

    code: int
    out: str
    err: str = ""

    @property
    def objects(self) -> list[Any]:
        """Its standard output as JSON, line by line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def object(self) -> Any:
        [only] = self.objects
        return only

    @property
    def refusal(self) -> Any:
        """The last line that it wrote to stderr, as JSON."""
        return json.loads(self.err.splitlines()[-1])


class Bounded(subprocess.Popen[AnyStr]):
    """A `Popen` with a time limit: a program that hangs only fails its test."""

    def wait(self, timeout: float | None = None) -> int:
        """Waits like `Popen`'s method; without *timeout* the program is killed once it has taken
        too long.
        """
        if timeout is not None:
            return super().wait(timeout)
        try:
            return super().wait(_LONGEST)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        # The test has failed already: what it left running would only make others wait.
        if kind is not None:
            self.kill()
        super().__exit__(kind, error, at)


Stream = int | IO[Any] | None
"""As `Popen` takes them: PIPE, DEVNULL, an open file, or None to inherit."""


class Program(Generic[AnyStr]):
    """A program `[COMMAND, …]` or `[sys.executable, …]` in a process of its own, forked from the
    loader. It is used like a `Popen`.
    """

    stdin: IO[AnyStr] | None
    stdout: IO[AnyStr] | None
    stderr: IO[AnyStr] | None

    def __init__(
        self,
        words: Sequence[Any],
        *,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        text: bool = False,
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
    ) -> None:
        self.args, self.returncode = words, cast("int | None", None)
        wanted = {
            "words": [str(word) for word in words],
            "env": dict(os.environ if env is None else env),
            "cwd": str(cwd or Path.cwd()),
        }
        mode = "" if text else "b"
        with ExitStack() as theirs:
            stdin_fd, self.stdin = _stream(stdin, 0, "w" + mode, theirs)
            stdout_fd, self.stdout = _stream(stdout, 1, "r" + mode, theirs)
            stderr_fd, self.stderr = _stream(stderr, 2, "r" + mode, theirs)
            self._keeper, reports = socket.socketpair()
            theirs.enter_context(reports)
            fds = [stdin_fd, stdout_fd, stderr_fd, reports.fileno()]
            socket.send_fds(_loader()[0], [json.dumps(wanted).encode()], fds)
        self.pid = self._receive()

    def _receive(self, flags: int = 0) -> int:
        """The next number that the keeper sends: the pid, then the exit status."""
        packed = self._keeper.recv(8, flags)
        assert packed, "the loader has ended: `python -m tests.programs 0` shows why"
        [number] = struct.unpack("q", packed)
        return number

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the program runs."""
        if self.returncode is None:
            with suppress(BlockingIOError):
                status = self._receive(socket.MSG_DONTWAIT)
                self.returncode = os.waitstatus_to_exitcode(status)
                self._keeper.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end. Without *timeout*, a program that takes too long is killed."""
        if self.poll() is None:
            ends = select.poll()
            ends.register(self._keeper, select.POLLIN)
            if not ends.poll((_LONGEST if timeout is None else timeout) * 1000):
                if timeout is None:
                    self.kill()
                raise subprocess.TimeoutExpired(self.args, timeout or _LONGEST)
            self.poll()
        return cast("int", self.returncode)

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the program has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(
        self, input: AnyStr | None = None, timeout: float | None = None
    ) -> tuple[AnyStr, AnyStr]:
        """Writes *input*, reads both streams to their end, and waits for the program's. Called once
        more, it only waits.
        """
        with ThreadPoolExecutor(2) as readers:
            out, err = (
                readers.submit(stream.read) if stream is not None and not stream.closed else None
                for stream in (self.stdout, self.stderr)
            )
            if self.stdin is not None:
                with suppress(BrokenPipeError):  # the program has ended without reading its input
                    if input:
                        self.stdin.write(input)
                    self.stdin.close()
            self.wait(timeout)
            nothing = cast("AnyStr", None)
            read = (
                out.result() if out is not None else nothing,
                err.result() if err is not None else nothing,
            )
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        return read

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.kill()  # the test has failed: waiting for its program is useless
        for stream in (self.stdout, self.stderr, self.stdin):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self.wait()


def run(words: Sequence[Any], *, input: bytes = b"", **options: Any) -> ProgramResult:
    """Runs a program to its end."""
    pipe = subprocess.PIPE
    with Program[bytes](words, stdin=pipe, stdout=pipe, stderr=pipe, **options) as running:
        out, err = running.communicate(input)
    return ProgramResult(running.wait(), out.decode(), err.decode())


class ProgramGroup:
    """Programs of one module, started as `python -m MODULE JOURNAL …`. Each has a journal of its
    own in one folder. A killed program is replaced by one with the same arguments.
    """

    def __init__(self, module: str, folder: Path) -> None:
        self._module, self._journals = module, folder / "journals"
        self._journals.mkdir(exist_ok=True)
        self._arguments: dict[int, tuple[str, ...]] = {}
        self._frozen: list[Program[bytes]] = []
        self.started: list[Program[bytes]] = []

    @property
    def alive(self) -> list[Program[bytes]]:
        return [program for program in self.started if program.poll() is None]

    def start(self, *arguments: str) -> Program[bytes]:
        journal = self._journals / f"{self._module}-{len(self.started)}"
        command = [sys.executable, "-m", self._module, journal, *arguments]
        program = Program[bytes](command, cwd=ROOT)
        self._arguments[program.pid] = arguments
        self.started.append(program)
        return program

    def kill(self, program: Program[bytes]) -> None:
        """Sends SIGKILL, and starts a program with the same arguments."""
        _end(program)
        self.start(*self._arguments[program.pid])

    def kill_one(self, chance: random.Random) -> None:
        self.kill(chance.choice(self.alive))

    def freeze_one(self, chance: random.Random) -> None:
        """Sends SIGSTOP: the program keeps its leases and does not notice how time passes."""
        program = chance.choice(self.alive)
        program.send_signal(signal.SIGSTOP)
        self._frozen.append(program)

    def thaw(self) -> None:
        """Sends SIGCONT to all frozen programs."""
        for program in self._frozen:
            program.send_signal(signal.SIGCONT)
        self._frozen.clear()

    def entries(self, *words: str) -> list[JournalEntry]:
        """The lines of all journals that begin with one of *words*; without words, all lines."""
        entries = read_journals(*sorted(self._journals.glob(f"{self._module}-*")))
        return [entry for entry in entries if not words or entry.word in words]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self.started:
            program.send_signal(signal.SIGCONT)
            _end(program)


def _end(program: Program[bytes]) -> None:
    program.kill()
    program.wait()


def _stream(given: Stream, own: int, mode: str, theirs: ExitStack) -> tuple[int, IO[Any] | None]:
    """The program's end of a stream, which *theirs* closes, and our end if it is a pipe."""
    if given is None:
        return own, None
    if given == subprocess.PIPE:
        reader, writer = os.pipe()
        ours, end = (writer, reader) if mode[0] == "w" else (reader, writer)
        theirs.callback(os.close, end)
        return end, os.fdopen(ours, mode)
    if given == subprocess.DEVNULL:
        end = os.open(os.devnull, os.O_RDWR)
        theirs.callback(os.close, end)
        return end, None
    assert not isinstance(given, int), given
    return given.fileno(), None


@cache
def _loader() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Starts the loader; returns the socket for requests. The loader ends when this process
    does.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.programs", str(theirs.fileno())]
        return ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT)


# ── in the loader ────────────────────────────────────────────────────────────────────────


def _serve(asked: socket.socket) -> None:
    atexit.register(_leave)  # registered before all others, so it runs last
    for module in (*_LOADED, *_APPLICATIONS):
        import_module(module)
    # Loaded objects are shared with all forks as long as none of them writes to them.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    while True:
        wanted, fds, _, _ = socket.recv_fds(asked, _LARGEST, 4)
        if not wanted:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            asked.close()
            _keep(json.loads(wanted), fds)
        for fd in fds:
            os.close(fd)


def _keep(wanted: dict[str, Any], fds: list[int]) -> NoReturn:
    pid = os.fork()
    if pid == 0:
        _become(wanted, fds[:3])
    for fd in fds[:3]:
        os.close(fd)
    with socket.socket(fileno=fds[3]) as teller:
        with suppress(BrokenPipeError):  # the process that asked is gone
            teller.send(struct.pack("q", pid))
        _, status = os.waitpid(pid, 0)
        with suppress(BrokenPipeError):
            teller.send(struct.pack("q", status))
    os._exit(0)


def _is_read_by_python_itself(env: Mapping[str, str]) -> bool:
    """Whether *env* has a variable that the interpreter reads when it starts."""
    ours = ("PYTHON", "LC_", "LANG")
    return any(
        name.startswith(ours) and name != _WARNINGS and os.environ.get(name) != value
        for name, value in env.items()
    )


def _become(wanted: dict[str, Any], streams: list[int]) -> NoReturn:
    """Becomes the program: runs it with its own arguments, streams and exit code.

    Nothing of the request is left, and nothing that the loader had opened.
    """
    for own, fd in enumerate(streams):
        os.dup2(fd, own)
    if _is_read_by_python_itself(wanted["env"]):
        os.chdir(wanted["cwd"])
        os.execve(wanted["words"][0], wanted["words"], wanted["env"])  # noqa: S606 -- its own words
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(wanted["env"])
    os.chdir(wanted["cwd"])
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 -- for as long as it runs
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    try:
        _run(wanted["words"], wanted["env"].get(_WARNINGS, ""))
    except SystemExit as ended:
        _exit_code.append(
            ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        )
        raise
    except Exception:
        _exit_code.append(1)
        raise
    _exit_code.append(0)
    sys.exit()


_exit_code: list[int] = []
"""The exit code of this program, once it has ended by itself."""


def _leave() -> None:
    """Ends a program without the interpreter's finalization, as the last of its exit handlers.

    Freeing everything that the loader imported would take longer than most programs run. Streams
    are flushed, and unreachable objects are destroyed, so that a warning about one is printed.
    """
    if not _exit_code:
        return
    logging.shutdown()
    gc.collect()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return  # the interpreter reports it and exits with 120
    os._exit(_exit_code[0])


def _run(words: list[str], on_warnings: str) -> None:
    """Runs `COMMAND …`, `python [-W action] -m module …`, `-c text` or `script.py …`."""
    first, *rest = words
    if rest[:1] == ["-W"]:
        _, on_warnings, *rest = rest
    if on_warnings:
        warnings.simplefilter(cast("Any", on_warnings))
    if first == str(COMMAND):
        sys.argv, sys.path[0] = words, str(COMMAND.parent)
        runpy.run_path(first, run_name="__main__")
        return
    assert first == sys.executable, words
    if rest[0].endswith(".py"):
        sys.argv, sys.path[0] = rest, str(Path(rest[0]).parent)
        runpy.run_path(rest[0], run_name="__main__")
        return
    kind, program, *_ = rest
    sys.argv, sys.path[0] = rest[1:], str(Path.cwd())
    if kind == "-c":
        exec(program, {"__name__": "__main__"})  # noqa: S102 -- as Python itself does
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
