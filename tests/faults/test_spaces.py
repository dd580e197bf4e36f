"""Entries of applications' spaces take the same path as the engine's own calls, through the same
faults.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.faults.moving_slot import MovingSlot, slot_of, wait_until_agreed
from tests.faults.redis_dump import dumps
from tests.spec import parcels
from tests.waiting import eventually_async, eventually_in_loop
from towpath.clock import seconds
from towpath.embedded import EmbeddedCluster, EmbeddedServer
from towpath.embedded.groups import SLOTS
from towpath.embedded.process import items
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.engine.script import Scripts
from towpath.engine.space import SpaceRecord
from towpath.errors import ServerUnreachable
from towpath.testing.proxy import Faults, Hole, Proxy

SOON = Limits(answer=seconds(1), give_up=seconds(2), channels=20)
LATE = Limits(answer=seconds(0.3), give_up=seconds(60))


def ids_on(cluster: EmbeddedCluster, master: int, count: int) -> list[str]:
    """Ids of entries that live on one of the masters."""
    ids = (f"p-{number}" for number in range(10_000))
    first = SLOTS * master // 3 + 100  # not close to the end of its range of slots
    fitting = (id for id in ids if first <= slot_of(cluster, f"{{{id}}}") < first + 4000)
    return [next(fitting) for _ in range(count)]


async def store(parcel: SpaceRecord, number: int, piece: bytes) -> object:
    return await parcel.run("store", token=1, number=number, piece=piece, label="l", more=[])


SPLITS: dict[str, Callable[[str], bool]] = {
    "none": lambda _: False,
    "all": lambda _: True,
    "the state": lambda key: key.endswith(":state"),
    "a piece": lambda key: ":pieces:" in key,
    "all but the state": lambda key: not key.endswith(":state"),
}
"""Which keys of a record have moved already."""


async def test_calls_fail_or_succeed_whole_while_the_slot_of_an_entry_moves(
    own_cluster: EmbeddedCluster,
) -> None:
    """Reads are never half either, and a stream of events has a slot, too."""
    async with Engine(own_cluster.url, limits=SOON) as engine:
        space = engine.space("parcel", parcels.SCRIPTS)
        parcels_of = dict(zip(SPLITS, ids_on(own_cluster, 0, len(SPLITS)), strict=True))
        for id in parcels_of.values():
            await space.at(id).run("hold")
            await store(space.at(id), 1, b"old")
        await engine.publish("moved", [{"n": "1"}], cap=10)
        slots = {name: MovingSlot(own_cluster, f"{{{id}}}") for name, id in parcels_of.items()}
        stream = MovingSlot(own_cluster, "towpath:stream:moved")
        try:
            for name, slot in slots.items():
                slot.begin()
                slot.move([key for key in slot.left() if SPLITS[name](key.decode())])
            stream.begin()
            stream.move(stream.left())
            before = dumps(own_cluster.masters, "*")
            during = await asyncio.gather(
                *(store(space.at(id), 1, b"new") for id in parcels_of.values()),
                *(space.at(id).read("piece", number=1) for id in parcels_of.values()),
                engine.publish("moved", [{"n": "2"}], cap=10),
                return_exceptions=True,
            )
            after = dumps(own_cluster.masters, "*")
            for slot in (*slots.values(), stream):
                slot.finish()
        finally:
            for slot in (*slots.values(), stream):
                slot.abandon()
        wait_until_agreed(own_cluster)
        assert {type(answer) for answer in during} == {ServerUnreachable}
        assert after == before
    async with Engine(own_cluster.url) as engine:
        space = engine.space("parcel", parcels.SCRIPTS)
        for id in parcels_of.values():
            assert await store(space.at(id), 1, b"newer") == [1, 5]
            assert await space.at(id).read("piece", number=1) == b"newer"
        [_] = await engine.publish("moved", [{"n": "2"}], cap=10)


async def test_half_an_entry_is_read_if_only_one_of_its_keys_is_declared(
    own_cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shows that the test above can fail: both keys are declared as one, and a piece seems
    missing.
    """
    [id] = ids_on(own_cluster, 0, 1)
    async with Engine(own_cluster.url, limits=SOON) as engine:
        parcel = engine.space("parcel", parcels.SCRIPTS).at(id)
        await parcel.run("hold")
        await store(parcel, 1, b"old")
        keys = parcel._keys  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- the planted fault
        monkeypatch.setattr(keys, "never", keys.first)
        slot = MovingSlot(own_cluster, f"{{{id}}}")
        slot.begin()
        try:
            assert await parcel.read("piece", number=1) is None
        finally:
            slot.abandon()


