"""Trouble in one queue, or on the Redis node of one queue, costs the other queues nothing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from tests.faults.redis_facts import blocked_clients
from tests.waiting import eventually_async, eventually_in_loop
from tests.worker.in_process_worker import SOON, LogLines, spoil, working
from towpath.app.app import Towpath
from towpath.clock import Duration, minutes, seconds
from towpath.embedded import EmbeddedCluster, EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.model import new_job
from towpath.engine.states import State
from towpath.errors import ServerError
from towpath.testing.proxy import Faults, Hole, Proxy
from towpath.worker.context import Context
from towpath.worker.handler import HandlerOptions
from towpath.worker.worker import Worker

QUICK = Limits(answer=seconds(0.5), give_up=seconds(1))


@contextmanager
def hidden(server: EmbeddedServer, key: str) -> Generator[None]:
    """Replaces a key by one of the wrong type; its old value is back at the end."""
    there = server.ask("EXISTS", key)
    if there:
        server.ask("RENAME", key, f"{key}:hidden")
    spoil(server, key)
    yield
    server.ask("DEL", key)
    if there:
        server.ask("RENAME", f"{key}:hidden", key)


@pytest.fixture(scope="module")
def running_shards() -> Iterator[EmbeddedCluster]:
    """A cluster of three masters that promotes no replica when one is silent."""
    with EmbeddedCluster(masters=3, node_timeout=120.0) as cluster:
        yield cluster


@pytest.fixture
async def shards(running_shards: EmbeddedCluster) -> AsyncIterator["FreezableShards"]:
    for master in running_shards.masters:
        master.ask("FLUSHALL")
    shards = FreezableShards(running_shards)
    yield shards
    shards.thaw()


class FreezableShards:
    """A cluster whose master of the queues `bad` and `others` can be frozen."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.url = cluster.url
        places = {name: _master(cluster, name) for name in (f"q{i}" for i in range(50))}
        self._home = places["q0"]
        self.bad, *self.others = [name for name, home in places.items() if home is self._home]
        self.good = next(name for name, home in places.items() if home is not self._home)
        self._frozen = False

    def freeze(self) -> None:
        self._home.pause()
        self._frozen = True

    def thaw(self) -> None:
        if self._frozen:
            self._home.unpause()
        self._frozen = False


