"""A request for a task takes as long with 50,000 open issues of 200 kinds as with 50."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory

import msgspec

from benchmarks.bench import Plan, bench
from benchmarks.figure import Figure, Reference, at_most, measured
from benchmarks.issues_sync import REPOSITORIES, ROLES, github_with, synced
from benchmarks.measure import percentile
from benchmarks.web.agents import asked
from benchmarks.web.serving import ServerProcess, served_with
from benchmarks.web.wire import client

FEW = 50
_AGENT = {"agent_id": "bench"}


async def run(plan: Plan) -> list[Figure]:
    many, requests = plan.count(50_000, 1_000), plan.count(500, 60)
    async with filled(FEW) as few, filled(many) as crowded:
        fast, slow = list[list[float]](), list[list[float]]()
        for _ in range(plan.rounds):
            fast.append(await _times_ms(few, requests))
            slow.append(await _times_ms(crowded, requests))
    beside = Reference(f"ms with {FEW} open issues", [percentile(times, 0.99) for times in fast])
    what = f"a request for a task with {many:,} open issues of {REPOSITORIES * ROLES} kinds"
    return [
        measured(
            "issues_backlog",
            f"{what}, p99",
            "ms",
            [percentile(times, 0.99) for times in slow],
            at_most(1.5, f"with {FEW}"),
            beside=beside,
        ),
        measured(
            "issues_backlog.p50",
            "the same, p50",
            "ms",
            [percentile(times, 0.5) for times in slow],
            beside=Reference(f"ms with {FEW}", [percentile(times, 0.5) for times in fast]),
        ),
    ]


@asynccontextmanager
async def filled(issues: int) -> AsyncGenerator[ServerProcess]:
    """A server with so many issues. They came from a GitHub that it does not call any more."""
    with TemporaryDirectory(prefix="towpath-bench-") as folder:
        database = f"sqlite:///{folder}/ledger.db"
        async with bench() as workbench:
            async with github_with(issues) as double:
                await synced(workbench, database, double, issues)
            async with served_with(workbench, database) as serving:
                yield serving


async def _times_ms(serving: ServerProcess, requests: int) -> list[float]:
    """The times in which one agent asks for a task of two roles in two repositories; it gives the
    task back.
    """
    times: list[float] = []
    wish = {
        **_AGENT,
        "roles": ["r1", "r2"],
        "repositories": ["octo/repo-1", "octo/repo-2"],
    }
    async with client(serving.place) as agent:
        for _ in range(requests):
            began = time.perf_counter()
            answer = await asked(agent, "/api/v1/request-task", wish, 200)
            times.append((time.perf_counter() - began) * 1000)
            task = msgspec.json.decode(answer.body)
            back = {"token": task["token"]}
            await asked(agent, f"/api/v1/tasks/{task['task_id']}/release", back, 200)
    return times
