"""50,000 issues are compared with GitHub: how long it takes, how many requests, how much memory."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory

import msgspec

from benchmarks.bench import Bench, Plan, bench
from benchmarks.figure import Figure, measured
from benchmarks.web.process import started
from benchmarks.web.serving import served_with

REPOSITORIES, ROLES = 20, 10
_WITHIN = 900.0
_LOOK_EVERY = 0.2


class GitHubAddress(msgspec.Struct):
    """The address that the GitHub double prints when it answers."""

    address: str
    token: str


class SyncCost(msgspec.Struct, frozen=True):
    """Seconds, and bytes of the server's memory."""

    seconds: float
    resident: int
    grown: int


async def run(plan: Plan) -> list[Figure]:
    issues = plan.count(50_000, 1_000)
    async with bench() as workbench, github_with(issues) as double:
        with TemporaryDirectory(prefix="towpath-bench-") as folder:
            seen = await synced(workbench, f"sqlite:///{folder}/ledger.db", double, issues)
        requests = await _requests(double)
    what = f"{issues:,} issues of {REPOSITORIES} repositories, from the start of the server"
    return [
        measured("issues_sync", what, "s", [seen.seconds]),
        measured("issues_sync.requests", "requests to GitHub for that", "requests", [requests]),
        measured("issues_sync.memory", "the server's memory, at most", "MB", [seen.resident / 1e6]),
        measured("issues_sync.grown", "of that, since it began", "MB", [seen.grown / 1e6]),
    ]


@asynccontextmanager
async def github_with(issues: int) -> AsyncGenerator[GitHubAddress]:
    """A GitHub double in a process of its own, with issues of as many kinds as there can be."""
    names = _repositories(issues)
    filled = [f"--fill={name}={issues // len(names)}" for name in names]
    words = (sys.executable, "-m", "towpath.testing.github", f"--roles={ROLES}", *filled)
    async with started([*words, "--limit=1000000"], {}) as process:
        yield msgspec.json.decode(await process.said.readline(), type=GitHubAddress)


async def synced(workbench: Bench, database: str, double: GitHubAddress, issues: int) -> SyncCost:
    """A server that has just synchronized all *issues*, and then ended."""
    settings = {
        "TOWPATH_ISSUES__GITHUB_TOKEN": double.token,
        "TOWPATH_ISSUES__GITHUB_HOST": double.address,
        "TOWPATH_ISSUES__GITHUB_API": double.address,
        "TOWPATH_ISSUES__REPOSITORIES": ",".join(_repositories(issues)),
    }
    began = time.perf_counter()
    async with served_with(workbench, database, **settings) as serving:
        first = most = serving.resident()
        async with asyncio.timeout(_WITHIN):
            while (await workbench.engine.inspect.counts("issues")).ready < issues:
                await asyncio.sleep(_LOOK_EVERY)
                most = max(most, serving.resident())
        return SyncCost(time.perf_counter() - began, most, most - first)


def _repositories(issues: int) -> list[str]:
    """The repositories with the issues, some in each."""
    return [f"octo/repo-{number}" for number in range(min(REPOSITORIES, issues // 5))]


async def _requests(double: GitHubAddress) -> float:
    """How many requests the double has answered before this one."""
    host, _, port = double.address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = (
        "GET /repos/octo/repo-0 HTTP/1.1",
        f"Host: {host}",
        f"Authorization: Bearer {double.token}",
        "Connection: close",
        "",
        "",
    )
    writer.write("\r\n".join(lines).encode())
    head = (await reader.read()).partition(b"\r\n\r\n")[0].decode("latin-1")
    writer.close()
    [used] = [line for line in head.lower().splitlines() if line.startswith("x-ratelimit-used")]
    return float(used.partition(":")[2]) - 1
