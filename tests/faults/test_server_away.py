"""Engines that are entered while Redis is away, and calls while one node of several is."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.entering import facts_of, refusal_on_entering
from tests.faults.counted_load import CountedLoad, under_load
from tests.faults.moving_slot import slot_of
from tests.faults.queue_contents import contents_of
from tests.waiting import eventually_async, eventually_in_loop
from towpath.clock import hours, milliseconds, minutes, seconds, steady
from towpath.embedded import EmbeddedCluster, EmbeddedSentinel, EmbeddedServer, Listen
from towpath.embedded.groups import SLOTS
from towpath.embedded.process import ask_fields
from towpath.engine.calls import Calls
from towpath.engine.channel import Limits
from towpath.engine.durability import Durability
from towpath.engine.engine import Engine
from towpath.engine.keys import REGISTRY, keys_of
from towpath.engine.options import QueueOptions
from towpath.engine.time_limit import Deadline
from towpath.errors import (
    DurabilityUnavailable,
    DurabilityUnknown,
    EvictionUnsafe,
    ServerRefused,
    ServerUnreachable,
)
from towpath.ids import queue_name
from towpath.telemetry.logs import LogLine

QUEUE = "away"
OPTIONS = QueueOptions(keep=hours(1), keep_most=1_000_000)
HASTY = Limits(answer=milliseconds(300), give_up=seconds(1))
DISK = Durability.parse("disk")
LISTING = "towpath entry of the directory of queues"
"""The task that writes it."""


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """The names of the events that were logged."""
    names: list[str] = []

    class EventNames(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if isinstance(record.msg, LogLine):
                names.append(str(record.msg["event"]))

    handler = EventNames()
    logging.getLogger("towpath").addHandler(handler)
    caplog.set_level(logging.INFO, "towpath")
    yield names
    logging.getLogger("towpath").removeHandler(handler)


async def fails_at_once(engine: Engine) -> None:
    """Returns when Redis is known to be away."""

    async def at_once() -> bool:
        began = steady()
        with pytest.raises(ServerUnreachable):
            await engine.submit(QUEUE, b"x")
        return steady() - began < 0.1

    await eventually_async(at_once)


def deadline_in_an_hour(calls: Calls) -> Deadline:
    return Deadline(calls._watch, hours(1).total_seconds())  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- no option is as patient as this


class TestASingleRedisThatIsAway:
    async def test_does_not_keep_an_engine_from_being_entered(
        self, stopped_server: EmbeddedServer, logged: list[str]
    ) -> None:
        """It is logged once; the first calls wait for Redis, and succeed when it is back."""
        async with Engine(stopped_server.url) as engine:
            assert logged == ["server.unreachable"]
            with pytest.raises(ServerUnreachable):
                _ = engine.facts
            with pytest.raises(ServerUnreachable):
                await engine.check()
            submit = asyncio.create_task(engine.submit(QUEUE, b"x", durability=DISK))
            await asyncio.to_thread(stopped_server.start)
            assert not (await submit).existed
            assert logged == ["server.unreachable", "server.back"]
            assert (await facts_of(engine)).durability == DISK

    async def test_fails_calls_at_once_after_one_was_given_up(
        self, stopped_server: EmbeddedServer, logged: list[str]
    ) -> None:
        async with Engine(stopped_server.url, limits=HASTY) as engine:
            with pytest.raises(ServerUnreachable, match=r"\b1\.0 s"):
                await engine.submit(QUEUE, b"x")
            await fails_at_once(engine)
            await asyncio.to_thread(stopped_server.start)
            await eventually_in_loop(lambda: logged == ["server.unreachable", "server.back"])
            await engine.submit(QUEUE, b"x")
        assert logged == ["server.unreachable", "server.back"]

    @pytest.mark.parametrize("fault", ["frozen", "killed"])
    async def test_lets_no_submit_wait_longer_than_its_time_behind_another(
        self, fault: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Submits gather behind the one under way, and each fails when its own time is over."""
        with EmbeddedServer() as server:
            async with Engine(server.url, limits=HASTY) as engine:
                await engine.submit(QUEUE, b"x")
                (server.pause if fault == "frozen" else server.kill)()
                submits = [asyncio.create_task(engine.submit(QUEUE, b"x"))]
                for _ in range(5):
                    await asyncio.sleep(0)
                    submits.append(asyncio.create_task(engine.submit(QUEUE, b"x")))
                await asyncio.sleep(0)
                # From now on a call without a time limit of its own never gives up.
                monkeypatch.setattr(Calls, "new_deadline", deadline_in_an_hour)
                ended = await asyncio.gather(*submits, return_exceptions=True)
                assert {type(answer) for answer in ended} == {ServerUnreachable}

    async def test_is_found_again_beside_callers_that_retry_without_a_pause(
        self, stopped_server: EmbeddedServer
    ) -> None:
        """Calls that fail at once still let other tasks run, among them the probe."""
        async with Engine(stopped_server.url, limits=HASTY) as engine:
            await fails_at_once(engine)
            others_had_a_turn = asyncio.Event()
            asyncio.get_running_loop().call_soon(others_had_a_turn.set)
            for _ in range(10):
                with pytest.raises(ServerUnreachable):
                    await engine.inspect.counts(QUEUE)
            assert others_had_a_turn.is_set()

    async def test_is_probed_again_for_its_configuration(
        self, stopped_server: EmbeddedServer, logged: list[str]
    ) -> None:
        """After its return it may evict jobs: nothing is written there until that is changed."""
        async with Engine(stopped_server.url) as engine:
            submit = asyncio.create_task(engine.submit(QUEUE, b"x"))
            with EmbeddedServer(
                listen=Listen.PORT,
                port=stopped_server.port,
                options={"maxmemory-policy": "allkeys-lru"},
            ) as other:
                await asyncio.gather(submit, return_exceptions=True)

                async def refuses() -> bool:
                    try:
                        await engine.submit(QUEUE, b"x")
                    except EvictionUnsafe:
                        return True
                    return False

                await eventually_async(refuses)
                other.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
                await eventually_in_loop(lambda: logged[-1] == "server.back")
                await engine.submit(QUEUE, b"x")


