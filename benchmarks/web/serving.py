"""Servers as processes: ours on a bench's store, and an empty endpoint beside it."""

from __future__ import annotations

import asyncio
import os
import sys
import sysconfig
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import msgspec

from benchmarks.bench import Bench
from benchmarks.claimer import ROOT
from benchmarks.peers.side.family import PROC, family
from benchmarks.web.wire import Place

KEY = "tp_bench_0123456789abcdef0123456789abcdef"
"""An admin's, on a server that lives for a minute."""
_COMMAND = Path(sysconfig.get_path("scripts")) / "towpath"
_LIFELINE = "benchmarks.peers.side.lifeline"
_STARTS_WITHIN = 60.0
_SETTINGS = {
    "TOWPATH_API_KEY": KEY,
    # The limit per key is there for callers, and all of a bench's requests are one caller's.
    "TOWPATH_HTTP__RATE": "0",
    "TOWPATH_LOG__LEVEL": "warning",
}


class Serving:
    """A server process that answers."""

    def __init__(self, place: Place, pid: int) -> None:
        self.place, self.pid = place, pid

    def cpu(self) -> float:
        """Seconds of CPU that it has used."""
        fields = (PROC / str(self.pid) / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self) -> int:
        """Bytes of memory that it has."""
        status = (PROC / str(self.pid) / "status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1]) * 1024


@asynccontextmanager
async def served(it: Bench) -> AsyncGenerator[tuple[Serving, str]]:
    """`towpath serve` on the bench's store, and the database that it made for it."""
    with TemporaryDirectory(prefix="towpath-bench-") as folder:
        database = f"sqlite:///{folder}/ledger.db"
        words = (str(_COMMAND), "serve", "--url", it.server.url, "--database", database)
        async with _running([*words, "--port", "0", "--json"]) as serving:
            yield serving, database


@asynccontextmanager
async def empty(database: str) -> AsyncGenerator[Serving]:
    """An endpoint that does nothing, with the keys of that database."""
    async with _running([sys.executable, "-m", "benchmarks.web.empty", database]) as serving:
        yield serving


@asynccontextmanager
async def _running(command: Sequence[str]) -> AsyncGenerator[Serving]:
    """The process once it has said where it serves; killed at the end, for nothing is kept."""
    others = {k: v for k, v in os.environ.items() if not k.startswith(("TOWPATH_", "REDIS_"))}
    keeper = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", _LIFELINE, *command),
        cwd=ROOT,
        env=others | _SETTINGS,
        stdin=PIPE,
        stdout=PIPE,
        start_new_session=True,
    )
    try:
        place = await _place(keeper)
        [pid] = [pid for pid in family(keeper.pid) if pid != keeper.pid]
        yield Serving(place, pid)
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        await keeper.wait()


async def _place(process: Process) -> Place:
    assert process.stdout is not None
    async with asyncio.timeout(_STARTS_WITHIN):
        said = msgspec.json.decode(await process.stdout.readline(), type=dict[str, str])
    url = urlsplit(said["address"])
    return url.hostname or "", url.port or 0
