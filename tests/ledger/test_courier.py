"""The courier delivers at least once, in order per key, from one process at a time, whatever the
sink does.
"""

import asyncio
import logging
import re
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import select

from tests.ledger.memory_sinks import AWAY, FailingSink, HeldSink, MemorySink
from tests.ledger.numbered_events import (
    QUICK,
    an_event,
    expected,
    first_arrivals,
    put,
    some_events,
)
from tests.ledger.outbox_facts import all_gone, at_most, lines, pending, said
from tests.waiting import HANGS, eventually_async
from towpath.clock import hours, milliseconds, minutes, seconds
from towpath.errors import InvalidOption
from towpath.ledger.database.schema import couriers
from towpath.ledger.errors import LedgerUnreachable
from towpath.ledger.ledger import Ledger
from towpath.ledger.outbox.backoff import CourierOptions, SinkBackoff
from towpath.ledger.outbox.courier import Courier
from towpath.ledger.outbox.event import Behind, Postponed, Refusal
from towpath.supervise import troubles
from towpath.telemetry.metrics import Metrics


@pytest.fixture
def ledger_options() -> dict[str, Any]:
    return {"sinks": ["events"]}


class TestACourier:
    async def test_sends_all_events_in_order_and_leaves_no_rows(self, ledger: Ledger) -> None:
        sink = MemorySink()
        await put(ledger, *some_events(7, 50))
        async with Courier(ledger, [sink], options=QUICK):
            await all_gone(ledger)
        assert first_arrivals(sink.bodies) == expected(7, 50)
        assert len(sink.bodies) == 350
        assert sink.closed

    async def test_holds_no_more_than_a_batch(self, ledger: Ledger) -> None:
        sink = MemorySink()
        await put(ledger, *some_events(5, 9))
        async with Courier(ledger, [sink], options=CourierOptions(batch=10)):
            await all_gone(ledger)
        assert [len(batch) for batch in sink.batches] == [10, 10, 10, 10, 5]

    async def test_starts_at_once_after_an_event_of_its_process(self, ledger: Ledger) -> None:
        """No poll is needed."""
        sink = MemorySink()
        async with Courier(ledger, [sink], options=CourierOptions(look_every=hours(1))):
            for number in (1, 2, 3):
                await put(ledger, an_event("a", number))
                await all_gone(ledger)
        assert sink.ids == ["a/1", "a/2", "a/3"]

    async def test_sends_events_of_another_process(self, ledger: Ledger, url: str) -> None:
        sink = MemorySink()
        async with (
            Courier(ledger, [sink], options=QUICK),
            Ledger(url, sinks=["events"]) as other,
        ):
            await put(other, an_event("a", 1))
            await all_gone(ledger)
        assert sink.ids == ["a/1"]

    async def test_without_events_writes_nothing(self, ledger: Ledger) -> None:
        sink = MemorySink()
        metrics = Metrics(CollectorRegistry())
        async with Courier(ledger, [sink], options=QUICK, metrics=metrics) as courier:
            await eventually_async(lambda: _looked(courier))
            query = select(couriers.c.sink)
            assert await ledger.read(lambda connection: connection.execute(query).all()) == []

    async def test_sends_to_each_sink_without_waiting_for_others(self, url: str) -> None:
        quick, stuck = MemorySink("quick"), FailingSink(*[AWAY] * 1000)
        stuck.name = "stuck"
        async with Ledger(url, sinks=["quick", "stuck"]) as ledger:
            await ledger.migrate()
            async with Courier(ledger, [quick, stuck], options=QUICK):
                await put(ledger, *some_events(2, 3))
                await all_gone(ledger, "quick")
            assert await pending(ledger, "stuck") == 6
        assert first_arrivals(quick.bodies) == expected(2, 3)

    def test_for_one_sink_twice_is_refused(self, url: str) -> None:
        with pytest.raises(InvalidOption):
            Courier(Ledger(url), [MemorySink(), MemorySink()])


