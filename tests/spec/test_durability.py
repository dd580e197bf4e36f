"""Durability classes: read from the configuration of Redis, and asked for by a submit."""

import asyncio
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.entering import facts_of, refusal_on_entering
from tests.spec.jobs_in_states import REVIEWS
from tests.waiting import eventually, eventually_async
from towpath.clock import hours, seconds
from towpath.embedded import EmbeddedCluster, EmbeddedServer, Listen, RedisConnection
from towpath.engine import durability as durability_module
from towpath.engine.channel import Limits
from towpath.engine.durability import Disk, Durability
from towpath.engine.engine import Engine
from towpath.engine.model import job_ref, new_job
from towpath.engine.states import State
from towpath.errors import (
    DurabilityNotReached,
    DurabilityUnavailable,
    DurabilityUnknown,
    InvalidOption,
    MemoryFull,
    RetryAdvice,
)

MEMORY, SECOND, DISK = (Durability.parse(name) for name in ("memory", "second", "disk"))
ONE_REPLICA = Durability.parse("replica:1")
QUICK = Limits(answer=seconds(1), give_up=seconds(5))


async def class_of(server: EmbeddedServer) -> Durability:
    async with Engine(server.url) as engine:
        return (await facts_of(engine)).durability


class TestADurabilityClass:
    @pytest.mark.parametrize("name", ["memory", "second", "disk", "replica:1", "replica:12"])
    def test_survives_writing_and_reading(self, name: str) -> None:
        assert str(Durability.parse(name)) == name

    @pytest.mark.parametrize(
        "name", ["", "safe", "replica", "replica:", "replica:0", "replica:-1", "replica:101",
                 "disk:1", "replica:x"],
    )  # fmt: skip
    def test_that_does_not_exist_is_refused(self, name: str) -> None:
        with pytest.raises(InvalidOption, match="durability"):
            Durability.parse(name)

    def test_of_disks_is_ordered_by_strength(self) -> None:
        assert Disk.MEMORY < Disk.SECOND < Disk.DISK


class TestProbingRedis:
    async def test_finds_the_class_memory(self, server: EmbeddedServer) -> None:
        assert await class_of(server) == MEMORY

    async def test_finds_the_class_second(self, tmp_path: Path) -> None:
        options = {"appendfsync": "everysec"}
        with EmbeddedServer(data=tmp_path, options=options) as server:
            assert await class_of(server) == SECOND

    async def test_finds_the_class_disk(self, tmp_path: Path) -> None:
        with EmbeddedServer(data=tmp_path) as server:
            assert await class_of(server) == DISK

    async def test_finds_memory_where_the_log_is_never_flushed(self, tmp_path: Path) -> None:
        with EmbeddedServer(data=tmp_path, options={"appendfsync": "no"}) as server:
            assert await class_of(server) == MEMORY

    async def test_finds_the_same_on_the_oldest_server(
        self, oldest_server: EmbeddedServer, tmp_path: Path
    ) -> None:
        assert await class_of(oldest_server) == MEMORY
        with EmbeddedServer(data=tmp_path, binary=oldest_server.binary) as server:
            assert await class_of(server) == DISK

    async def test_finds_the_product_and_version(
        self, server: EmbeddedServer, oldest_server: EmbeddedServer
    ) -> None:
        async with Engine(server.url) as engine:
            facts = await facts_of(engine)
            assert facts.flavour == "valkey"
            assert facts.version.split(".")[0] == "9"
        async with Engine(oldest_server.url) as engine:
            facts = await facts_of(engine)
            assert facts.flavour == "redis"
            assert facts.version.startswith("6.2")

    async def test_finds_the_weakest_class_of_a_cluster(self) -> None:
        """A class must hold for every queue, wherever its slot is."""
        options = {"appendonly": "yes", "appendfsync": "always"}
        with EmbeddedCluster(masters=3, options=options) as cluster:
            async with Engine(cluster.url) as engine:
                assert (await facts_of(engine, servers=3)).durability == DISK
            cluster.masters[1].ask("CONFIG", "SET", "appendfsync", "everysec")
            async with Engine(cluster.url) as engine:
                assert (await facts_of(engine, servers=3)).durability == SECOND


