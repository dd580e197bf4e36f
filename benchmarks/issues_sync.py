"""50,000 issues are compared with GitHub: how long it takes, how many requests, how much memory."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from tempfile import TemporaryDirectory

import msgspec

from benchmarks.bench import Plan, bench
from benchmarks.figure import Figure, measured
from benchmarks.web.process import started
from benchmarks.web.serving import Serving, served_with
from towpath import Engine

REPOSITORIES, ROLES = 20, 10
_WITHIN = 900.0
_LOOK_EVERY = 0.2


class _Double(msgspec.Struct):
    """What the GitHub double says when it answers."""

    address: str
    token: str


class _Seen(msgspec.Struct, frozen=True):
    seconds: float
    resident: int
    grown: int


async def run(plan: Plan) -> list[Figure]:
    issues = plan.count(50_000, 1_000)
    async with AsyncExitStack() as stack:
        each = issues // REPOSITORIES
        filled = [f"--fill=octo/repo-{number}={each}" for number in range(REPOSITORIES)]
        words = (sys.executable, "-m", "towpath.testing.github", f"--roles={ROLES}", *filled)
        github = await stack.enter_async_context(started([*words, "--limit=1000000"], {}))
        double = msgspec.json.decode(await github.said.readline(), type=_Double)
        it = await stack.enter_async_context(bench())
        folder = stack.enter_context(TemporaryDirectory(prefix="towpath-bench-"))
        settings = {
            "TOWPATH_ISSUES__GITHUB_TOKEN": double.token,
            "TOWPATH_ISSUES__GITHUB_HOST": double.address,
            "TOWPATH_ISSUES__GITHUB_API": double.address,
            "TOWPATH_ISSUES__REPOSITORIES": ",".join(
                f"octo/repo-{number}" for number in range(REPOSITORIES)
            ),
        }
        began = time.perf_counter()
        database = f"sqlite:///{folder}/ledger.db"
        serving = await stack.enter_async_context(served_with(it, database, **settings))
        seen = await _all_known(it.engine, serving, issues, began)
        requests = await _requests(double)
    what = f"{issues:,} issues of {REPOSITORIES} repositories, from the start of the server"
    return [
        measured("issues_sync", what, "s", [seen.seconds]),
        measured("issues_sync.requests", "requests to GitHub for that", "requests", [requests]),
        measured("issues_sync.memory", "the server's memory then", "MB", [seen.resident / 1e6]),
        measured("issues_sync.grown", "of that, since it began", "MB", [seen.grown / 1e6]),
    ]


async def _all_known(engine: Engine, serving: Serving, issues: int, began: float) -> _Seen:
    """Until all issues can be handed out."""
    first = most = serving.resident()
    async with asyncio.timeout(_WITHIN):
        while (await engine.counts("issues")).ready < issues:
            await asyncio.sleep(_LOOK_EVERY)
            most = max(most, serving.resident())
    return _Seen(time.perf_counter() - began, most, most - first)


async def _requests(double: _Double) -> float:
    """How many requests the double has answered, before this one."""
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
