"""The whole life of a plain job takes at most 30 µs of Redis CPU, in batches of 50."""

from __future__ import annotations

from statistics import median

from benchmarks.bench import QUEUE, WORKER, Bench, Plan, bench
from benchmarks.figure import Figure, at_most, measured
from benchmarks.measure import Cost, in_turns, server_us
from benchmarks.raw import Raw
from towpath import minutes
from towpath.engine.model import Complete, Lease

BATCH = 50
LEASE = minutes(10)


async def run(plan: Plan) -> list[Figure]:
    jobs, calls = plan.count(10_000, 2_500), plan.count(2_000, 500)
    async with bench() as workbench, Raw(workbench) as raw:
        costs = await in_turns(
            plan.rounds,
            {
                "submit": lambda: _submit(workbench, jobs),
                "run": lambda: _run(workbench, jobs),
                "claim": lambda: _claim(workbench, jobs),
                "settle": lambda: _settle(workbench, jobs),
                "exchange": lambda: _exchange(workbench, jobs),
                "evalsha": lambda: raw.one_by_one(calls),
                "set": lambda: raw.set_in_lua(1000, plan.count(50, 20)),
            },
        )
    return _figures({name: server_us(those) for name, those in costs.items()})


def _figures(us: dict[str, list[float]]) -> list[Figure]:
    claiming = [a + b for a, b in zip(us["submit"], us["run"], strict=True)]
    exchanging = [a + b for a, b in zip(us["submit"], us["exchange"], strict=True)]
    bound = (
        f"scripts on the server's one thread: submit {median(us['submit']):.1f} µs, "
        f"claim {median(us['claim']):.1f}, settle {median(us['settle']):.1f}; "
        f"one SET in Lua costs {median(us['set']):.2f} here, "
        f"a small EVALSHA {median(us['evalsha']):.1f}; best round {min(claiming):.1f}"
    )
    what = "submit + claim + complete, 50 at a time"
    return [
        measured("server_cpu", what, "µs/job", claiming, at_most(30), bound=bound),
        measured("server_cpu.exchange", "submit + exchange, 50 at a time", "µs/job", exchanging),
        measured("server_cpu.submit", "of it: submit", "µs/job", us["submit"]),
        measured("server_cpu.claim", "of it: claim", "µs/job", us["claim"]),
        measured("server_cpu.settle", "of it: complete", "µs/job", us["settle"]),
        measured("server_cpu.evalsha", "a raw small EVALSHA, one by one", "µs/call", us["evalsha"]),
        measured("server_cpu.set", "one SET in a Lua loop of 1,000", "µs/call", us["set"]),
    ]


async def _submit(workbench: Bench, jobs: int) -> Cost:
    await workbench.clear()
    return await workbench.submit(jobs, BATCH)


async def _run(workbench: Bench, jobs: int) -> Cost:
    """Claims 50 and completes 50, until all jobs are done."""
    await _full(workbench, jobs)

    async def work() -> None:
        for _ in range(jobs // BATCH):
            await _complete(workbench, await _claim_batch(workbench))

    return await workbench.meter.cost(jobs, work())


async def _claim(workbench: Bench, jobs: int) -> Cost:
    await _full(workbench, jobs)

    async def work() -> None:
        for _ in range(jobs // BATCH):
            await _claim_batch(workbench)

    return await workbench.meter.cost(jobs, work())


async def _settle(workbench: Bench, jobs: int) -> Cost:
    await _full(workbench, jobs)
    batches = [await _claim_batch(workbench) for _ in range(jobs // BATCH)]

    async def work() -> None:
        for batch in batches:
            await _complete(workbench, batch)

    return await workbench.meter.cost(jobs, work())


async def _exchange(workbench: Bench, jobs: int) -> Cost:
    await _full(workbench, jobs)
    return await workbench.meter.cost(jobs, exchange_all(workbench, jobs, BATCH))


async def exchange_all(workbench: Bench, jobs: int, batch: int) -> None:
    """Claims and completes all ready jobs, one round trip per batch."""
    held: list[Lease] = []
    done = 0
    while done < jobs:
        settled = [Complete(lease) for lease in held]
        brought = await workbench.engine.exchange(
            QUEUE, settled, worker=WORKER, lease=LEASE, count=min(batch, jobs - done - len(held))
        )
        done, held = done + len(settled), brought.leases
        assert held or done == jobs, "the queue held fewer jobs than it was given"


async def _full(workbench: Bench, jobs: int) -> None:
    await workbench.clear()
    await workbench.fill(jobs)


async def _claim_batch(workbench: Bench) -> list[Lease]:
    leases = await workbench.engine.claim(QUEUE, worker=WORKER, lease=LEASE, count=BATCH)
    assert len(leases) == BATCH, "the queue held fewer jobs than it was given"
    return leases


async def _complete(workbench: Bench, leases: list[Lease]) -> None:
    await workbench.engine.settle([Complete(lease) for lease in leases])
