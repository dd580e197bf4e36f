"""Starts other processes for tests, and tells whether a process has ended."""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.programs import Bounded

# Starts a server on a data directory, prints its pid, and stays until its standard input is closed.
OWNER = """
import sys
from pathlib import Path
from towpath.embedded import EmbeddedServer
server = EmbeddedServer(data=Path(sys.argv[1])).start()
server.ask("SET", "written", "before")
print(server.pid, flush=True)
sys.stdin.read()
"""

# The same, on a system that does not end a child with its parent.
OWNER_WITHOUT_DEATH_SIGNAL = "import sys; sys.platform = 'other'\n" + OWNER


@contextmanager
def python(script: str, *arguments: object) -> Generator[subprocess.Popen[str]]:
    """A Python process that runs *script*; killed at the end of the block if it still runs."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    with Bounded[str](command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def first_number(process: subprocess.Popen[str]) -> int:
    """The pid that the process printed first."""
    assert process.stdout is not None
    return int(process.stdout.readline())


def has_ended(pid: int) -> bool:
    """Whether a process is gone; a zombie counts as gone."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"
