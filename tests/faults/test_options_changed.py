"""I3, I8: replies are lost while options change; every call has one effect all the same."""

import asyncio
import itertools
import random
from collections import Counter

from tests.waiting import HANGS, eventually_in_loop
from towpath.clock import minutes, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.engine.model import Complete, Lease, Submitted, new_job
from towpath.engine.options import EventPolicy, QueueOptions
from towpath.engine.states import State
from towpath.errors import TowpathError
from towpath.ids import JobId
from towpath.testing.proxy import Faults, Proxy

QUEUE = "changing"
JOBS = 2000
BATCH = 20
LIMITS = Limits(answer=seconds(5), give_up=seconds(60))


class JobAnswers:
    """The answers that one process got about its jobs."""

    def __init__(self) -> None:
        self.answers: list[Submitted | TowpathError] = []
        self.claimed: Counter[JobId] = Counter()
        self.completed: Counter[JobId] = Counter()

    async def submit(self, engine: Engine) -> None:
        """Submits half of the jobs in batches, and half one by one at the same time."""
        for _ in range(JOBS // (2 * BATCH)):
            self.answers += await engine.submit_many(QUEUE, [new_job(b"") for _ in range(BATCH)])
            self.answers += await asyncio.gather(
                *(engine.submit(QUEUE, b"", lane=f"{n}") for n in range(BATCH))
            )

    async def work(self, engine: Engine) -> None:
        """Claims and completes until all jobs are done; no worker is silent, so no lease ends."""
        held: list[Lease] = []
        while held or self.completed.total() < JOBS:
            answer = await engine.exchange(
                QUEUE,
                [Complete(lease) for lease in held],
                worker="w",
                lease=minutes(10),
                count=BATCH,
            )
            done = zip(held, answer.outcomes, strict=True)
            self.completed.update(lease.id for lease, outcome in done if outcome is State.DONE)
            held = answer.leases
            self.claimed.update(lease.id for lease in held)

    def violations(self) -> list[str]:
        """Violations: every job is new to Redis, is delivered once and completed once."""
        ids = [
            answer.id
            for answer in self.answers
            if isinstance(answer, Submitted) and not answer.existed
        ]
        found = [f"{JOBS - len(set(ids))} jobs were not new"] if len(set(ids)) < JOBS else []
        for what, times in (("claimed", self.claimed), ("completed", self.completed)):
            wrong = [f"{id} was {what} {times[id]} times" for id in ids if times[id] != 1]
            found += [*wrong, *(f"{id} is nobody's" for id in times.keys() - set(ids))]
        return found


async def change_with_every_cut(engine: Engine, proxy: Proxy) -> None:
    """Changes the options after every cut. A cut call is repeated after a pause; the options change
    before that.
    """
    for attempts in itertools.count(5):
        seen = proxy.cuts
        await engine.queues.reconfigure(
            QUEUE, QueueOptions(max_attempts=attempts, events=EventPolicy.NONE)
        )
        await eventually_in_loop(lambda seen=seen: proxy.cuts > seen)


async def run(server: EmbeddedServer, seed: int) -> JobAnswers:
    """Runs all jobs through a network that cuts a quarter of all replies."""
    faults, history = Faults(chance=random.Random(seed)), JobAnswers()
    async with (
        Engine(server.url) as direct,
        Proxy(server.address, faults) as proxy,
        Engine(proxy.url, limits=LIMITS) as engine,
    ):
        changing = asyncio.create_task(change_with_every_cut(direct, proxy))
        await engine.queues.options(QUEUE)
        faults.cut_replies = 0.25
        async with asyncio.timeout(HANGS):
            await asyncio.gather(history.submit(engine), history.work(engine))
        changing.cancel()
        counts = await direct.inspect.counts(QUEUE)
    assert proxy.cuts > 10, "nothing was cut"
    assert counts.ready + counts.leased + counts.waiting == 0
    assert (counts.totals["submitted"], counts.totals["completed"]) == (JOBS, JOBS)
    return history


async def test_every_call_has_one_effect_while_options_change(
    server: EmbeddedServer, seed: int
) -> None:
    assert (await run(server, seed)).violations() == []
