"""Servers as processes: Towpath on the Redis of a bench, and an empty endpoint for comparison."""

from __future__ import annotations

import asyncio
import sys
import sysconfig
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import msgspec

from benchmarks.bench import Bench
from benchmarks.peers.side.process_tree import PROC
from benchmarks.web.deliveries import SECRET
from benchmarks.web.process import StartedProcess, cpu_of, started
from benchmarks.web.wire import Place

KEY = "tp_bench_7f3kq9xw2mzv8rtd4hsc6yjbn1plg5ae"
"""An admin's, on a server that lives for a minute."""
_COMMAND = Path(sysconfig.get_path("scripts")) / "towpath"
_STARTS_WITHIN = 60.0
_SETTINGS = {
    "TOWPATH_API_KEY": KEY,
    # The limits per key are meant for callers, and all requests of a bench come from one caller.
    "TOWPATH_HTTP__RATE": "0",
    "TOWPATH_HTTP__STREAMS_PER_KEY": "10000",
    "TOWPATH_LOG__LEVEL": "warning",
    "TOWPATH_REVIEWS__GITHUB_SECRETS": SECRET,
}


class _ServerAddress(msgspec.Struct):
    """The address that a server prints when it answers."""

    address: str


class ServerProcess:
    """A server process that answers."""

    def __init__(self, place: Place, pid: int) -> None:
        self.place, self.pid = place, pid

    def cpu(self) -> float:
        """The CPU seconds that it has used."""
        return cpu_of([self.pid])

    def resident(self) -> int:
        """The bytes of its memory."""
        status = (PROC / str(self.pid) / "status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1]) * 1024


@asynccontextmanager
async def served(workbench: Bench) -> AsyncGenerator[tuple[ServerProcess, str]]:
    """`towpath serve` on the bench's Redis, and the database that it made for it."""
    with TemporaryDirectory(prefix="towpath-bench-") as folder:
        database = f"sqlite:///{folder}/ledger.db"
        async with served_with(workbench, database) as serving:
            yield serving, database


@asynccontextmanager
async def served_with(
    workbench: Bench, database: str, **settings: str
) -> AsyncGenerator[ServerProcess]:
    """`towpath serve` on the bench's Redis and that database, perhaps with more settings."""
    async with served_at(workbench.server.url, database, **settings) as serving:
        yield serving


@asynccontextmanager
async def served_at(url: str, database: str, **settings: str) -> AsyncGenerator[ServerProcess]:
    """`towpath serve` on the Redis at *url*."""
    words = (str(_COMMAND), "serve", "--url", url, "--database", database)
    async with _serving([*words, "--port", "0", "--json"], settings) as serving:
        yield serving


@asynccontextmanager
async def empty(database: str) -> AsyncGenerator[ServerProcess]:
    """An endpoint that does nothing, with the keys of that database."""
    async with _serving([sys.executable, "-m", "benchmarks.web.empty", database]) as serving:
        yield serving


@asynccontextmanager
async def dropping() -> AsyncGenerator[ServerProcess]:
    """An endpoint that reads bodies and drops them."""
    async with _serving([sys.executable, "-m", "benchmarks.objects.dropping"]) as serving:
        yield serving


@asynccontextmanager
async def _serving(
    command: Sequence[str], settings: Mapping[str, str] = _SETTINGS
) -> AsyncGenerator[ServerProcess]:
    """The process after it has printed its address."""
    async with started(command, {**_SETTINGS, **settings}) as process:
        place = await _place(process)
        yield ServerProcess(place, process.pid)


async def _place(process: StartedProcess) -> Place:
    async with asyncio.timeout(_STARTS_WITHIN):
        told = msgspec.json.decode(await process.said.readline(), type=_ServerAddress)
    url = urlsplit(told.address)
    return url.hostname or "", url.port or 0
