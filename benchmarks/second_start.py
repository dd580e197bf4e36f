"""How long `towpath up` takes until it is ready: the first time, and with existing data.

    .venv/bin/python -m benchmarks.second_start
    .venv/bin/python -m benchmarks.second_start --rounds 3

Starts it in an empty directory, ends it with SIGTERM, starts it again there, and polls `/readyz`
until that answers 200. The first start creates keys, database and Redis data; later ones find them.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory

_LONGEST = 120.0
_LOOK_EVERY = 0.01
_TARGET = 3.0


def main(rounds: int) -> None:
    with TemporaryDirectory(prefix="towpath-start-") as folder:
        first, *later = [_started(Path(folder)) for _ in range(rounds + 1)]
    _tell("first start, empty directory", f"{first:.2f} s")
    middle = statistics.median(later)
    words = f"{middle:.2f} s (median of {rounds}, {min(later):.2f} to {max(later):.2f})"
    _tell(
        "next starts", f"{words}; target {_TARGET:g} s: {'' if middle < _TARGET else 'not '}reached"
    )


def _started(folder: Path) -> float:
    """The seconds until it was ready; then it is ended."""
    port = _free_port()
    command = [Path(sys.executable).with_name("towpath"), "up", "--port", str(port)]
    began = time.perf_counter()
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "--data", folder / "data"], cwd=folder, stdout=log, stderr=log
        )
    try:
        while not _is_ready(port):
            if process.poll() is not None or time.perf_counter() - began > _LONGEST:
                raise SystemExit((folder / "log").read_text())
            time.sleep(_LOOK_EVERY)
        return time.perf_counter() - began
    finally:
        process.terminate()
        process.wait(_LONGEST)


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def _free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return door.getsockname()[1]


def _tell(what: str, said: str) -> None:
    sys.stdout.write(f"{what:<32} {said}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure how long `towpath up` takes.")
    parser.add_argument("--rounds", type=int, default=5, help="starts after the first")
    main(parser.parse_args().rounds)