class TestPermanentErrors:
    """They are raised when an engine is entered, for one Redis, a Sentinel's primary or any
    master.
    """

    async def test_an_evicting_sentinel_primary_is_refused_at_once(self) -> None:
        with EmbeddedSentinel(replicas=1) as group:
            group.primary.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
            await refusal_on_entering(EvictionUnsafe, lambda: Engine(group.url))

    async def test_an_evicting_master_is_refused_while_another_is_away(self) -> None:
        options = {"cluster-require-full-coverage": "no"}
        with EmbeddedCluster(masters=3, options=options) as cluster:
            cluster.masters[0].pause()
            cluster.masters[2].ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
            await refusal_on_entering(EvictionUnsafe, lambda: Engine(cluster.url), servers=2)
            cluster.masters[0].unpause()

    async def test_wrong_credentials_are_refused_at_once(self, server: EmbeddedServer) -> None:
        url = server.url.replace("unix://", "unix://nobody:secret@")
        await refusal_on_entering(ServerRefused, lambda: Engine(url))

    async def test_an_unknown_durability_class_is_refused_at_once(
        self, server: EmbeddedServer
    ) -> None:
        server.ask("ACL", "SETUSER", "reader", "reset", "on", ">secret", "~*", "+@all", "-config")
        url = server.url.replace("unix://", "unix://reader:secret@")
        await refusal_on_entering(DurabilityUnknown, lambda: Engine(url))
        server.ask("ACL", "DELUSER", "reader")


@asynccontextmanager
async def one_shard_away(
    cluster: EmbeddedCluster, away: int = 0
) -> AsyncGenerator[tuple[str, list[str]]]:
    """A queue whose master is frozen, and a queue on each of the other masters."""
    queues: dict[int, str] = {}
    for n in range(100):
        queues.setdefault(_shard_of(cluster, f"{{q{n}}}:queue"), f"q{n}")
    frozen = cluster.masters[away]
    frozen.pause()
    try:
        yield queues.pop(away), list(queues.values())
    finally:
        frozen.unpause()


def _shard_of(cluster: EmbeddedCluster, key: str) -> int:
    return slot_of(cluster, key) * len(cluster.masters) // SLOTS


@pytest.fixture(scope="module")
def shards() -> Iterator[EmbeddedCluster]:
    """Three masters without replicas."""
    with EmbeddedCluster(masters=3, options={"cluster-require-full-coverage": "no"}) as cluster:
        yield cluster


