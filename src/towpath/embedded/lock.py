"""Never two servers on one data directory.

The lock is an flock on a file in the directory, and the *server* holds it: it inherits the open
file, and this process then closes its own. So the lock lasts exactly as long as a server can
still write to the directory, whatever happens to the process that started it. (If the starter held
the lock, it would be free while an orphan still writes; a pid file alone would be wrong after a
crash.)
"""

import fcntl
import json
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from towpath.embedded.errors import CommandRefused, DataDirectoryInUse
from towpath.embedded.home import LOOPBACK, Home
from towpath.embedded.process import Address, answering_pid, wait_until

# How long a server whose parent died may take to be gone: saving is quick, loading cannot be
# interrupted.
_ORPHAN_WITHIN = 30.0
# The same for a server that the system is ending already: it does not answer, and its entry in
# /proc disappears piece by piece.
_ENDING_WITHIN = 5.0
_RECORD_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Holder:
    """Who runs a server on the directory: written into the lock file by its owner."""

    owner: int = 0
    server: int = 0
    socket: str = ""
    port: int = 0

    @property
    def pid(self) -> int:
        return self.server or self.owner

    @property
    def address(self) -> Address:
        return Path(self.socket) if self.socket else (LOOPBACK, self.port)


class Lock:
    """The lock while this process has it, before it is passed to a server."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def sign(self, holder: Holder) -> None:
        """Write who holds the lock, for the error of a process that finds it taken."""
        # The file is overwritten in place, because it is the lock, and in one call of a fixed
        # length, so that a reader finds one holder or the other, also after a crash.
        text = json.dumps(asdict(holder)).encode().ljust(_RECORD_BYTES)
        os.pwrite(self.descriptor, text, 0)


@contextmanager
def locked(home: Home) -> Generator[Lock]:
    """Hold the data directory until the block ends. A server that gets the lock goes on holding it.

    Raises DataDirectoryInUse if a server runs there whose owner lives. One whose owner is dead
    is shut down cleanly first, if it proves to be the server of this directory.
    """
    descriptor = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _acquire(descriptor, home.path)
        lock = Lock(descriptor)
        lock.sign(Holder(owner=os.getpid()))
        yield lock
    finally:
        # Closed, not unlocked: unlocking would take it from the server too.
        os.close(descriptor)


def _acquire(descriptor: int, directory: Path) -> None:
    if _try_lock(descriptor):
        return
    holder = _read_holder(descriptor)
    match _parent_pid(holder.server):
        case holder.owner:
            within = 0.0
        case None:
            within = _ENDING_WITHIN
        case _:
            within = _shut_down(holder, directory)
    if not wait_until(lambda: _try_lock(descriptor), within=within):
        holder = _read_holder(descriptor)
        raise DataDirectoryInUse(directory, holder.pid, owner=holder.owner)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_holder(descriptor: int) -> Holder:
    try:
        record: dict[str, Any] = json.loads(os.pread(descriptor, 4096, 0))
        return Holder(**record)
    except (ValueError, TypeError):
        return Holder()


def _parent_pid(pid: int) -> int | None:
    """The parent of a process, read from /proc; None if there is no such process (or no /proc).

    A process whose parent has died gets another parent. So comparing the parent with the recorded
    owner also works if the owner's pid was given to a new process.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[1])


def _shut_down(holder: Holder, directory: Path) -> float:
    """Ask an orphaned server to end. Returns how many seconds to wait for it.

    A process that does not prove to be the server of this directory is left alone; it may be
    another program, or the server while it ends.
    """
    if not _is_server_of(holder, directory):
        return _ENDING_WITHIN
    os.kill(holder.server, signal.SIGTERM)
    return _ORPHAN_WITHIN


def _is_server_of(holder: Holder, directory: Path) -> bool:
    process = Path(f"/proc/{holder.server}")
    try:
        title = (process / "cmdline").read_bytes()
        lives_here = (process / "cwd").readlink() == directory
        return b"-server" in title and lives_here and answering_pid(holder.address) == holder.server
    except (OSError, CommandRefused):
        return False
