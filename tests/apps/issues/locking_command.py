"""A command for `towpath agent` in tests: it holds a lock for its issue until all of it has ended.

`python locking_command.py FOLDER KIND`. It appends `began` and its issue to FOLDER/journal, or
`second` if a process of another command for the same issue is alive. It runs until it is stopped.
KIND is

- heeding: SIGTERM ends it;
- deaf: it ignores SIGTERM;
- parent: SIGTERM ends it, but not its child in the same process group.
"""

import fcntl
import os
import signal
import sys
from pathlib import Path


def main(folder: Path, kind: str) -> None:
    issue = os.environ["TOWPATH_TASK_ISSUE"]
    if kind == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # A fork shares the lock, which is free when the last process with the file open has ended.
    lock = os.open(folder / f"{issue}.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        write(folder, "second", issue)
        return
    if kind == "parent":
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() != 0:
            signal.signal(signal.SIGTERM, before)
            write(folder, "began", issue)
    else:
        write(folder, "began", issue)
    while True:
        signal.pause()


def write(folder: Path, word: str, issue: str) -> None:
    journal = os.open(folder / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(journal, f"{word} {issue} {os.getpid()}\n".encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