class TestARedisThatDeniesConfig:
    @pytest.fixture
    def url(self, tmp_path: Path) -> Iterator[str]:
        with EmbeddedServer(data=tmp_path) as server:
            server.ask("ACL", "SETUSER", "limited", "on", ">pw", "~*", "&*", "+@all", "-config")
            yield f"unix://limited:pw@{server.socket}"

    async def test_is_not_assumed_to_be_durable(self, url: str) -> None:
        refusal = await refusal_on_entering(DurabilityUnknown, lambda: Engine(url))
        assert "`durability`" in refusal.remedy

    async def test_has_the_class_that_a_setting_declares(self, url: str) -> None:
        async with Engine(url, declared=SECOND) as engine:
            assert (await facts_of(engine)).durability == SECOND
            await engine.submit(REVIEWS, b"", durability=SECOND)
            with pytest.raises(DurabilityUnavailable):
                await engine.submit(REVIEWS, b"", durability=DISK)

    async def test_overrules_the_setting_once_it_answers(self, server: EmbeddedServer) -> None:
        async with Engine(server.url, declared=DISK) as engine:
            assert (await facts_of(engine)).durability == MEMORY


class TestASubmitThatAsksForAClass:
    async def test_gets_it_or_a_stronger_one(self, tmp_path: Path) -> None:
        with EmbeddedServer(data=tmp_path) as server:
            async with Engine(server.url) as engine:
                for durability in (MEMORY, SECOND, DISK):
                    await engine.submit(REVIEWS, b"", durability=durability)
                jobs = [new_job(b""), new_job(b"")]
                await engine.submit_many(REVIEWS, jobs, durability=DISK)
                assert (await engine.inspect.counts(REVIEWS)).ready == 5

    @pytest.mark.parametrize("durability", [SECOND, DISK, ONE_REPLICA], ids=str)
    async def test_is_refused_if_the_server_cannot_give_it(
        self, server: EmbeddedServer, durability: Durability
    ) -> None:
        async with Engine(server.url) as engine:
            with pytest.raises(DurabilityUnavailable) as refusal:
                await engine.submit(REVIEWS, b"", durability=durability)
            assert refusal.value.wanted == str(durability)
            with pytest.raises(DurabilityUnavailable):
                await engine.submit_many(REVIEWS, [new_job(b"")], durability=durability)
            assert (await engine.inspect.counts(REVIEWS)).ready == 0


WEAKENED = [("appendonly", "no"), ("appendfsync", "everysec"), ("appendfsync", "no")]
AT_ONCE = 8
"""More submits than an engine has connections for them."""


class TestARedisThatIsWeakenedWhileItRuns:
    """The connections stay open, so only another probe shows the change."""

    @pytest.mark.parametrize(("name", "value"), WEAKENED)
    async def test_no_longer_acknowledges_the_class(
        self, tmp_path: Path, name: str, value: str
    ) -> None:
        with EmbeddedServer(data=tmp_path) as server:
            async with Engine(server.url) as engine:

                async def refusals() -> int:
                    queues = [f"queue-{number}" for number in range(AT_ONCE)]
                    submits = (engine.submit(queue, b"", durability=DISK) for queue in queues)
                    found = await asyncio.gather(*submits, return_exceptions=True)
                    return sum(isinstance(answer, DurabilityUnavailable) for answer in found)

                assert await refusals() == 0
                server.ask("CONFIG", "SET", name, value)

                async def all_refused() -> bool:
                    return await refusals() == AT_ONCE

                await eventually_async(all_refused)
                assert (await engine.check()).durability.disk < Disk.DISK

    async def test_acknowledges_the_class_again_once_it_is_strengthened(
        self, tmp_path: Path
    ) -> None:
        with EmbeddedServer(data=tmp_path, options={"appendfsync": "everysec"}) as server:
            async with Engine(server.url) as engine:
                with pytest.raises(DurabilityUnavailable):
                    await engine.submit(REVIEWS, b"", durability=DISK)
                server.ask("CONFIG", "SET", "appendfsync", "always")
                await engine.submit(REVIEWS, b"", durability=DISK)

    async def test_is_probed_again_after_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(durability_module, "FACTS_LAST", hours(1))
        with EmbeddedServer(data=tmp_path) as server:
            async with Engine(server.url, limits=Limits(channels=1)) as engine:
                await engine.submit(REVIEWS, b"", durability=DISK)
                server.ask("CONFIG", "SET", "appendonly", "no")
                server.ask("CONFIG", "SET", "maxmemory", "1")
                with pytest.raises(MemoryFull):
                    await engine.submit(REVIEWS, b"", durability=DISK)
                server.ask("CONFIG", "SET", "maxmemory", "0")
                with pytest.raises(DurabilityUnavailable):
                    await engine.submit(REVIEWS, b"", durability=DISK)


