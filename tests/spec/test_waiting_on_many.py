"""Waiting on many queues takes few connections, loses no wake-up, and gives everything back."""

import asyncio

import pytest

from tests.amounts import deployments
from tests.queue_numbers import number
from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import LEASE, REVIEWS, ids_of, submit_ids
from tests.waiting import HANGS, eventually_async
from towpath.clock import ServerClock, minutes
from towpath.embedded import EmbeddedServer
from towpath.engine import wakeups
from towpath.engine.engine import Engine
from towpath.engine.keys import keys_of
from towpath.engine.model import Lease
from towpath.ids import QueueName

pytestmark = deployments

Waiting = asyncio.Task[list[Lease]]


async def ids_within_moments(*claims: Waiting) -> list[str]:
    async with asyncio.timeout(HANGS):
        return [id for leases in await asyncio.gather(*claims) for id in ids_of(leases)]


MANY = [f"many-{n}" for n in range(40)]


def waiting_on(engine: Engine, queues: list[str]) -> list[Waiting]:
    return [
        asyncio.create_task(engine.claim(queue, worker="w", lease=LEASE, wait=minutes(1)))
        for queue in queues
    ]


async def ended(claims: list[Waiting]) -> None:
    for claim in claims:
        claim.cancel()
    await asyncio.wait(claims)


class TestWaitingOnManyQueues:
    @pytest.fixture
    def clock(self) -> ServerClock:
        """In a cluster, queues beyond the limit are polled: time must pass."""
        return ServerClock()

    async def test_takes_few_connections_and_all_claims_are_woken(
        self, engine: Engine, other_engine: Engine, deployment: Deployment
    ) -> None:
        before = deployment.connections()
        claims = waiting_on(engine, MANY)

        async def all_wait() -> bool:
            asked = [number(deployment.ask, f"{{{name}}}:meta", "asked_at") for name in MANY]
            return all(asked) and deployment.blocked() >= 16

        await eventually_async(all_wait)
        assert deployment.connections() - before < 30 * len(deployment.masters)
        for queue in reversed(MANY):
            await other_engine.submit(queue, b"", id=queue)
        assert await ids_within_moments(*claims) == MANY

    async def test_goes_on_when_other_claims_leave(
        self, engine: Engine, other_engine: Engine, deployment: Deployment
    ) -> None:
        """Claims that came late get a blocking read of their own later, or share one."""
        early = waiting_on(engine, MANY[:30])
        late = waiting_on(engine, MANY[30:])
        await asyncio.sleep(0)
        await ended(early)
        again = waiting_on(engine, MANY[:5])
        for queue in (*MANY[:5], *MANY[30:]):
            await other_engine.submit(queue, b"", id=queue)
        assert await ids_within_moments(*again, *late) == [*MANY[:5], *MANY[30:]]

    async def test_leaves_no_key_behind(self, engine: Engine, deployment: Deployment) -> None:
        claims = waiting_on(engine, MANY)
        await eventually_async(lambda: _blocked_at_least(deployment, 16))
        await ended(claims)

        async def none_left() -> bool:
            return not [
                name for name in deployment.key_names() if name.startswith("towpath:recall")
            ]

        await eventually_async(none_left)


async def _blocked_at_least(deployment: Deployment, count: int) -> bool:
    return deployment.blocked() >= count


async def test_a_broken_queue_beside_others_costs_them_no_wake_up(
    engine: Engine, other_engine: Engine, deployment: Deployment
) -> None:
    """Its wake-up list has another type: its own read fails, those of other queues go on."""
    deployment.ask("SET", keys_of(QueueName("broken")).wake, "x")
    broken = asyncio.create_task(_wait_on_and_on(engine, "broken"))
    claims = waiting_on(engine, [REVIEWS])
    await eventually_async(lambda: _blocked_at_least(deployment, 1))
    await submit_ids(other_engine, "a")
    assert await ids_within_moments(*claims) == ["a"]
    broken.cancel()
    await asyncio.wait([broken])


async def _wait_on_and_on(engine: Engine, queue: str) -> None:
    while True:
        await engine.wait_for_work(queue, within=minutes(1))


async def test_unused_connections_are_given_back(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens once the blocking reads that were under way are over."""
    monkeypatch.setattr(wakeups, "_IDLE", 0.1)
    deployment = Deployment.of(server)
    async with Engine(server.url) as engine:
        await engine.inspect.counts(REVIEWS)
        before = deployment.connections()
        claims = waiting_on(engine, MANY)
        await eventually_async(lambda: _blocked_at_least(deployment, 17))
        await ended(claims)

        async def few() -> bool:
            return deployment.connections() - before < 10

        await eventually_async(few)
        await engine.submit(MANY[0], b"", id="a")
        assert ids_of(await engine.claim(MANY[0], worker="w", lease=LEASE)) == ["a"]
