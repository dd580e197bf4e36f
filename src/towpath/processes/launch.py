"""Starting a child that never outlives this process, however this process ends.

Linux can send a child a signal when its parent dies (PR_SET_PDEATHSIG). Two traps come with it:

- "Parent" means the *thread* that forked. A child started from a short-lived thread (an
  executor's, say) would be killed with that thread. So one daemon thread, which lives as long as
  the process, starts all children.
- The child itself must ask for the signal. `preexec_fn` would run Python between fork and exec,
  which may deadlock in a process with threads. So a small program asks, and then becomes the
  child: same pid, and the request survives exec. It costs about 20 ms of start-up.

The signal is SIGKILL, because it also ends a stopped child; with `appendfsync always` nothing
acknowledged by a Valkey is lost. On systems without this signal, a server whose parent was killed
is shut down by the next start on its data directory (see `embedded/lock.py`).
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import TypeAlias

# The parent may have died before the request was made: then the signal would never come.
_FOLLOW_PARENT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG, SIGKILL, NONE = map(ctypes.c_ulong, (1, 9, 0))
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL, NONE, NONE, NONE)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent process has ended")
for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, and that would be inherited
    signal.signal(ignored, signal.SIG_DFL)
os.execv(sys.argv[2], sys.argv[2:])
"""

Child: TypeAlias = subprocess.Popen[bytes]
_Start: TypeAlias = Callable[[], Child]


def launch(argv: Sequence[str], *, directory: Path, log: Path, keep: Sequence[int]) -> Child:
    """Start *argv* in *directory*, its output appended to *log*, with the descriptors *keep*.

    The child has a session of its own: Ctrl-C in a terminal reaches this process, which may then
    finish its work before it stops the child.
    """
    command = [*follow_parent(), *argv]

    def start() -> Child:
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                cwd=directory,
                pass_fds=keep,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    return _launcher().run(start)


def follow_parent() -> list[str]:
    """What to put before a program's absolute path, so that it is killed when this thread ends.

    Only Linux has that signal; on other systems, this is empty.
    """
    if sys.platform != "linux":
        return []
    return [sys.executable, "-I", "-S", "-c", _FOLLOW_PARENT, str(os.getpid())]


class _Launcher:
    """The thread that starts all children of this process."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._requests: SimpleQueue[tuple[_Start, Future[Child]]] = SimpleQueue()
        threading.Thread(target=self._serve, name="towpath-launcher", daemon=True).start()

    def run(self, start: _Start) -> Child:
        started: Future[Child] = Future()
        self._requests.put((start, started))
        return started.result()

    def _serve(self) -> None:
        while True:
            start, started = self._requests.get()
            try:
                started.set_result(start())
            except BaseException as problem:  # noqa: BLE001 -- raised where it was asked for; others wait
                started.set_exception(problem)


_current: _Launcher | None = None
_choosing = threading.Lock()


def _launcher() -> _Launcher:
    """This process's launcher: threads do not survive a fork, so each process has its own."""
    global _current  # noqa: PLW0603  the thread is the process's, and a module is too
    with _choosing:
        if _current is None or _current.process != os.getpid():
            _current = _Launcher()
        return _current