class TestACourierThatStops:
    async def test_finishes_the_batch_that_is_under_way(self, ledger: Ledger) -> None:
        gate = HeldSink()
        await put(ledger, an_event("a", 1))
        async with Courier(ledger, [gate], options=QUICK) as courier:
            await gate.reached.wait()
            leaving = asyncio.create_task(courier.__aexit__(None, None, None))
            await asyncio.sleep(0)
            gate.open.set()
            await leaving
            assert await pending(ledger) == 0
        assert gate.ids == ["a/1"]

    async def test_waits_for_its_batch_no_longer_than_its_grace(self, ledger: Ledger) -> None:
        """Events under way are sent again, under the same ids."""
        gate = HeldSink()
        await put(ledger, an_event("a", 1))
        async with asyncio.timeout(HANGS):
            async with Courier(ledger, [gate], options=CourierOptions(grace=milliseconds(50))):
                await gate.reached.wait()
        assert (gate.cut, await pending(ledger)) == (1, 1)

    async def test_lets_another_courier_go_on_at_once(self, ledger: Ledger) -> None:
        first, second = FailingSink(AWAY), MemorySink()
        patient = CourierOptions(lease=minutes(10))
        await put(ledger, an_event("a", 1))
        async with Courier(ledger, [first], options=patient):
            await eventually_async(lambda: _are_over(first))
        async with Courier(ledger, [second], options=patient):
            await all_gone(ledger)
        assert second.ids == ["a/1"]


class TestASinkThatIsAway:
    async def test_gets_everything_in_order_once_it_is_back(
        self, ledger: Ledger, caplog: pytest.LogCaptureFixture
    ) -> None:
        """However often it fails, no event is given up. One log line tells of the outage, one of
        its end.
        """
        sink = FailingSink(*[AWAY] * 40)
        await put(ledger, *some_events(3, 5))
        with caplog.at_level(logging.INFO, "towpath"):
            async with Courier(ledger, [sink], options=CourierOptions(
                first_pause=milliseconds(1), longest_pause=milliseconds(2), attempts=2
            )):  # fmt: skip
                await all_gone(ledger)
        assert first_arrivals(sink.bodies) == expected(3, 5)
        assert len(lines(caplog, "sink.unreachable")) == len(lines(caplog, "sink.back")) == 1
        assert lines(caplog, "sink.unreachable")[0]["reason"] == "no route"
        assert await ledger.outbox.refused("events") == []

    async def test_that_accepts_none_of_a_batch_counts_as_away_too(self, ledger: Ledger) -> None:
        """It answers, but accepts not one event: no single event is to blame."""
        sink = MemorySink(answers={"a/1": Postponed("answered 500"), "a/2": Behind()})
        await put(ledger, an_event("a", 1), an_event("a", 2))
        quick = CourierOptions(
            first_pause=milliseconds(1), longest_pause=milliseconds(2), attempts=2
        )
        async with Courier(ledger, [sink], options=quick):
            await eventually_async(lambda: _tried(sink, 20))
            sink.answers.clear()
            await all_gone(ledger)
        assert sink.ids == ["a/1", "a/2"]

    def test_is_left_alone_for_longer_each_time_up_to_a_minute(self) -> None:
        backoff, pauses = SinkBackoff(CourierOptions()), list[float]()
        for _ in range(10):
            backoff.failed()
            pauses.append(backoff.pause(seconds(0)).total_seconds())
        assert pauses == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]
        assert backoff.pause(minutes(10)) == seconds(60)
        backoff.reached()
        backoff.failed()
        assert backoff.pause(seconds(0)) == seconds(0.5)
        assert backoff.pause(seconds(7)) == seconds(7)


class TestARefusedEvent:
    async def test_is_set_aside_with_the_reason_and_its_key_goes_on(
        self, ledger: Ledger, caplog: pytest.LogCaptureFixture
    ) -> None:
        sink = MemorySink(answers={"a/2": Refusal("too large\0")})
        await put(ledger, *(an_event("a", number) for number in (1, 2, 3)))
        async with Courier(ledger, [sink], options=QUICK):
            await all_gone(ledger)
        assert sink.ids == ["a/1", "a/3"]
        [refused] = await ledger.outbox.refused("events")
        assert (refused.event.id, refused.reason) == ("a/2", "too large")
        [line] = lines(caplog, "outbox.refused")
        assert (line["event_id"], line["sink"]) == ("a/2", "events")


