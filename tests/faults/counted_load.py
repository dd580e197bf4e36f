"""Producers and workers in this process that note what the engine acknowledged."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from tests.faults.queue_contents import QueueContents
from tests.waiting import eventually_in_loop
from towpath.clock import minutes, seconds
from towpath.engine.durability import Durability
from towpath.engine.engine import Engine
from towpath.engine.model import Complete, new_job
from towpath.engine.states import State
from towpath.errors import ServerError
from towpath.ids import JobId

BATCH = 20


class CountedLoad:
    """Submits and completes jobs, and notes every acknowledgement."""

    def __init__(self, engine: Engine, queue: str, durability: Durability | None = None) -> None:
        self._engine, self._queue, self._durability = engine, queue, durability
        self.submitted: set[JobId] = set()
        """Acknowledged: these exist."""
        self.completed: set[JobId] = set()
        """Acknowledged: these are done."""
        self.twice: set[JobId] = set()
        """Completions that were accepted although one had been before."""
        self.ending = False
        self.tokens: list[int] = []
        """Every token that was given out."""
        self.shrunk: list[tuple[int, int]] = []
        """Where a worker got a token that is not above all tokens it had before. Each worker claims
        one batch after the other; the replies to two workers may arrive in another order.
        """

    async def submit_one_by_one(self) -> None:
        while not self.ending:
            with suppress(ServerError):
                answer = await self._engine.submit(self._queue, b"x", durability=self._durability)
                self.submitted.add(answer.id)

    async def submit_in_batches(self) -> None:
        while not self.ending:
            jobs = [new_job(b"x") for _ in range(BATCH)]
            with suppress(ServerError):
                await self._engine.submit_many(self._queue, jobs, durability=self._durability)
                self.submitted |= {job.id for job in jobs}

    async def work(self, worker: str) -> None:
        """Completes about half of the jobs that come; the others stay leased or ready."""
        highest = 0
        while not self.ending:
            with suppress(ServerError):
                leases = await self._engine.claim(
                    self._queue, worker=worker, lease=minutes(10), count=BATCH, wait=seconds(1)
                )
                tokens = [lease.token for lease in leases]
                if tokens and min(tokens) <= highest:
                    self.shrunk.append((highest, min(tokens)))
                self.tokens += tokens
                highest = max([highest, *tokens])
                chosen = leases[::2]
                outcomes = await self._engine.settle([Complete(lease) for lease in chosen])
                self._note(
                    [lease.id for lease in chosen], [outcome is State.DONE for outcome in outcomes]
                )

    def _note(self, ids: list[JobId], accepted: list[bool]) -> None:
        done = {id for id, ok in zip(ids, accepted, strict=True) if ok}
        self.twice |= done & self.completed
        self.completed |= done

    async def more(self, count: int) -> None:
        """Returns once so many more submits and completes were acknowledged."""
        submitted, completed = len(self.submitted) + count, len(self.completed) + count
        await eventually_in_loop(
            lambda: len(self.submitted) >= submitted and len(self.completed) >= completed,
        )

    def losses(self, found: QueueContents) -> dict[str, set[JobId]]:
        """Acknowledged submits and completes that Redis has lost. The queue must keep done jobs."""
        missing = self.submitted - found.jobs.keys()
        undone = self.completed & found.jobs.keys() - found.ids(State.DONE)
        return {
            name: ids
            for name, ids in (("missing", missing), ("undone", undone), ("twice", self.twice))
            if ids
        }


@asynccontextmanager
async def under_load(load: CountedLoad) -> AsyncGenerator[None]:
    """Runs three producers and two workers while the block lasts; then they finish."""
    tasks = [
        asyncio.create_task(load.submit_one_by_one()),
        asyncio.create_task(load.submit_one_by_one()),
        asyncio.create_task(load.submit_in_batches()),
        asyncio.create_task(load.work("w1")),
        asyncio.create_task(load.work("w2")),
    ]
    try:
        yield
        load.ending = True
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
