"""Our programs in processes of their own that need not load everything first.

Loading takes up to a second of a core, most programs run for a twentieth of one, and the suite
starts more than a thousand of them. So one process loads, and each program is a fork of it: with
its own words, environment, directory, streams and signals; killed, frozen and waited for as any
other. Whoever wants to know something about the start itself takes `subprocess`.

`python -m tests.warm FD` is the process that loads. For each request it forks a keeper, which forks
the program, says its pid, waits for it and says how it ended.
"""

import gc
import json
import os
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
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, AnyStr, NoReturn, cast

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
_WARNINGS = "PYTHONWARNINGS"
_LARGEST = 1 << 18
_LONGEST = 90.0
"""Seconds that anybody waits for a program's end. Then it is killed, and the test fails."""


# ── on the side of the tests ─────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Ran:
    """How a program ended, and what it said."""

    code: int
    out: str
    err: str = ""

    @property
    def objects(self) -> list[Any]:
        """Its answer as JSON, line by line."""
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
    """A `Popen` that nobody waits for without end: a hanging program fails its test, no more."""

    def wait(self, timeout: float | None = None) -> int:
        """As `Popen`'s; without *timeout* the program is killed once it has taken too long."""
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


class Program(Bounded[AnyStr]):
    """A `Popen` of `[COMMAND, …]` or `[sys.executable, …]`, forked where that is the same.

    Beginning and waiting are other ways; all the rest is `Popen`'s, and so are their names.
    """

    _keeper: socket.socket | None = None

    def _execute_child(self, args: Sequence[Any], *more: Any) -> None:
        cwd, env, pipes = more[4], more[5], more[9:15]
        popen, words = cast("Any", super()), [str(word) for word in args]
        if _reads_it_at_the_start(env):
            popen._execute_child(args, *more)
            return
        self._keeper, theirs = socket.socketpair()
        given = (pipes[0], pipes[3], pipes[5])
        streams = [own if fd == -1 else fd for own, fd in enumerate(given)]
        wanted = {"words": words, "env": dict(env or os.environ), "cwd": str(cwd or Path.cwd())}
        with theirs:
            loading, _ = _loading()
            socket.send_fds(loading, [json.dumps(wanted).encode()], [*streams, theirs.fileno()])
        self.pid = self._heard(self._keeper)
        self._child_created = True
        popen._close_pipe_fds(*pipes)

    def _heard(self, keeper: socket.socket, flags: int = 0) -> int:
        said = keeper.recv(8, flags)
        assert said, "the process that loads has ended: `python -m tests.warm 0` says why"
        [number] = struct.unpack("q", said)
        return number

    def wait(self, timeout: float | None = None) -> int:
        """Without *timeout* its keeper tells of its end: nothing is looked at again and again."""
        if timeout is None and self._keeper is not None and self.returncode is None:
            ends = select.poll()
            ends.register(self._keeper, select.POLLIN)
            if not ends.poll(_LONGEST * 1000):
                self.kill()
                raise subprocess.TimeoutExpired(self.args, _LONGEST)
        return super().wait(timeout)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._keeper is None:
            return cast("Any", super())._try_wait(wait_flags)
        try:
            status = self._heard(self._keeper, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0, 0
        self._keeper.close()
        return self.pid, status

    def _internal_poll(self, *more: Any, **named: Any) -> int | None:
        if self._keeper is None:
            return cast("Any", super())._internal_poll(*more, **named)
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid == self.pid:
                cast("Any", self)._handle_exitstatus(status)
        return self.returncode


def run(words: Sequence[Any], *, input: bytes = b"", **options: Any) -> Ran:
    """Run a program to its end."""
    pipe = subprocess.PIPE
    with Program[bytes](words, stdin=pipe, stdout=pipe, stderr=pipe, **options) as running:
        out, err = running.communicate(input)
    return Ran(running.returncode, out.decode(), err.decode())


def _reads_it_at_the_start(env: Mapping[str, str] | None) -> bool:
    """Whether Python itself would begin otherwise with *env*."""
    ours = ("PYTHON", "LC_", "LANG")
    return any(
        name.startswith(ours) and name != _WARNINGS and os.environ.get(name) != value
        for name, value in (env or {}).items()
    )


@cache
def _loading() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The process that loads everything, and where it is asked. It ends when this one does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.warm", str(theirs.fileno())]
        return ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT)


# ── the process that loads ───────────────────────────────────────────────────────────────


def _serve(asked: socket.socket) -> None:
    for module in _LOADED:
        import_module(module)
    # What was loaded is shared with all forks as long as none of them writes to it.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are nobody's concern
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
        with suppress(BrokenPipeError):  # whoever asked is gone
            teller.send(struct.pack("q", pid))
        _, status = os.waitpid(pid, 0)
        with suppress(BrokenPipeError):
            teller.send(struct.pack("q", status))
    os._exit(0)


def _become(wanted: dict[str, Any], streams: list[int]) -> NoReturn:
    """Be the program, to the end of the interpreter: its last words and its exit code are its own.

    Nothing of the request stays, and nothing that the process that loaded had opened.
    """
    for own, fd in enumerate(streams):
        os.dup2(fd, own)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(wanted["env"])
    os.chdir(wanted["cwd"])
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 -- for as long as it runs
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    _run(wanted["words"], wanted["env"].get(_WARNINGS, ""))
    sys.exit()


def _run(words: list[str], on_warnings: str) -> None:
    """Run `COMMAND …`, `python [-W action] -m module …`, `-c text` or `script.py …`."""
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
