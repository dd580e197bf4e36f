"""Events into a stream of Redis or Valkey."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.ledger.numbered_events import (
    QUICK,
    an_event,
    expected,
    first_arrivals,
    put,
    some_events,
)
from tests.ledger.outbox_facts import all_gone
from tests.waiting import eventually_async
from towpath.clock import milliseconds
from towpath.embedded import EmbeddedServer
from towpath.embedded.process import items
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.errors import InvalidName, InvalidOption
from towpath.ledger.ledger import Ledger
from towpath.ledger.outbox.courier import Courier
from towpath.ledger.outbox.sinks.redis_stream import RedisStreamSink
from towpath.testing.proxy import Faults, Hole, Proxy

BRIEF = Limits(answer=milliseconds(200), give_up=milliseconds(400))


@pytest.fixture
def ledger_options() -> dict[str, Any]:
    return {"sinks": ["events"]}


def stream(server: EmbeddedServer, name: str = "events") -> list[dict[str, bytes]]:
    """The entries of a stream, oldest first."""
    found: list[dict[str, bytes]] = []
    for entry in items(server.ask("XRANGE", f"towpath:stream:{name}", "-", "+")):
        flat = [item for item in items(items(entry)[1]) if isinstance(item, bytes)]
        found.append({k.decode(): v for k, v in zip(flat[::2], flat[1::2], strict=True)})
    return found


def arrived(server: EmbeddedServer) -> dict[str, list[int]]:
    return first_arrivals(entry["event"] for entry in stream(server))


class TestTheStreamOfEvents:
    async def test_has_whole_events_with_their_ids(
        self, ledger: Ledger, server: EmbeddedServer
    ) -> None:
        await put(ledger, an_event("a", 1))
        async with (
            Engine(server.url) as engine,
            Courier(ledger, [RedisStreamSink(engine)], options=QUICK),
        ):
            await all_gone(ledger)
        [entry] = stream(server)
        assert (entry["id"], entry["type"]) == (b"a/1", b"towpath.parcel.sent")
        assert json.loads(entry["event"])["data"] == {"number": 1}

    async def test_is_capped(self, ledger: Ledger, server: EmbeddedServer) -> None:
        await put(ledger, *some_events(1, 1000))
        async with Engine(server.url) as engine:
            sink = RedisStreamSink(engine, "few", kept=100)
            async with Courier(ledger, [sink], options=QUICK):
                await all_gone(ledger)
        kept = stream(server, "few")
        assert 100 <= len(kept) <= 300
        assert kept[-1]["id"] == b"k0/1000"

    async def test_has_a_valid_name_and_cap(self, server: EmbeddedServer) -> None:
        async with Engine(server.url) as engine:
            with pytest.raises(InvalidName):
                RedisStreamSink(engine, "Events")
            with pytest.raises(InvalidName):
                RedisStreamSink(engine, name="")
            with pytest.raises(InvalidOption):
                RedisStreamSink(engine, kept=0)


class TestARedisSinkInTrouble:
    async def test_gets_everything_in_order_through_cut_replies(
        self, ledger: Ledger, server: EmbeddedServer
    ) -> None:
        """A batch whose reply is lost is there twice, under the same ids."""
        await put(ledger, *some_events(5, 100))
        async with Proxy(server.address, Faults()) as proxy, Engine(proxy.url) as engine:
            proxy.cut_every(3)
            async with Courier(ledger, [RedisStreamSink(engine)], options=QUICK):
                await all_gone(ledger)
        assert arrived(server) == expected(5, 100)

    @pytest.mark.parametrize("hole", [Hole.REQUESTS, Hole.REPLIES])
    async def test_that_falls_silent_is_waited_for(
        self, ledger: Ledger, server: EmbeddedServer, hole: Hole
    ) -> None:
        await put(ledger, *some_events(3, 10))
        async with (
            Proxy(server.address, Faults()) as proxy,
            Engine(proxy.url, limits=BRIEF) as engine,
        ):
            proxy.faults.hole = hole
            async with Courier(ledger, [RedisStreamSink(engine)], options=QUICK):
                await eventually_async(lambda: _swallowed(proxy, 3))
                await put(ledger, *(an_event(f"k{key}", 11) for key in range(3)))
                proxy.faults.hole = Hole.NOTHING
                await all_gone(ledger)
        assert arrived(server) == expected(3, 11)

    async def test_that_is_killed_gets_the_rest_when_it_is_back(
        self, ledger: Ledger, tmp_path: Path
    ) -> None:
        """This one keeps all that it accepted."""
        with EmbeddedServer(data=tmp_path / "store") as server:
            async with (
                Engine(server.url, limits=BRIEF) as engine,
                Courier(ledger, [RedisStreamSink(engine)], options=QUICK),
            ):
                for number in range(1, 31):
                    if number in (10, 20):
                        server.kill()
                    if number in (15, 25):
                        await asyncio.to_thread(server.start)
                    await put(ledger, *(an_event(f"k{key}", number) for key in range(4)))
                await all_gone(ledger)
            assert arrived(server) == expected(4, 30)

    async def test_whose_memory_is_full_is_waited_for(self, ledger: Ledger) -> None:
        await put(ledger, *some_events(2, 5))
        with EmbeddedServer() as server:
            async with Engine(server.url) as engine:
                server.ask("CONFIG", "SET", "maxmemory", "1")
                async with Courier(ledger, [RedisStreamSink(engine)], options=QUICK):
                    await eventually_async(lambda: _refused(server))
                    server.ask("CONFIG", "SET", "maxmemory", "0")
                    await all_gone(ledger)
            assert arrived(server) == expected(2, 5)


async def _swallowed(proxy: Proxy, times: int) -> bool:
    return proxy.swallowed >= times


async def _refused(server: EmbeddedServer) -> bool:
    told = server.ask("INFO", "errorstats")
    return isinstance(told, bytes) and b"OOM" in told
