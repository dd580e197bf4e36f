"""How long commands take to start, and what they load."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tests.architecture.sources import SOURCE
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


def times(beside: Path | None = None) -> dict[str, float]:
    """Milliseconds that each takes from start to end, the median of ten, taking turns: so that what
    else the machine does, it does to all. With *beside*, the `src` of another commit has its turns,
    too: "before".
    """
    with EmbeddedServer() as server:
        commands = {"--help": ["--help"], "queues": ["queues", "--over", "0", "--url", server.url]}
        sources = {"": SOURCE.parent} if beside is None else {"": SOURCE.parent, " before": beside}
        taken: defaultdict[str, list[float]] = defaultdict(list)
        for _ in range(_TIMES + 1):
            for name, words in commands.items():
                for which, source in sources.items():
                    taken[name + which].append(_timed([str(COMMAND), *words], source))
    # The first time, it is compiled.
    return {name: median(some[1:]) for name, some in taken.items()}


def loaded_by_help() -> list[str]:
    """The modules of applications that `towpath --help` loads."""
    ran = subprocess.run(
        [sys.executable, "-c", _LISTING], capture_output=True, text=True, check=True
    )
    return ran.stderr.split()


def _timed(words: Sequence[str], source: Path) -> float:
    # As a user has it: what was compiled once stays compiled.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    env["PYTHONPATH"] = str(source.resolve())
    subprocess.run(words, capture_output=True, check=True, env=env)
    return (time.perf_counter() - began) * 1000
