"""Runs programs that write log lines to a real pipe or a real terminal."""

import os
import subprocess
import sys
from pathlib import Path

from tests.programs import Bounded

ROOT = Path(__file__).parents[2]

PRELUDE = """
import logging
from datetime import timedelta
from towpath.telemetry import events, logs
log = logs.Log(worker="build-3")
JOB = dict(job="01JB7Q", queue="reviews", handler="review", attempt=2)
"""


def through_a_pipe(program: str) -> str:
    """The output of *program* to stderr when that is a pipe. The program must succeed."""
    ran = subprocess.run(
        [sys.executable, "-c", PRELUDE + program], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == ""
    return ran.stderr


def in_a_terminal(program: str) -> str:
    """The output of *program* to stderr when that is a terminal. The program must succeed."""
    ours, theirs = os.openpty()
    with Bounded[bytes]([sys.executable, "-c", PRELUDE + program], stderr=theirs) as child:
        os.close(theirs)
        written = b"".join(iter(lambda: _more(ours), b""))
    os.close(ours)
    assert child.returncode == 0, written.decode()
    return written.decode().replace("\r\n", "\n")


def _more(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # Linux raises EIO when the last writer has closed a terminal
        return b""
