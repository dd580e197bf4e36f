"""The whole life of a plain job takes at most 30 µs of server CPU, in batches of 50."""

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
    async with bench() as it, Raw(it) as raw:
        costs = await in_turns(
            plan.rounds,
            {
                "submit": lambda: _submit(it, jobs),
                "run": lambda: _run(it, jobs),
                "claim": lambda: _claim(it, jobs),
                "settle": lambda: _settle(it, jobs),
                "exchange": lambda: _exchange(it, jobs),
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


async def _submit(it: Bench, jobs: int) -> Cost:
    await it.clear()
    return await it.submit(jobs, BATCH)


async def _run(it: Bench, jobs: int) -> Cost:
    """Claim 50 and complete 50, until all are done."""
    await _full(it, jobs)

    async def work() -> None:
        for _ in range(jobs // BATCH):
            await _complete(it, await _claim_batch(it))

    return await it.meter.cost(jobs, work())


async def _claim(it: Bench, jobs: int) -> Cost:
    await _full(it, jobs)

    async def work() -> None:
        for _ in range(jobs // BATCH):
            await _claim_batch(it)

    return await it.meter.cost(jobs, work())


async def _settle(it: Bench, jobs: int) -> Cost:
    await _full(it, jobs)
    batches = [await _claim_batch(it) for _ in range(jobs // BATCH)]

    async def work() -> None:
        for batch in batches:
            await _complete(it, batch)

    return await it.meter.cost(jobs, work())


async def _exchange(it: Bench, jobs: int) -> Cost:
    await _full(it, jobs)
    return await it.meter.cost(jobs, exchange_all(it, jobs, BATCH))


async def exchange_all(it: Bench, jobs: int, batch: int) -> None:
    """Claim and complete all that waits, one round trip per batch."""
    held: list[Lease] = []
    done = 0
    while done < jobs:
        settled = [Complete(lease) for lease in held]
        brought = await it.engine.exchange(
            QUEUE, settled, worker=WORKER, lease=LEASE, count=min(batch, jobs - done - len(held))
        )
        done, held = done + len(settled), brought.leases
        assert held or done == jobs, "the queue held fewer jobs than it was given"


async def _full(it: Bench, jobs: int) -> None:
    await it.clear()
    await it.fill(jobs)


async def _claim_batch(it: Bench) -> list[Lease]:
    leases = await it.engine.claim(QUEUE, worker=WORKER, lease=LEASE, count=BATCH)
    assert len(leases) == BATCH, "the queue held fewer jobs than it was given"
    return leases


async def _complete(it: Bench, leases: list[Lease]) -> None:
    await it.engine.settle([Complete(lease) for lease in leases])