def _master(cluster: EmbeddedCluster, queue: str) -> EmbeddedServer:
    number = cluster.masters[0].ask("CLUSTER", "KEYSLOT", f"{{{queue}}}:meta")
    assert isinstance(number, int)
    return cluster.masters[number * len(cluster.masters) // 16384]


class TestSlots:
    async def test_slots_of_broken_queues_are_used_by_the_others(
        self, app: Towpath, server: EmbeddedServer, lines: LogLines
    ) -> None:
        """Claims of two queues cannot be answered; they had all the slots between them."""
        ran: list[int] = []

        @app.handler("good")
        async def good(n: int) -> None:
            ran.append(n)

        @app.handler("bad")
        async def bad(_: int) -> None: ...

        @app.handler("worse")
        async def worse(_: int) -> None: ...

        async with working(app, concurrency=2):
            await lines.next("worker.started")
            spoil(server, "{bad}:queue", "{worse}:queue")
            await eventually_in_loop(lambda: len(lines.of("queue.failing")) == 2)
            await asyncio.gather(*(good.submit(n) for n in range(20)))
            await eventually_in_loop(lambda: len(ran) == 20)

    async def test_slots_of_a_frozen_shard_are_used_by_the_others(
        self, shards: FreezableShards
    ) -> None:
        """The only slot was reserved for a queue whose node does not answer."""
        ran: list[int] = []
        app, go = Towpath(shards.url), asyncio.Event()

        @app.handler(shards.good)
        async def good(n: int) -> None:
            ran.append(n)

        @app.handler(shards.bad)
        async def bad(n: int) -> None:
            ran.append(n)
            await go.wait()

        async with app, working(app, concurrency=1):
            await bad.submit(-1)
            await eventually_in_loop(lambda: ran == [-1])
            shards.freeze()
            go.set()
            await asyncio.gather(*(good.submit(n) for n in range(20)))
            await eventually_in_loop(lambda: len(ran) == 21)
            shards.thaw()
            await bad.submit(-2)
            await eventually_in_loop(lambda: -2 in ran)

    async def test_jobs_of_a_late_answer_do_not_exceed_the_slots(
        self, server: EmbeddedServer, lines: LogLines
    ) -> None:
        """A claim was executed but its answer was lost; its slots were given to others. The jobs of
        the late answer are released, and none has lost an attempt.
        """
        async with Proxy(server.address, Faults()) as proxy, Towpath(server.url) as direct:
            app, go = Towpath(proxy.url, limits=QUICK), asyncio.Event()
            counter, attempts = ConcurrencyCounter(), list[int]()

            @app.handler("good")
            async def good(_: int) -> None:
                async with counter:
                    await go.wait()

            @app.handler("bad")
            async def bad(_: int, ctx: Context) -> None:
                async with counter:
                    attempts.append(ctx.attempt)
                    await first.wait()

            first = asyncio.Event()
            async with app, working(app, concurrency=4, lease=seconds(60)):
                # The app's own calls would be given up too soon; this way none of them is under
                # way.
                await direct.engine.submit("bad", b"0")
                await eventually_in_loop(
                    lambda: counter.inside == 1 and blocked_clients(server) == 2
                )
                proxy.faults.hole = Hole.REPLIES
                await direct.engine.submit_many("bad", [new_job(b"1") for _ in range(4)])
                first.set()
                await eventually_async(_leased(direct, "bad", 2))
                with hidden(server, "{bad}:leases"):
                    await lines.next("queue.failing")
                    proxy.faults.hole = Hole.NOTHING
                    await direct.engine.submit_many("good", [new_job(b"0") for _ in range(4)])
                    await eventually_in_loop(lambda: counter.inside == 4)
                await eventually_async(_leased(direct, "bad", 0))
                assert attempts == [1]
                go.set()
                await eventually_in_loop(lambda: len(attempts) == 5)
            released = (await direct.engine.inspect.counts("bad")).totals["released"]
        assert counter.most == 4
        assert attempts == [1] * 5
        assert released == 2


class TestWakeUps:
    async def test_wake_ups_are_passed_on_beside_a_frozen_shard(
        self, shards: FreezableShards
    ) -> None:
        """This holds however many wake-ups wait for the frozen shard."""
        limits = Limits(answer=seconds(30), give_up=seconds(60))
        async with Towpath(shards.url, limits=limits) as app:
            for queue in (shards.bad, shards.good):
                await app.engine.inspect.counts(queue)
            shards.freeze()
            for _ in range(20):
                app.engine.hand_on(shards.bad)
            waiting = asyncio.create_task(_called(shards.url, shards.good))
            app.engine.hand_on(shards.good)
            assert await waiting
            shards.thaw()


class TestLeases:
    @pytest.mark.usefixtures("quick_heartbeat")
    async def test_leases_are_renewed_beside_broken_queues(
        self, app: Towpath, server: EmbeddedServer, lines: LogLines
    ) -> None:
        """The order of renewals does not matter: five that fail do not affect the sixth."""
        bad = [f"bad{n}" for n in range(5)]
        await _held_on_to(app, "good", bad)
        async with working(app, lease=minutes(9)):
            await eventually_in_loop(lambda: len(lines.of("job.started")) == 6)
            with ExitStack() as stack:
                for queue in bad:
                    stack.enter_context(hidden(server, f"{{{queue}}}:leases"))
                await _renewed_for(app, "good", seconds(3))
        assert len(lines.of("heartbeat.failed")) >= len(bad)
        assert not lines.of("job.lost")

    async def test_leases_are_renewed_beside_a_frozen_shard(
        self, shards: FreezableShards, lines: LogLines
    ) -> None:
        async with Towpath(shards.url) as app, Towpath(shards.url) as other:
            await _held_on_to(app, shards.good, [shards.bad, *shards.others[:2]])
            async with working(app, lease=seconds(3)):
                await eventually_in_loop(lambda: len(lines.of("job.started")) == 4)
                await _renewed_for(other, shards.good, seconds(0.5))
                shards.freeze()
                await _renewed_for(other, shards.good, seconds(4))
                assert not lines.of("job.lost")
                shards.thaw()

    async def test_attempts_past_their_time_limit_are_settled_beside_a_frozen_shard(
        self, shards: FreezableShards, lines: LogLines
    ) -> None:
        """The heartbeat fails each handler that does not end, in a call of its own."""
        leave = asyncio.Event()

        async def stay() -> None:
            while not leave.is_set():
                with suppress(asyncio.CancelledError):
                    await leave.wait()

        async with Towpath(shards.url) as app, Towpath(shards.url) as other:
            options = HandlerOptions(time_limit=seconds(2), max_attempts=1)
            for queue in (*shards.others[:2], shards.bad):
                await app.add(queue, stay, options).submit()
            ticket = await app.add(shards.good, stay, options).submit()
            async with working(app, lease=seconds(5)):
                await eventually_in_loop(lambda: len(lines.of("job.started")) == 4)
                await _renewed_for(other, shards.good, seconds(0.1))
                shards.freeze()
                assert (await lines.next("job.dead"))["queue"] == shards.good
                assert (await other.engine.inspect.job(ticket.ref)).state is State.DEAD
                leave.set()
                shards.thaw()


class TestTheStartOfAWorker:
    async def test_waits_for_no_broken_queue(
        self, app: Towpath, server: EmbeddedServer, lines: LogLines
    ) -> None:
        """The queue is served as soon as it can be, with the options that its handler declares."""
        ran: list[str] = []

        async def run(n: str) -> str:
            ran.append(n)
            return n

        good, bad = (app.add(queue, run, HandlerOptions()) for queue in ("good", "bad"))
        spoil(server, "{bad}:meta")
        async with working(app):
            await (await good.submit("good")).result(within=SOON)
            server.ask("DEL", "{bad}:meta")
            await (await bad.submit("bad")).result(within=SOON)
        assert ran == ["good", "bad"]
        assert {"configure"} == {line["duty"] for line in lines.of("duty.failed")}

    async def test_waits_for_no_frozen_shard(self, shards: FreezableShards) -> None:
        ran: list[int] = []

        async def run(n: int) -> None:
            ran.append(n)

        async with Towpath(shards.url) as app:
            good, bad = (
                app.add(queue, run, HandlerOptions()) for queue in (shards.good, shards.bad)
            )
            await bad.submit(2)
            shards.freeze()
            async with working(app):
                await good.submit(1)
                await eventually_in_loop(lambda: ran == [1])
                shards.thaw()
                await eventually_in_loop(lambda: ran == [1, 2])

    async def test_fails_if_all_queues_are_refused(
        self, app: Towpath, server: EmbeddedServer
    ) -> None:
        app.add("bad", _hold_on, HandlerOptions())
        spoil(server, "{bad}:meta")
        with pytest.raises(ServerError):
            await Worker(app).run()


async def _held_on_to(app: Towpath, *queues: str | list[str]) -> None:
    """A job in each queue whose handler does not end by itself."""
    names = [name for group in queues for name in ([group] if isinstance(group, str) else group)]
    for name in names:
        await app.add(name, _hold_on, HandlerOptions()).submit()


async def _called(url: str, queue: str) -> bool:
    """Whether another process is woken for work soon."""
    async with Towpath(url) as other:
        for _ in range(4):
            if await other.engine.wait_for_work(queue, within=seconds(5)):
                return True
    return False


async def _hold_on() -> None:
    await asyncio.Event().wait()


async def _renewed_for(app: Towpath, queue: str, span: Duration) -> None:
    """Returns when the only lease of *queue* lasts by so much longer than now; it is never lost."""
    [job] = (await app.engine.inspect.list(queue, State.LEASED)).jobs
    assert job.expires_at is not None
    until = job.expires_at + span

    async def so() -> bool:
        now = await app.engine.inspect.job(job.ref)
        assert now.token == job.token
        return now.expires_at is not None and now.expires_at >= until

    await eventually_async(so)


class ConcurrencyCounter:
    """Counts how many are inside now, and the most that were inside at once."""

    def __init__(self) -> None:
        self.inside = self.most = 0

    async def __aenter__(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)

    async def __aexit__(self, *_: object) -> None:
        self.inside -= 1


def _leased(app: Towpath, queue: str, count: int) -> Callable[[], Awaitable[bool]]:
    async def so() -> bool:
        return (await app.engine.inspect.counts(queue)).leased == count

    return so
