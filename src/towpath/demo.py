"""A live demonstration of the engine on a private Valkey: `make up`, until the server exists.

Three workers share a queue with priorities and lanes; one of them dies with jobs in its hands,
one job is poison, some are delayed. Everything is checked at the end, and the exit code says so.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import defaultdict

from towpath.clock import milliseconds, minutes, seconds, steady
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.inspect import Counts
from towpath.engine.model import HIGH, LOW, NORMAL, Complete, Fail, Lease, Settlement, new_job
from towpath.engine.options import QueueOptions
from towpath.engine.retry import Fixed
from towpath.engine.states import State

QUEUE = "demo"
LANES, PER_LANE, DELAYED = 20, 15, 20
POISON = "poison"
LEASE = milliseconds(900)


class Story:
    """What happened, for the check at the end."""

    def __init__(self) -> None:
        self.order: dict[str, list[int]] = defaultdict(list)
        self.late_ms: list[float] = []
        self.redelivered = 0
        self.began = steady()

    def say(self, text: str) -> None:
        print(f"{steady() - self.began:6.2f} s  {text}", flush=True)

    def ran(self, lease: Lease) -> None:
        self.redelivered += lease.attempt > 1
        if lease.lane:
            self.order[lease.lane].append(int(lease.payload))
        if lease.due_ms:
            self.late_ms.append(lease.token / 1000 - lease.due_ms)


async def work(engine: Engine, name: str, story: Story, *, dies_after: int | None = None) -> None:
    """Claim, work, settle, in one round trip per batch; a dying worker never settles its last."""
    settled: list[Settlement] = []
    batches = 0
    while True:
        exchanged = await engine.exchange(QUEUE, settled, worker=name, lease=LEASE, count=8)
        leases = exchanged.leases or await engine.claim(
            QUEUE, worker=name, lease=LEASE, count=8, wait=seconds(1)
        )
        batches += 1
        if batches == dies_after:
            story.say(f"worker {name} dies with {len(leases)} jobs in its hands")
            return
        await asyncio.sleep(0.004 * random.random())  # noqa: S311 -- pretended work
        settled = [settle(lease, story) for lease in leases]


def settle(lease: Lease, story: Story) -> Settlement:
    if lease.id == POISON:
        return Fail(lease, f"attempt {lease.attempt} of poison failed")
    story.ran(lease)
    return Complete(lease, b"done")


async def submit_all(engine: Engine, story: Story) -> int:
    options = QueueOptions(max_attempts=3, retry=Fixed(milliseconds(200)), keep=minutes(10))
    await engine.configure(QUEUE, options)
    ordered = [
        new_job(str(n).encode(), lane=f"user-{lane}", priority=random.choice((LOW, NORMAL, HIGH)))  # noqa: S311 -- a demonstration
        for n in range(PER_LANE)
        for lane in range(LANES)
    ]
    delayed = [new_job(b"0", delay=milliseconds(100 * n)) for n in range(1, DELAYED + 1)]
    jobs = [*ordered, *delayed, new_job(b"0", id=POISON)]
    await engine.submit_many(QUEUE, jobs)
    story.say(
        f"{len(jobs)} jobs submitted: {LANES} lanes, 3 priorities, {DELAYED} delayed, 1 poison"
    )
    return len(jobs)


async def until_done(engine: Engine, total: int, story: Story) -> Counts:
    while True:
        counts = await engine.counts(QUEUE)
        done = counts.totals["completed"]
        story.say(
            f"{done:4} done, {counts.ready} ready, {counts.waiting} behind the head of their lane, "
            f"{counts.delayed} delayed, {counts.leased} leased, {counts.dead} dead"
        )
        if done + counts.dead >= total:
            return counts
        await asyncio.sleep(0.5)


def verdict(counts: Counts, total: int, story: Story) -> list[str]:
    """What did not hold; empty if everything did."""
    wrong = [lane for lane, seen in story.order.items() if seen != sorted(set(seen))]
    early = [late for late in story.late_ms if late < 0]
    latest = max(story.late_ms, default=0.0)
    findings = [
        (counts.totals["completed"] == total - 1, "every job but the poison is completed once"),
        (counts.dead == 1, "the poison is dead after 3 attempts"),
        (not wrong, f"order kept in {len(story.order)} lanes, one at a time"),
        (story.redelivered > 0, f"{story.redelivered} jobs of the dead worker ran elsewhere"),
        (not early, f"{len(story.late_ms)} delayed jobs, none early, at most {latest:.1f} ms late"),
    ]
    for holds, text in findings:
        story.say(f"{'ok   ' if holds else 'WRONG'}  {text}")
    return [text for holds, text in findings if not holds]


async def demonstrate() -> int:
    story = Story()
    with EmbeddedServer() as server:
        async with Engine(server.url) as engine:
            facts = engine.facts
            story.say(f"{facts.flavour} {facts.version}, durability class {facts.durability}")
            total = await submit_all(engine, story)
            workers = [
                asyncio.create_task(work(engine, "anna", story)),
                asyncio.create_task(work(engine, "ben", story)),
                asyncio.create_task(work(engine, "carl", story, dies_after=5)),
            ]
            counts = await until_done(engine, total, story)
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            [dead] = (await engine.list(QUEUE, State.DEAD)).jobs
            story.say(f"dead: {dead.id} ({dead.reason})")
            return 1 if verdict(counts, total, story) else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(demonstrate()))
