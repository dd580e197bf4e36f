"""Several couriers of one sink: one sends at a time, and another takes over from one that died."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import select, update

from tests.ledger.memory_sinks import HeldSink, MemorySink
from tests.ledger.numbered_events import QUICK, an_event, expected, first_arrivals, put
from tests.ledger.outbox_facts import all_gone, lines, pending
from tests.waiting import eventually_async
from towpath.clock import milliseconds, seconds
from towpath.ledger.database.schema import couriers, now_ms
from towpath.ledger.ledger import Ledger
from towpath.ledger.outbox.backoff import CourierOptions
from towpath.ledger.outbox.courier import Courier
from towpath.ledger.outbox.event import OutboxEvent, Outcome


@pytest.fixture
def ledger_options() -> dict[str, Any]:
    return {"sinks": ["events"]}


class TestSeveralCouriers:
    async def test_send_one_at_a_time(
        self, ledger: Ledger, url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        sink, busy, most = MemorySink(), 0, 0

        class Counting(MemorySink):
            async def send(self, events: Sequence[OutboxEvent]) -> Sequence[Outcome]:
                nonlocal busy, most
                busy += 1
                most = max(most, busy)
                await asyncio.sleep(0)
                outcomes = await sink.send(events)
                busy -= 1
                return outcomes

        few = CourierOptions(batch=5, look_every=milliseconds(2))
        async with (
            Ledger(url, sinks=["events"]) as other,
            Courier(ledger, [Counting()], options=few),
            Courier(other, [Counting()], options=few),
            Courier(other, [Counting()], options=few),
        ):
            for number in range(1, 61):
                where = ledger if number % 2 else other
                await put(where, *(an_event(f"k{key}", number) for key in range(4)))
            await all_gone(ledger)
        assert most == 1
        assert lines(caplog, "sink.unreachable") == []
        assert first_arrivals(sink.bodies) == expected(4, 60)
        assert len(sink.bodies) == 240

    async def test_wait_for_a_slow_one(self, ledger: Ledger) -> None:
        """It renews its lease for as long as it works."""
        gate, sink = HeldSink(), MemorySink()
        brief = CourierOptions(lease=seconds(1), look_every=milliseconds(5))
        await put(ledger, an_event("a", 1))
        async with Courier(ledger, [gate], options=brief):
            await gate.reached.wait()
            async with Courier(ledger, [sink], options=brief):
                kept = [await _expiry(ledger)]
                while len(kept) < 5:
                    await eventually_async(lambda: _is_later(ledger, kept[-1]))
                    kept.append(await _expiry(ledger))
                assert sink.batches == []
                gate.open.set()
                await all_gone(ledger)
        assert (gate.ids, gate.cut, sink.batches) == (["a/1"], 0, [])

    async def test_take_over_from_one_that_died(self, ledger: Ledger) -> None:
        gate, sink = HeldSink(), MemorySink()
        await put(ledger, an_event("a", 1))
        async with Courier(ledger, [gate], options=QUICK):
            await gate.reached.wait()
            await _hand_to(ledger, "a dead one", left_ms=300)
        async with Courier(ledger, [sink], options=QUICK):
            await all_gone(ledger)
        assert sink.ids == ["a/1"]

    async def test_stop_sending_when_the_lease_is_lost(self, ledger: Ledger) -> None:
        gate = HeldSink()
        brief = CourierOptions(lease=milliseconds(200))
        await put(ledger, an_event("a", 1))
        async with Courier(ledger, [gate], options=brief):
            await gate.reached.wait()
            await _hand_to(ledger, "another", left_ms=600_000)

            async def cut() -> bool:
                return gate.cut == 1

            await eventually_async(cut)
        assert await pending(ledger) == 1


async def _expiry(ledger: Ledger) -> int:
    return (
        await ledger.read(lambda connection: connection.scalar(select(couriers.c.expires_at))) or 0
    )


async def _is_later(ledger: Ledger, than: int) -> bool:
    return await _expiry(ledger) > than


async def _hand_to(ledger: Ledger, holder: str, *, left_ms: int) -> None:
    """Gives the lease to another courier, as if it had expired."""
    change = update(couriers).values(holder=holder, expires_at=now_ms() + left_ms)
    await ledger.write(lambda connection: connection.execute(change))
