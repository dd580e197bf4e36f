"""A request for a task takes as long with 50,000 open issues of 200 kinds as with 50."""

from __future__ import annotations

import asyncio
import time

import msgspec

from benchmarks.bench import Plan, bench
from benchmarks.figure import Beside, Figure, at_most, measured
from benchmarks.measure import percentile
from benchmarks.web.agents import asked
from benchmarks.web.serving import Serving, served
from benchmarks.web.wire import client

FEW, REPOSITORIES, ROLES = 50, 20, 10
_TELLERS = 50
_AGENT = {"agent_id": "bench"}


async def run(plan: Plan) -> list[Figure]:
    many, requests = plan.count(50_000, 1_000), plan.count(500, 60)
    async with (
        bench() as few_on,
        served(few_on) as (few, _),
        bench() as many_on,
        served(many_on) as (crowded, _),
    ):
        await _told(few, FEW)
        took = time.perf_counter()
        await _told(crowded, many)
        took = time.perf_counter() - took
        fast, slow = list[list[float]](), list[list[float]]()
        for _ in range(plan.rounds):
            fast.append(await _times_ms(few, requests))
            slow.append(await _times_ms(crowded, requests))
    beside = Beside(f"ms with {FEW} open issues", [percentile(it, 0.99) for it in fast])
    what = f"a request for a task with {many:,} open issues of {REPOSITORIES * ROLES} kinds"
    return [
        measured(
            "issues_backlog",
            f"{what}, p99",
            "ms",
            [percentile(it, 0.99) for it in slow],
            at_most(1.5, f"with {FEW}"),
            beside=beside,
        ),
        measured(
            "issues_backlog.p50",
            "the same, p50",
            "ms",
            [percentile(it, 0.5) for it in slow],
            beside=Beside(f"ms with {FEW}", [percentile(it, 0.5) for it in fast]),
        ),
        measured("issues_backlog.told", "issues told of one by one", "issues/s", [many / took]),
    ]


async def _told(serving: Serving, issues: int) -> None:
    """Issues of as many kinds as there can be, evenly."""

    async def tell(numbers: range) -> None:
        async with client(serving.place) as teller:
            for number in numbers:
                kind = number % (REPOSITORIES * ROLES)
                issue = {
                    "repository": f"octo/repo-{kind % REPOSITORIES}",
                    "number": number + 1,
                    "title": "t",
                    "labels": [f"P{number % 5}", f"role:r{kind // REPOSITORIES}"],
                }
                await asked(teller, "/api/v1/issues", issue, 200)

    await asyncio.gather(*(tell(range(at, issues, _TELLERS)) for at in range(_TELLERS)))


async def _times_ms(serving: Serving, requests: int) -> list[float]:
    """One agent asks for a task of two roles in two repositories, and gives it back."""
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
