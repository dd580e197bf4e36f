"""The directory of one server: its configuration, log, socket, and data if it keeps any."""

import os
import shutil
import tempfile
import weakref
from pathlib import Path

from towpath.files import replace_file

# The system's limit for the path of a Unix socket, its end mark included: 108 bytes on Linux,
# 104 on the BSDs and macOS.
_SOCKET_PATH_LIMIT = 104


class Home:
    """Either the caller's data directory, which stays, or a private one in the temp directory.

    A private directory lives as long as this object, so that the socket's path and the log
    outlast a restart; it is removed with the object or at the end of the interpreter. A process
    that is killed leaves it behind.
    """

    def __init__(self, data: Path | None) -> None:
        self.path = self._private() if data is None else _made(data)
        self.config = self.path / "server.conf"
        self.log = self.path / "server.log"
        self.lock = self.path / "server.lock"
        self.socket = self._short(self.path / "server.sock")

    def write_config(self, text: str) -> None:
        """Write the configuration, for the owner's eyes only: it may hold a password."""
        replace_file(self.config, text)

    def _short(self, wanted: Path) -> Path:
        """*wanted*, or a path in a private directory if *wanted* is too long for a socket."""
        return wanted if _fits(wanted) else self._private() / "server.sock"

    def _private(self) -> Path:
        path = Path(tempfile.mkdtemp(prefix="towpath-", dir=_temporary()))
        weakref.finalize(self, _remove, path, os.getpid())
        return path


def _made(data: Path) -> Path:
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    return data.resolve()


def _temporary() -> Path:
    """The temp directory; the system's own where TMPDIR is too long to hold a socket."""
    chosen = Path(tempfile.gettempdir())
    fits = _fits(chosen / "towpath-12345678" / "server.sock")
    return chosen if fits else Path("/tmp")  # noqa: S108  mkdtemp makes the directory safely


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) < _SOCKET_PATH_LIMIT


def _remove(path: Path, owner: int) -> None:
    # A forked child has a copy of the object, but not the directory.
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