class TestAShardThatIsAway:
    async def test_delays_no_call_to_the_others(self, shards: EmbeddedCluster) -> None:
        """Many calls wait for it, but each shard has channels of its own."""
        async with Engine(shards.url) as engine, one_shard_away(shards) as (bad, healthy):
            stuck = [asyncio.create_task(engine.inspect.counts(bad)) for _ in range(10)]
            for queue in healthy:
                await engine.queues.configure(queue, OPTIONS)
                load = CountedLoad(engine, queue)
                async with under_load(load):
                    await load.more(100)
                assert load.losses(await contents_of(engine, queue)) == {}
            assert not any(task.done() for task in stuck)
            for task in stuck:
                task.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)

    async def test_does_not_keep_an_engine_from_being_entered(
        self, shards: EmbeddedCluster
    ) -> None:
        async with one_shard_away(shards) as (_, healthy), Engine(shards.url) as engine:
            assert (await facts_of(engine, servers=2)).servers == 2
            for queue in healthy:
                await engine.submit(queue, b"x")
                [lease] = await engine.claim(queue, worker="w", lease=minutes(1))
                await engine.complete(lease)

    async def test_fails_its_calls_at_once_after_one_was_given_up(
        self, shards: EmbeddedCluster
    ) -> None:
        async with Engine(shards.url, limits=HASTY) as engine:
            async with one_shard_away(shards) as (bad, healthy):
                with pytest.raises(ServerUnreachable):
                    await engine.submit(bad, b"x")
                for queue in healthy:
                    await engine.submit(queue, b"x")
            await eventually_async(lambda: _answers(engine, bad))

    async def test_gets_options_for_the_directory_of_queues_once_it_is_back(
        self, shards: EmbeddedCluster
    ) -> None:
        """Until then one task tries, however often a queue's options change."""
        options = [QueueOptions(keep_most=n) for n in (1, 2, 3)]
        async with Engine(shards.url, limits=HASTY) as engine:
            async with one_shard_away(shards, _shard_of(shards, REGISTRY)) as (_, [queue, _]):
                for more in options:
                    await engine.queues.reconfigure(queue, more)
                assert _tasks().count(LISTING) == 1

            async def shows_the_last() -> bool:
                with suppress(ServerUnreachable):
                    return (await engine.queues.list()).get(queue_name(queue)) == options[-1]
                return False

            await eventually_async(shows_the_last)

    async def test_shows_no_queue_that_was_deleted_while_its_entry_was_written(
        self, shards: EmbeddedCluster, logged: list[str]
    ) -> None:
        """The entry is written once the shard is back, and removed after that."""
        for master in shards.masters:
            master.ask("FLUSHALL")  # other tests have left jobs, which keep a queue
        directory = _shard_of(shards, REGISTRY)
        async with Engine(shards.url, limits=HASTY) as engine:
            async with one_shard_away(shards, directory) as (_, [queue, _]):

                async def is_deleted() -> bool:
                    with suppress(ServerUnreachable):
                        return await engine.queues.delete(queue)
                    return False

                await engine.queues.declare(queue, max_deaths=3)
                assert LISTING in _tasks()
                deletion = asyncio.create_task(eventually_async(is_deleted))
                meta, master = keys_of(queue_name(queue)).meta, _master_of(shards, queue)
                await eventually_async(lambda: asyncio.to_thread(_is_missing, master, meta))
            await deletion
            assert LISTING not in _tasks()
            assert queue not in await engine.queues.names()
        assert "task.failed" not in logged


def _tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks()]


def _master_of(shards: EmbeddedCluster, queue: str) -> EmbeddedServer:
    return shards.masters[_shard_of(shards, f"{{{queue}}}:queue")]


def _is_missing(master: EmbeddedServer, key: str) -> bool:
    return master.ask("EXISTS", key) == 0


async def _answers(engine: Engine, queue: str) -> bool:
    try:
        await engine.submit(queue, b"x")
    except ServerUnreachable:
        return False
    return True


class TestTheDurabilityClassOfARedis:
    async def test_is_probed_again_after_a_restart(
        self, stopped_server: EmbeddedServer, tmp_path: Path
    ) -> None:
        stopped_server.start()
        async with Engine(stopped_server.url) as engine:
            await engine.submit(QUEUE, b"x", durability=DISK)
            stopped_server.stop()
            with EmbeddedServer(listen=Listen.PORT, port=stopped_server.port):
                with pytest.raises(DurabilityUnavailable):
                    await engine.submit(QUEUE, b"x", durability=DISK)
                await eventually_async(lambda: _is_memory(engine))


async def _is_memory(engine: Engine) -> bool:
    return str(engine.facts.durability) == "memory"


class TestAnEngineThatIsLeft:
    async def test_leaves_no_connection_behind(self) -> None:
        """Calls under way and later ones are refused; nothing would close their connections."""
        with EmbeddedServer() as own:
            before = int(ask_fields(own.address, "INFO", "clients")["connected_clients"])
            for _ in range(3):
                async with Engine(own.url, limits=HASTY) as engine:
                    asked = [asyncio.create_task(engine.inspect.counts(QUEUE)) for _ in range(8)]
                    await engine.try_write()  # the other calls have begun
                later = [asyncio.create_task(engine.inspect.counts(QUEUE)) for _ in range(8)]
                await asyncio.gather(*asked, *later, return_exceptions=True)

            def all_gone() -> bool:
                now = int(ask_fields(own.address, "INFO", "clients")["connected_clients"])
                return now == before

            await eventually_in_loop(all_gone)
