"""A random walk: simulated workers on real records, while Redis forgets and its clock goes back.

In any order of steps: an attempt begins only under a higher token than the one before it, the
outcome of the last attempt counts, each record ends once, and those of a lane begin in the order in
which they were made. When the faults stop, every record ends.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
from sqlalchemy import text

from tests.faults import record_history
from towpath.clock import ManualClock, milliseconds, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import Complete, Fail, Lease, Release, Settlement
from towpath.ledger.errors import RecordNotFound, RecordNotWaiting
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.attempts import Beginning, Ending, Standing
from towpath.ledger.records.record import RecordState, first_name
from towpath.ledger.records.recorder import LedgerRecorder
from towpath.ledger.records.relay import Relay
from towpath.telemetry.logs import Log

QUEUE = "walk"
LEASE = seconds(30)
ROUNDS = 20
ENOUGH = 10_000
"""More attempts than a walk has steps: no record may end for want of them."""


class GuaranteeViolated(AssertionError):
    """A guarantee was violated."""


class RecordWalk:
    """Random steps, each of which is one call of some process."""

    def __init__(self, ledger: Ledger, server: EmbeddedServer, seed: int) -> None:
        self.ledger, self.server, self.chance = ledger, server, random.Random(seed)
        self.clock = ManualClock()
        self.behind = self.chance.random() < 0.5
        """Whether each new Redis is behind the one before."""
        self.engine = Engine(server.url, clock=self.clock)
        self.relay = Relay(ledger, self.engine, log=Log())
        self.recorder = LedgerRecorder(ledger.jobs)
        self.held: list[Lease] = []
        """Claimed, and not begun yet."""
        self.running: list[Lease] = []
        self.made = 0
        self.began: dict[str, int] = {}
        """The token of the last attempt that began."""
        self.accepted: dict[str, set[int]] = defaultdict(set)
        self.lanes: dict[str, str] = {}
        self.first: dict[str, int] = defaultdict(int)
        """The last one of each lane that has begun for the first time."""

    async def run(self, steps: int) -> None:
        """Takes so many random steps; then stops the faults and checks everything."""
        kinds: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self.make, 4), (self.claim, 5), (self.begin_some, 5), (self.end_one, 6),
            (self.lose_one, 1), (self.time_passes, 2), (self.look, 2), (self.forget, 1),
            (self.move_one, 2),
        ]  # fmt: skip
        names, weights = [kind for kind, _ in kinds], [weight for _, weight in kinds]
        async with self.engine:
            for step in self.chance.choices(names, weights, k=steps):
                await step()
            await self.end_everything()
        await self.check()

    # ── steps ────────────────────────────────────────────────────────────────────────────

    async def make(self) -> None:
        """Makes records, with a connection to Redis or without."""
        self.ledger.jobs.relay = self.relay if self.chance.random() < 0.5 else None
        for _ in range(self.chance.randrange(1, 4)):
            self.made += 1
            lane = self.chance.choice([None, "anna", "ben"])
            if lane:
                self.lanes[f"r{self.made}"] = lane
            await self.ledger.jobs.submit(
                QUEUE, b"", id=f"r{self.made}", lane=lane, max_attempts=ENOUGH
            )
        self.ledger.jobs.relay = None

    async def claim(self) -> None:
        self.held += await self.claimed(self.chance.randrange(1, 5))

    async def claimed(self, count: int) -> list[Lease]:
        """Claims jobs, and hides how often workers died: in this walk they die more often than a
        queue allows, and then the record would be dead.
        """
        leases = await self.engine.claim(QUEUE, worker="w", lease=LEASE, count=count)
        return [msgspec.structs.replace(lease, deaths=0) for lease in leases]

    async def begin_some(self) -> None:
        """Begins some claimed jobs at the same time, late ones among them, in any order."""
        some = self.chance.sample(self.held, min(len(self.held), self.chance.randrange(1, 5)))
        for lease in some:
            self.held.remove(lease)
        # The first one is alone; those that come while it is under way share a transaction.
        answers = await asyncio.gather(*(self.ledger.jobs.begin(lease) for lease in some))
        for lease, begun in zip(some, answers, strict=True):
            await self.answered(lease, begun)

    async def answered(self, lease: Lease, begun: Beginning) -> None:
        """Does what a worker does with the row's decision: it does not tell Redis about a stale
        lease.
        """
        if begun.standing is Standing.BEGUN:
            self.note_begun(lease)
        elif begun.standing is Standing.NOT_DUE:
            await self.settle(Release(lease, begun.due_in))
        elif begun.standing is not Standing.STALE:
            await self.settle(Complete(lease))

    def note_begun(self, lease: Lease) -> None:
        id = first_name(lease.id)
        if lease.token <= self.began.get(id, 0):
            raise GuaranteeViolated(f"{id} began under {lease.token} after {self.began[id]}")
        if id not in self.began and id in self.lanes:
            lane, number = self.lanes[id], int(id[1:])
            if number < self.first[lane]:
                raise GuaranteeViolated(f"{id} began after r{self.first[lane]} of its lane {lane}")
            self.first[lane] = number
        self.began[id] = lease.token
        self.running.append(lease)

    async def end_one(self) -> None:
        """Ends one attempt in some way. Its answer may be lost, and its worker may die before Redis
        hears of it.
        """
        if not self.running:
            return
        lease = self.chance.choice(self.running)
        word = self.chance.choice([self.complete, self.complete, _fail, Release])(lease)
        state = await self.end(lease, word)
        if self.chance.random() < 0.3 and await self.end(lease, word) is not state:
            raise GuaranteeViolated(f"{lease.id}: another answer to the same question")
        if self.chance.random() < 0.8:
            self.running.remove(lease)
        told = await self.recorder.end(lease, word, cancelled=False)
        if self.chance.random() < 0.8 and told is not None:
            await self.settle(told)

    def complete(self, lease: Lease) -> Complete:
        return Complete(lease, b"%d" % lease.token)

    async def end(self, lease: Lease, word: Settlement) -> RecordState | None:
        state = await self.ledger.jobs.end(Ending(lease, word, cancelled=False))
        if state is RecordState.COMPLETED:
            self.accepted[first_name(lease.id)].add(lease.token)
        return state

    async def settle(self, word: Settlement) -> None:
        await self.engine.settle([word])  # refused if Redis has forgotten the job, which is fine

    async def move_one(self) -> None:
        """Changes the due time of a waiting record, and tells Redis or not."""
        self.ledger.jobs.relay = self.relay if self.chance.random() < 0.5 else None
        with suppress(RecordNotWaiting, RecordNotFound):
            id, wait = f"r{self.chance.randint(1, self.made + 1)}", self.chance.choice([0, 0, 5])
            await self.ledger.jobs.move(QUEUE, id, delay=seconds(wait))
        self.ledger.jobs.relay = None

    async def lose_one(self) -> None:
        """Kills a worker with the jobs that it holds."""
        if self.held:
            self.held.remove(self.chance.choice(self.held))

    async def time_passes(self) -> None:
        """Advances the clocks of Redis and the database."""
        self.clock.advance(seconds(self.chance.randrange(60)))
        later = text(
            "UPDATE towpath_jobs SET relay_at = relay_at - 20000, due_at = due_at - 20000, "
            "next_try_at = next_try_at - 20000"
        )
        await self.ledger.write(lambda connection: connection.execute(later))

    async def look(self) -> None:
        await self.relay.look()

    async def forget(self) -> None:
        """Makes Redis lose everything; the clock of its successor may be behind.

        Redis could then give out a token again that no row has seen, so holders of such a token die
        too.
        """
        self.server.ask("FLUSHALL")
        if self.behind:
            self.held = []
            self.clock._now -= self.chance.randrange(1, 3_600_000)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- no public way back
        self.clock.advance(milliseconds(1))

    # ── the end ──────────────────────────────────────────────────────────────────────────

    async def end_everything(self) -> None:
        """Faults have stopped, and every worker that holds something dies: every record must end
        (I12).
        """
        self.held, self.running = [], []
        for _ in range(ROUNDS):
            if not await record_history.left(self.ledger):
                return
            await self.time_passes()
            self.clock.advance(LEASE)
            await self.look()
            while leases := await self.claimed(500):
                for lease in leases:
                    begun = await self.ledger.jobs.begin(lease)
                    await self.answered(lease, begun)
                    if begun.standing is Standing.BEGUN:
                        await self.end(lease, self.complete(lease))
                        await self.settle(Complete(lease))
        raise GuaranteeViolated(f"{await record_history.left(self.ledger)} records do not end")

    async def check(self) -> None:
        found, steps = (
            await record_history.rows(self.ledger),
            await record_history.history(self.ledger),
        )
        wrong = record_history.violations(found, steps, self.accepted) + record_history.regressions(
            steps
        )
        wrong += [f"{id} is dead" for id, row in found.items() if row.state == "dead"]
        wrong += [f"{id} has {ends}" for id, ends in self.accepted.items() if len(ends) > 1]
        if wrong or len(found) != self.made:
            raise GuaranteeViolated("\n".join([f"{len(found)} of {self.made}", *wrong[:20]]))


def _fail(lease: Lease) -> Fail:
    return Fail(lease, "no", seconds(5))