@contextmanager
def replicated() -> Generator[tuple[EmbeddedServer, EmbeddedServer]]:
    """A primary and a replica that has confirmed a write of it."""
    with EmbeddedServer(listen=Listen.PORT, options={"repl-diskless-sync-delay": "0"}) as primary:
        replicaof = f"127.0.0.1 {primary.port}"
        with (
            EmbeddedServer(options={"replicaof": replicaof}) as replica,
            RedisConnection(primary.address) as connection,
        ):
            connection.ask("SET", "written", "1")
            eventually(lambda: connection.ask("WAIT", 1, 1000) == 1)
            yield primary, replica


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[EmbeddedServer, EmbeddedServer]]:
    with replicated() as pair:
        yield pair


class TestReplicas:
    @pytest.fixture
    def primary(self, pair: tuple[EmbeddedServer, EmbeddedServer]) -> EmbeddedServer:
        pair[0].ask("FLUSHALL")
        return pair[0]

    @pytest.fixture
    def replica(self, pair: tuple[EmbeddedServer, EmbeddedServer]) -> EmbeddedServer:
        return pair[1]

    async def test_are_counted(self, primary: EmbeddedServer) -> None:
        async with Engine(primary.url) as engine:
            assert (await facts_of(engine)).replicas == 1

    async def test_have_the_job_when_its_submit_returns(
        self, primary: EmbeddedServer, replica: EmbeddedServer
    ) -> None:
        async with Engine(primary.url) as engine:
            for n in range(20):
                await engine.submit(REVIEWS, b"", id=f"{n}", durability=ONE_REPLICA)
                assert replica.ask("EXISTS", f"{{reviews}}:job:{n}") == 1

    async def test_have_the_job_when_a_repeated_submit_returns(
        self, primary: EmbeddedServer, replica: EmbeddedServer
    ) -> None:
        """The repeat writes nothing, and still waits until the earlier write is replicated."""
        async with Engine(primary.url) as engine:
            await engine.submit(REVIEWS, b"", id="a")
            again = await engine.submit(REVIEWS, b"", id="a", durability=ONE_REPLICA)
            assert again.existed
            assert replica.ask("EXISTS", "{reviews}:job:a") == 1

    async def test_that_are_too_few_are_noticed_before_the_submit(
        self, primary: EmbeddedServer
    ) -> None:
        async with Engine(primary.url) as engine:
            with pytest.raises(DurabilityUnavailable) as refusal:
                await engine.submit(REVIEWS, b"", durability=Durability.parse("replica:2"))
            assert refusal.value.has == "replica:1"
            assert (await engine.inspect.counts(REVIEWS)).ready == 0

    async def test_of_a_cluster_confirm_submits_too(self) -> None:
        with EmbeddedCluster(masters=3, replicas=1) as cluster:
            async with Engine(cluster.url) as engine:
                await engine.submit(REVIEWS, b"", id="a", durability=ONE_REPLICA)
                assert any(node.ask("DBSIZE") != 0 for node in cluster.replicas)


class TestReplicasThatFail:
    async def test_leave_the_class_unreached_when_they_are_gone(self) -> None:
        """The job exists, and the error says that a repeat with the same id is safe."""
        with replicated() as (primary, replica):
            async with Engine(primary.url, limits=QUICK) as engine:
                replica.kill()
                with pytest.raises(DurabilityNotReached) as refusal:
                    await engine.submit(REVIEWS, b"", id="a", durability=ONE_REPLICA)
                assert (refusal.value.wanted, refusal.value.confirmed) == (1, 0)
                assert refusal.value.retry is RetryAdvice.SAFE
                assert await engine.inspect.state(job_ref(REVIEWS, "a")) is State.READY

    async def test_leave_the_class_unreached_while_they_are_frozen(self) -> None:
        with replicated() as (primary, replica):
            async with Engine(primary.url, limits=QUICK) as engine:
                replica.pause()
                with pytest.raises(DurabilityNotReached):
                    await engine.submit(REVIEWS, b"", id="a", durability=ONE_REPLICA)
                replica.unpause()

                async def confirmed() -> bool:
                    try:
                        again = await engine.submit(REVIEWS, b"", id="a", durability=ONE_REPLICA)
                    except DurabilityNotReached:
                        return False
                    return again.existed

                await eventually_async(confirmed)
