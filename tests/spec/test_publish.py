"""publish: append entries to a stream that outsiders read."""

import pytest

from tests.spec.deployment import Deployment
from towpath.clock import seconds
from towpath.embedded import EmbeddedServer
from towpath.embedded.process import items
from towpath.engine.batcher import LARGEST_BATCH
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.errors import (
    InvalidName,
    InvalidOption,
    MemoryFull,
    ServerUnreachable,
    WrongKeyType,
)
from towpath.testing.proxy import Faults, Hole, Proxy

KEY = "towpath:stream:reviews"


def entries_of(deployment: Deployment) -> list[tuple[str, list[object]]]:
    """The entries of the stream: their ids, and their fields in order."""
    found: list[tuple[str, list[object]]] = []
    for entry in items(deployment.ask("XRANGE", KEY, "-", "+")):
        id, fields = items(entry)
        assert isinstance(id, bytes)
        found.append((id.decode(), list(items(fields))))
    return found


class TestPublishing:
    async def test_appends_in_order_and_returns_the_positions(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        first = await engine.publish("reviews", [{"id": "1", "event": b"\x00\xff"}], cap=100)
        more = await engine.publish("reviews", [{"id": "2"}, {"id": "3"}], cap=100)
        assert entries_of(deployment) == [
            (first[0], [b"id", b"1", b"event", b"\x00\xff"]),
            (more[0], [b"id", b"2"]),
            (more[1], [b"id", b"3"]),
        ]

    async def test_is_one_round_trip_for_a_batch(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        before = deployment.calls("eval", "evalsha")
        ids = await engine.publish("reviews", [{"n": str(n)} for n in range(500)], cap=1000)
        assert deployment.calls("eval", "evalsha") == before + 1
        assert len(set(ids)) == 500

    async def test_keeps_few_entries_more_than_its_cap(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        """A stream drops whole nodes of about a hundred entries."""
        ids: list[str] = []
        for start in range(0, 2000, 500):
            batch = [{"n": str(n)} for n in range(start, start + 500)]
            ids += await engine.publish("reviews", batch, cap=100)
        kept = entries_of(deployment)
        assert 100 <= len(kept) <= 300
        assert kept[-1][0] == ids[-1]

    async def test_is_independent_of_queues(self, engine: Engine, deployment: Deployment) -> None:
        await engine.publish("reviews", [{"n": "1"}], cap=100)
        assert set(deployment.dump()) == {KEY}

    @pytest.mark.parametrize("stream", ["", "Reviews", "a b", "x" * 65, "a:b", "{a}"])
    async def test_refuses_an_invalid_name(self, engine: Engine, stream: str) -> None:
        with pytest.raises(InvalidName):
            await engine.publish(stream, [{"n": "1"}], cap=100)

    async def test_refuses_an_invalid_batch(self, engine: Engine, deployment: Deployment) -> None:
        one: dict[str, str] = {"n": "1"}
        wrong: list[tuple[list[dict[str, str]], int]] = [
            ([], 1), ([one] * (LARGEST_BATCH + 1), 1), ([{}], 1), ([one], 0), ([one], 10**8),
        ]  # fmt: skip
        for entries, cap in wrong:
            with pytest.raises(InvalidOption):
                await engine.publish("reviews", entries, cap=cap)
        assert deployment.key_names() == set()

    async def test_reports_that_the_name_is_taken_by_a_key_of_another_type(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        deployment.ask("SET", KEY, "taken")
        with pytest.raises(WrongKeyType):
            await engine.publish("reviews", [{"n": "1"}], cap=100)


async def test_a_publish_is_refused_whole_with_memory_full() -> None:
    with EmbeddedServer() as server:
        async with Engine(server.url) as engine:
            server.ask("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(MemoryFull):
                await engine.publish("reviews", [{"n": "1"}, {"n": "2"}], cap=100)
            assert server.ask("EXISTS", KEY) == 0


async def test_published_entries_are_there_once_after_a_lost_reply(server: EmbeddedServer) -> None:
    async with Proxy(server.address, Faults()) as proxy, Engine(proxy.url) as engine:
        proxy.cut_next()
        ids = await engine.publish("reviews", [{"id": "1"}, {"id": "2"}], cap=100)
        assert proxy.cuts == 1
    told = [items(entry) for entry in items(server.ask("XRANGE", KEY, "-", "+"))]
    assert told == [[ids[0].encode(), [b"id", b"1"]], [ids[1].encode(), [b"id", b"2"]]]


async def test_entries_that_are_published_again_are_there_twice(server: EmbeddedServer) -> None:
    """Delivery is at least once: readers recognise repeats by their contents."""
    limits = Limits(answer=seconds(0.2), give_up=seconds(0.4))
    async with Proxy(server.address, Faults()) as proxy, Engine(proxy.url, limits=limits) as engine:
        await engine.publish("others", [{"id": "1"}], cap=100)  # Redis knows the script
        proxy.faults.hole = Hole.REPLIES
        with pytest.raises(ServerUnreachable):
            await engine.publish("reviews", [{"id": "1"}], cap=100)
    async with Engine(server.url) as engine:
        await engine.publish("reviews", [{"id": "1"}], cap=100)
    told = [items(entry)[1] for entry in items(server.ask("XRANGE", KEY, "-", "+"))]
    assert told == [[b"id", b"1"]] * 2
