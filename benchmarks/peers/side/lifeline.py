"""Runs a command that does not outlive the bench: `python -m … COMMAND …`.

The bench holds the other end of stdin. When that is closed, even because the bench was killed,
the command and all processes that it started are killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from benchmarks.peers.side.process_tree import kill_tree


def main() -> int:
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    closed = threading.Event()
    watching = threading.Thread(target=_watch, args=(closed,), daemon=True)
    watching.start()
    code = child.wait()
    if closed.is_set():
        watching.join()  # the child was the first of its tree to be killed, not the last
    return code


def _watch(closed: threading.Event) -> None:
    while os.read(0, 1):
        pass
    closed.set()
    kill_tree(os.getpid())


if __name__ == "__main__":
    sys.exit(main())
