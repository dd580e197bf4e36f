"""200 agents race for 100 issues: each issue has one holder at a time, and all are done."""

from __future__ import annotations

import time

from benchmarks.bench import Plan, bench
from benchmarks.figure import Figure, at_most, measured
from benchmarks.measure import percentile
from benchmarks.web.agents import IssueRace
from benchmarks.web.serving import served


async def run(plan: Plan) -> list[Figure]:
    agents, issues, rounds = plan.count(200, 40), plan.count(100, 20), plan.count(20, 3)
    rates, p99s, handed_out, busy = list[float](), list[float](), list[float](), list[float]()
    async with bench() as workbench, served(workbench) as (serving, _):
        for number in range(rounds):
            numbers = range(number * issues + 1, (number + 1) * issues + 1)
            race = IssueRace(serving.place, seed=number)
            await race.told(numbers)
            began = time.perf_counter()
            holders = await race.run(agents, numbers)
            rates.append(race.requests / (time.perf_counter() - began))
            p99s.append(percentile(race.times_ms, 0.99))
            handed_out.append(holders.handed_out)
            busy.append(race.busy)
    what = f"{agents} agents race for {issues} issues, {rounds} rounds"
    return [
        measured("issues_race", what, "requests/s", rates),
        measured("issues_race.p99", "a request for a task, p99", "ms", p99s),
        measured("issues_race.handed_out", "tasks handed out a round", "tasks", handed_out),
        measured("issues_race.busy", "requests a round that met 503, sent again", "requests", busy),
        measured(
            "issues_race.broken",
            "issues with two holders at a time, or none in the end",
            "issues",
            # Checked at each answer: the first violation ends the bench with an error.
            [0.0 for _ in rates],
            at_most(0),
        ),
    ]