@pytest.mark.parametrize("faults", [Faults(reset=True), Faults()], ids=["reset", "closed"])
async def test_calls_that_are_cut_count_once(
    server: EmbeddedServer, seed: int, faults: Faults
) -> None:
    faults.chance = random.Random(seed)
    async with (
        Proxy(server.address, faults, tcp=True) as proxy,
        Engine(proxy.url, limits=LATE) as engine,
    ):
        space = engine.space("parcel", parcels.SCRIPTS)
        faults.cut_replies, faults.cut_requests = 0.25, 0.1
        large = bytes(range(256)) * 256
        tokens: list[int] = await asyncio.gather(*(space.at("p").run("hold") for _ in range(30)))
        await space.at("q").run("hold")
        for number in range(5):
            answer = await store(space.at("q"), number, large)
            assert answer == [number + 1, (number + 1) * len(large)]
            assert await space.at("q").read("piece", number=number) == large
        assert proxy.cuts > 0
    assert sorted(tokens) == list(range(1, 31))


async def test_a_call_whose_replies_are_swallowed_counts_once(server: EmbeddedServer) -> None:
    """As with a frozen machine in between: nothing tells that no reply comes."""
    async with Proxy(server.address, Faults()) as proxy, Engine(proxy.url, limits=LATE) as engine:
        parcel = engine.space("parcel", parcels.SCRIPTS).at("p")
        await parcel.run("hold")
        proxy.faults.hole = Hole.REPLIES
        call = asyncio.create_task(parcel.run("hold"))
        await eventually_in_loop(lambda: proxy.swallowed >= 2)
        proxy.faults.hole = Hole.NOTHING
        assert await call == 2


async def test_a_frozen_master_does_not_affect_the_entries_of_others(
    own_cluster: EmbeddedCluster,
) -> None:
    [theirs], [ours] = ids_on(own_cluster, 1, 1), ids_on(own_cluster, 2, 1)
    async with Engine(own_cluster.url, limits=SOON) as engine:
        space = engine.space("parcel", parcels.SCRIPTS)
        await asyncio.gather(space.at(ours).run("hold"), space.at(theirs).run("hold"))
        own_cluster.masters[1].pause()
        try:
            calls = [asyncio.create_task(space.at(theirs).run("hold")) for _ in range(10)]
            held = [await space.at(ours).run("hold") for _ in range(20)]
            assert held == list(range(2, 22))
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(answer) for answer in answers} == {ServerUnreachable}
        finally:
            own_cluster.masters[1].unpause()
        await eventually_async(lambda: _is_held(space.at(theirs)))
        facts = (await space.at(theirs).read("state"))[1]
        # Each call that was given up was executed once or not at all.
        assert 2 <= int(facts[facts.index(b"token") + 1]) <= 12


async def _is_held(parcel: SpaceRecord) -> bool:
    with suppress(ServerUnreachable):
        await parcel.run("hold")
        return True
    return False


class TestACallWhoseReplyIsLost:
    async def test_is_repeated_and_counts_once(self, server: EmbeddedServer) -> None:
        assert await held_by_cut_calls(server, Scripts()) == [1, 2, 3, 4, 5]

    async def test_counts_twice_without_the_memory_of_calls(self, server: EmbeddedServer) -> None:
        """Shows that the test above can fail."""

        def edit(piece: str, text: str) -> str:
            remember = "redis.call('SET', CALL .. channel, memory, 'PX', CALL_KEPT_MS)"
            return text.replace(remember, "") if piece == "calls" else text

        assert await held_by_cut_calls(server, Scripts(edit)) == [2, 4, 6, 8, 10]


async def held_by_cut_calls(server: EmbeddedServer, scripts: Scripts) -> list[int]:
    async with (
        Proxy(server.address, Faults()) as proxy,
        Engine(proxy.url, scripts=scripts) as engine,
    ):
        parcel, tokens = engine.space("parcel", parcels.SCRIPTS).at("p-1"), list[int]()
        for _ in range(5):
            proxy.cut_next()
            tokens.append(await parcel.run("hold"))
        assert proxy.cuts == 5
    assert items(server.ask("HMGET", "parcel:{p-1}:state", "token")) == [b"%d" % tokens[-1]]
    return tokens
