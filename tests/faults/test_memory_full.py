"""A Redis whose memory is really full: submits are refused whole, and everything else can
drain it.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest

from tests.faults.filled_queue import filled_queue_on
from tests.faults.redis_dump import changed, dump
from tests.faults.script_calls import CASES, Case
from tests.servers import newest, oldest
from towpath.clock import minutes, seconds
from towpath.embedded import EmbeddedServer
from towpath.embedded.process import ask_fields
from towpath.engine.engine import Engine
from towpath.engine.model import Bury, Complete, Fail, Release, Renew, new_job
from towpath.engine.options import QueueOptions
from towpath.engine.script import header_of, lua_text
from towpath.errors import MemoryFull, TowpathError

QUEUE = "full"
ROOM = 8 * 1024 * 1024
REFUSED = [case for case in CASES if header_of(lua_text(case.script)).fields["full"] == ["refused"]]
WORKS = [case for case in CASES if case not in REFUSED]


@pytest.fixture(scope="module", params=[newest, oldest], ids=["newest", "oldest"])
def running_small_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(binary=request.param()) as server:
        yield server


@pytest.fixture
def small_server(running_small_server: EmbeddedServer) -> EmbeddedServer:
    """The newest and the oldest Redis, empty, each with room for a few hundred jobs."""
    server = running_small_server
    server.ask("FLUSHALL")
    used = int(ask_fields(server.address, "INFO", "memory")["used_memory"])
    server.ask("CONFIG", "SET", "maxmemory", used + ROOM)
    return server


@pytest.fixture
async def engine(small_server: EmbeddedServer) -> AsyncIterator[Engine]:
    async with Engine(small_server.url) as engine:
        await engine.queues.configure(QUEUE, QueueOptions(max_attempts=50))
        yield engine


async def fill(engine: Engine) -> int:
    """Submits until Redis has no room for a single job; returns how many it accepted."""
    # Another engine makes large calls: the memory of its connections is free again afterwards.
    async with Engine(str(engine.url)) as other:
        taken = await _fill(other, 20)
    return taken + await _fill(engine, 1)


async def _fill(engine: Engine, size: int) -> int:
    taken = 0
    with suppress(MemoryFull):
        while True:
            jobs = [new_job(b"x" * 10_000) for _ in range(size)]
            taken += len(await engine.submit_many(QUEUE, jobs))
    return taken


def shut(server: EmbeddedServer) -> None:
    """Leaves no room at all, whatever is removed."""
    server.ask("CONFIG", "SET", "maxmemory", 1)


def test_the_scripts_say_which_verbs_work_with_full_memory() -> None:
    """`submit` and whatever adds to a queue is refused; whatever helps to drain it works."""
    adding = {"submit", "set", "fire", "schedule", "progress", "configure", "incarnation"}
    assert {case.script for case in REFUSED} == adding


class TestARedisThatJobsHaveFilled:
    async def test_refuses_submits_and_writes_nothing(
        self, small_server: EmbeddedServer, engine: Engine
    ) -> None:
        taken = await fill(engine)
        assert taken > 100
        # A closed connection gives its memory back, so the room is measured again.
        used = ask_fields(small_server.address, "INFO", "memory")["used_memory"]
        small_server.ask("CONFIG", "SET", "maxmemory", int(used) - 100_000)
        before = dump(small_server)
        for _ in range(3):
            with pytest.raises(MemoryFull):
                await engine.submit(QUEUE, b"x" * 10_000, id="named", lane="lane")
        assert changed(before, dump(small_server)) == set()
        assert (await engine.inspect.counts(QUEUE)).ready == taken

    async def test_is_drained_by_workers_and_accepts_submits_again(
        self, small_server: EmbeddedServer, engine: Engine
    ) -> None:
        """Every way to settle is used on the way; a worker that starts only now can work too."""
        taken = await fill(engine)
        async with Engine(small_server.url) as late:
            leases = await late.claim(QUEUE, worker="w", lease=minutes(5), count=100)
            settle = [
                Complete(leases[0], b"result"), Fail(leases[1], "again", seconds(0)),
                Release(leases[2]), Bury(leases[3], "no good"), Renew(leases[4], minutes(5)),
                *map(Complete, leases[5:]),
            ]  # fmt: skip
            done = 96
            answer = await late.exchange(QUEUE, settle, worker="w", lease=minutes(5), count=50)
            while answer.leases:
                assert not any(isinstance(outcome, TowpathError) for outcome in answer.outcomes)
                done += len(answer.leases)
                answer = await late.exchange(
                    QUEUE,
                    [Complete(lease) for lease in answer.leases],
                    worker="w",
                    lease=minutes(5),
                    count=50,
                )
            assert done >= taken - 2
            await late.submit(QUEUE, b"x" * 10_000)


class TestARedisWithoutAnyRoom:
    @pytest.mark.parametrize("case", WORKS, ids=str)
    async def test_does_everything_but_submit(
        self, small_server: EmbeddedServer, case: Case
    ) -> None:
        async with filled_queue_on(small_server.url, case.policy) as filled:
            shut(small_server)
            before = dump(small_server)
            await case.call(filled)
            assert changed(before, dump(small_server)) != set()

    @pytest.mark.parametrize("case", REFUSED, ids=str)
    async def test_refuses_verbs_that_would_add_to_it(
        self, small_server: EmbeddedServer, case: Case
    ) -> None:
        async with filled_queue_on(small_server.url, case.policy) as filled:
            shut(small_server)
            before = dump(small_server)
            with pytest.raises(MemoryFull):
                await case.call(filled)
            assert changed(before, dump(small_server)) == set()

    async def test_answers_a_claim_on_an_empty_queue(
        self, small_server: EmbeddedServer, engine: Engine
    ) -> None:
        shut(small_server)
        assert await engine.claim(QUEUE, worker="w", lease=minutes(5)) == []
        answer = await engine.exchange(QUEUE, [], worker="w", lease=minutes(5), count=5)
        assert answer.leases == []

    async def test_accepts_declarations_that_change_nothing(
        self, small_server: EmbeddedServer, engine: Engine
    ) -> None:
        """A worker declares its options when it starts, and it must be able to drain the queue."""
        await engine.queues.declare(QUEUE, keep=minutes(5))
        shut(small_server)
        before = dump(small_server)
        async with Engine(small_server.url) as late:
            assert (await late.queues.declare(QUEUE, keep=minutes(5))).now.keep == minutes(5)
            for change in (
                late.queues.declare(QUEUE, keep=minutes(6)),
                late.queues.reset(QUEUE, "max_attempts"),
                late.queues.declare("another", keep=minutes(5)),
            ):
                with pytest.raises(MemoryFull):
                    await change
            assert (await late.queues.options(QUEUE)).keep == minutes(5)
        assert changed(before, dump(small_server)) == set()

    async def test_accepts_a_new_worker(self, small_server: EmbeddedServer, engine: Engine) -> None:
        """The worker's engine knows neither the queue's options nor, on that Redis, any script."""
        await engine.submit(QUEUE, b"x")
        shut(small_server)
        small_server.ask("SCRIPT", "FLUSH")
        async with Engine(small_server.url) as late:
            [lease] = await late.claim(QUEUE, worker="w", lease=minutes(5))
            await late.complete(lease)
            assert (await late.queues.options(QUEUE)).max_attempts == 50