class TestAPostponedEvent:
    async def test_delays_only_events_of_its_key(self, ledger: Ledger) -> None:
        sink = MemorySink(answers={"a/1": Postponed("answered 500"), "a/2": Behind()})
        await put(
            ledger,
            an_event("a", 1),
            an_event("a", 2),
            an_event("b", 1),
            an_event("b", 2),
        )
        slow = CourierOptions(first_pause=hours(1), longest_pause=hours(1))
        async with Courier(ledger, [sink], options=slow):
            await at_most(ledger, 2)
            await put(ledger, an_event("a", 3), an_event("c", 1))
            await at_most(ledger, 3)
        assert sink.ids == ["b/1", "b/2", "c/1"]
        assert [batch for batch in sink.batches if "a/3" in batch] == []

    async def test_is_tried_again_and_its_key_stays_in_order(self, ledger: Ledger) -> None:
        sink = MemorySink(answers={"a/1": Postponed("answered 500"), "a/2": Behind()})
        await put(ledger, an_event("a", 1), an_event("a", 2), an_event("b", 1))
        async with Courier(ledger, [sink], options=QUICK):
            await at_most(ledger, 2)
            sink.answers.clear()
            await all_gone(ledger)
        assert sink.ids == ["b/1", "a/1", "a/2"]

    async def test_is_refused_after_its_attempts_if_others_are_accepted(
        self, ledger: Ledger, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Otherwise one poisoned event would hold up its key for ever."""
        sink = MemorySink(answers={"a/1": Postponed("answered 500"), "a/2": Behind()})
        await put(ledger, an_event("a", 1), an_event("a", 2))
        few = CourierOptions(
            attempts=3, first_pause=milliseconds(1), longest_pause=milliseconds(1),
            look_every=milliseconds(5),
        )  # fmt: skip
        async with Courier(ledger, [sink], options=few):
            for number in range(1, 1000):
                await put(ledger, an_event("b", number))
                if await ledger.outbox.refused("events"):
                    break
            sink.answers.clear()
            await all_gone(ledger)
        [refused] = await ledger.outbox.refused("events")
        assert refused.event.id == "a/1"
        assert "answered 500" in refused.reason
        assert re.findall(r"\d+", refused.reason) == ["3", "500"]
        assert [id for id in sink.ids if id.startswith("a")] == ["a/2"]
        assert [line["attempt"] for line in lines(caplog, "outbox.delayed")] == [1, 2]


class TestADefectOfASink:
    async def test_is_logged_and_stops_no_other_sink(
        self, url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        broken, sink = FailingSink(*[ZeroDivisionError("oops")] * 99), MemorySink("other")
        async with Ledger(url, sinks=["events", "other"]) as ledger:
            await ledger.migrate()
            await put(ledger, an_event("a", 1))
            async with Courier(ledger, [broken, sink], options=QUICK):
                await all_gone(ledger, "other")
                await said(caplog, "task.failed")
                [(name, trouble)] = troubles().items()
                assert (name, trouble.error) == ("courier of events", "ZeroDivisionError")
                assert await pending(ledger) == 1
        assert sink.closed

    async def test_does_not_end_its_route_for_good(self, url: str) -> None:
        sink = FailingSink(ZeroDivisionError("oops"), ZeroDivisionError("oops"))
        async with Ledger(url, sinks=["events"]) as ledger:
            await ledger.migrate()
            await put(ledger, an_event("a", 1))
            async with Courier(ledger, [sink], options=QUICK):
                await all_gone(ledger)
        assert sink.ids == ["a/1"]


class TestMetricsOfTheOutbox:
    async def test_count_sent_and_waiting_events(self, ledger: Ledger) -> None:
        metrics = Metrics(CollectorRegistry())
        sink = MemorySink(answers={"a/2": Refusal("no")})

        def value(name: str, **labels: str) -> float | None:
            return metrics.registry.get_sample_value(name, {"sink": "events", **labels})

        async with Courier(ledger, [sink], options=QUICK, metrics=metrics):
            assert value("towpath_outbox_sent_total") == 0
            await put(ledger, an_event("a", 1), an_event("a", 2), an_event("a", 3))
            await all_gone(ledger)
        assert value("towpath_outbox_sent_total") == 2
        assert value("towpath_outbox_refused_total") == 1
        async with Courier(
            ledger, [FailingSink(*[AWAY] * 1000)], options=QUICK, metrics=metrics
        ) as courier:
            await put(ledger, an_event("a", 4))
            await eventually_async(lambda: _looked(courier))
            assert value("towpath_outbox_events", state="refused") == 1
            assert value("towpath_outbox_lag_seconds") is not None
            assert metrics.registry.get_sample_value("towpath_queues_readable") == 1

    async def test_show_that_the_outbox_cannot_be_read(self, file_url: str) -> None:
        ledger = Ledger(file_url)
        courier = Courier(ledger, [MemorySink()])
        assert courier.read().sinks == ()
        async with ledger, courier:
            courier._read_at -= 60  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- a minute passes
            with pytest.raises(LedgerUnreachable):
                courier.read()


async def _looked(courier: Courier) -> bool:
    return bool(courier.read().sinks)


async def _tried(sink: MemorySink, times: int) -> bool:
    return len(sink.batches) >= times


async def _are_over(sink: FailingSink) -> bool:
    return not sink.failures
