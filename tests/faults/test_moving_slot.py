"""I15, I1: while a queue's slot moves to another master, every call fails whole or succeeds whole.

The keys of a queue move one by one, so for a while each master has some of them. The effect of a
call must be complete or none; and after the move everything is as if there had been no move.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace

import pytest

from tests.amounts import slow
from tests.faults.filled_queue import MEANWHILE, FilledQueue, Plain, prepare
from tests.faults.moving_slot import MovingSlot, slot_of, wait_until_agreed
from tests.faults.queue_contents import QueueContents, contents_of, with_payloads
from tests.faults.redis_dump import Dump, dumps
from tests.faults.script_calls import CASES, Case
from towpath.clock import ManualClock, seconds
from towpath.embedded import EmbeddedCluster
from towpath.embedded.groups import SLOTS
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.errors import TowpathError

LIMITS = Limits(answer=seconds(30), give_up=seconds(60), channels=50)
HASTY = Limits(answer=seconds(5), give_up=seconds(5), channels=50)
"""A call that can't succeed during the move is repeated for so long, and then given up."""


Choice = Callable[[bytes], bool]
"""Which keys have moved already."""


def kind(key: bytes) -> str:
    """`job` for `{queue}:job:<id>`."""
    return key.decode().split(":")[1]


def only(*kinds: str) -> Choice:
    return lambda key: kind(key) in kinds


def all_but(*kinds: str) -> Choice:
    return lambda key: kind(key) not in kinds


def half(seed: int) -> Choice:
    chance = random.Random(seed)
    return lambda _: chance.random() < 0.5


SPLITS: dict[str, Choice] = {
    "none": only(),
    "all": all_but(),
    "only the ready set": only("queue"),
    "the queue but no job": all_but("job", "load", "lock"),
    "only the jobs": only("job", "load", "lock"),
    "all but the leases": all_but("leases"),
    "all but the waiting": all_but("waiting", "lane", "retry"),
    "all but the lanes": all_but("lanes", "dead", "done", "seen"),
    "all but meta": all_but("meta"),
    "all but calls, events and wake": all_but("call", "events", "wake"),
    "half, by chance": half(1),
    "the other half": half(2),
}
TRIED = [case for case in CASES if case.name == case.script or isinstance(case.policy, Plain)]
"""One call of each script, and those that take the short way."""


@pytest.fixture(scope="module")
def expected() -> dict[str, QueueContents]:
    """The result of each case without a move, once it is known."""
    return {}


USUAL = ("half, by chance", "all but the leases")
"""The others are tried by `make test-all`."""


@pytest.mark.parametrize(
    "split", [split if split in USUAL else pytest.param(split, marks=slow) for split in SPLITS]
)
async def test_calls_during_the_move_fail_or_succeed_whole(
    own_cluster: EmbeddedCluster, expected: dict[str, QueueContents], split: str
) -> None:
    expected.update(expected or await at_rest(own_cluster))
    async with filled_queues_on(own_cluster) as (filled_queues, hasty):
        moves = [CallDuringMove(own_cluster, case, filled, hasty) for case, filled in filled_queues]
        with giving_up(moves):
            for move in moves:
                move.begin(SPLITS[split])
            await asyncio.gather(*(move.call() for move in moves))
            half_written = {move.case.name for move in moves if move.is_half_written()}
            for move in moves:
                move.slot.finish()
        wait_until_agreed(own_cluster)
        found = {move.case.name: await move.outcome() for move in moves}
    assert half_written == set()
    assert {name for name in found if found[name] != expected[name]} == set()


async def at_rest(cluster: EmbeddedCluster) -> dict[str, QueueContents]:
    """The result of each case without a move; the clock stands still, so it is always the same."""
    found: dict[str, QueueContents] = {}
    async with filled_queues_on(cluster) as (filled_queues, _):
        for case, filled in filled_queues:
            await case.call(filled)
            found[case.name] = await everything(filled)
    flush(cluster)
    return found


@asynccontextmanager
async def filled_queues_on(
    cluster: EmbeddedCluster,
) -> AsyncGenerator[tuple[list[tuple[Case, FilledQueue]], Engine]]:
    """A filled queue for each case, and an engine that gives up soon, with the same clock."""
    clock = ManualClock()
    async with (
        Engine(cluster.url, clock=clock, limits=LIMITS) as engine,
        Engine(cluster.url, clock=clock, limits=HASTY) as hasty,
    ):
        filled_queues = [(case, FilledQueue(engine, queue_of(cluster, case))) for case in TRIED]
        for case, filled in filled_queues:
            await prepare(filled, case.policy)
        clock.advance(MEANWHILE)
        yield filled_queues, hasty


def queue_of(cluster: EmbeddedCluster, case: Case) -> str:
    """A name for a queue. All of them move the same way: from one master to the next."""
    names = (f"{case.name.replace(' ', '-')}-{number}" for number in itertools.count())
    return next(name for name in names if slot_of(cluster, f"{{{name}}}:queue") < SLOTS // 3)


class CallDuringMove:
    """A queue whose slot is being moved, and the call that is made meanwhile."""

    def __init__(
        self, cluster: EmbeddedCluster, case: Case, filled: FilledQueue, hasty: Engine
    ) -> None:
        self.case, self._filled = case, filled
        self._hasty = replace(filled, engine=hasty)
        self.slot = MovingSlot(cluster, f"{{{filled.queue}}}:queue")
        self._before: dict[int, Dump] = {}
        self._succeeded = False

    def begin(self, split: Choice) -> None:
        self.slot.begin()
        self.slot.move([key for key in self.slot.left() if split(key)])
        self._before = self._dumps()

    async def call(self) -> None:
        with suppress(TowpathError):
            await self.case.call(self._hasty)
            self._succeeded = True

    def is_half_written(self) -> bool:
        return not self._succeeded and self._dumps() != self._before

    async def outcome(self) -> QueueContents:
        """The result of the call, repeated after the move if it was refused during it."""
        if not self._succeeded:
            await self.case.call(self._filled)
        return await everything(self._filled)

    def _dumps(self) -> dict[int, Dump]:
        return dumps((self.slot.source, self.slot.target), f"{{{self._filled.queue}}}:*")


@contextmanager
def giving_up(moves: list[CallDuringMove]) -> Generator[None]:
    """Ends unfinished moves, whatever happens."""
    try:
        yield
    finally:
        for move in moves:
            move.slot.abandon()


async def everything(filled: FilledQueue) -> QueueContents:
    return await with_payloads(filled.engine, await contents_of(filled.engine, filled.queue))


def flush(cluster: EmbeddedCluster) -> None:
    for master in cluster.masters:
        master.ask("FLUSHALL")
