"""How long commands take to start, and what they load."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from towpath.embedded import EmbeddedServer

COMMAND = Path(sysconfig.get_path("scripts")) / "towpath"
_TIMES = 10
_LISTING = """
import sys
from towpath.cli.main import main
sys.argv = ["towpath", "--help"]
try:
    main()
finally:
    print(*(name for name in sys.modules if name.startswith("towpath.apps.")), file=sys.stderr)
"""


def times() -> dict[str, float]:
    """Milliseconds that each takes from start to end, the median of ten, taking turns."""
    with EmbeddedServer() as server:
        commands = {"--help": ["--help"], "queues": ["queues", "--over", "0", "--url", server.url]}
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(_TIMES + 1):
            for name, words in commands.items():
                taken[name].append(_timed([str(COMMAND), *words]))
    return {name: median(some[1:]) for name, some in taken.items()}


def loaded_by_help() -> list[str]:
    """The modules of applications that `towpath --help` loads."""
    ran = subprocess.run(
        [sys.executable, "-c", _LISTING], capture_output=True, text=True, check=True
    )
    return ran.stderr.split()


def _timed(words: Sequence[str]) -> float:
    # As a user has it: what was compiled once stays compiled.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    subprocess.run(words, capture_output=True, check=True, env=env)
    return (time.perf_counter() - began) * 1000
