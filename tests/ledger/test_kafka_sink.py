"""Events to Kafka. The broker is librdkafka's own for tests, and aiokafka reads the messages."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.ledger.kafka import KafkaBroker
from tests.ledger.kafka_program import TOPIC
from tests.ledger.numbered_events import (
    QUICK,
    an_event,
    expected,
    first_arrivals,
    put,
    some_events,
)
from tests.ledger.outbox_facts import all_gone, said
from tests.waiting import HANGS
from towpath.clock import minutes, seconds
from towpath.errors import InvalidName, InvalidOption
from towpath.ledger.errors import SinkUnreachable
from towpath.ledger.ledger import Ledger
from towpath.ledger.outbox.courier import Courier
from towpath.ledger.outbox.event import Behind, OutboxEvent, Refusal
from towpath.ledger.outbox.sinks.kafka import KafkaSink

TOO_LARGE, NOT_ALLOWED, OUT_OF_ORDER, NOT_LEADER, POLICY = 10, 29, 45, 6, 44


@pytest.fixture
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture
async def sink(broker: KafkaBroker) -> AsyncIterator[KafkaSink]:
    sink = KafkaSink(broker.address, TOPIC, limit=seconds(3))
    yield sink
    await sink.close()


@pytest.fixture
def ledger_options() -> dict[str, Any]:
    return {"sinks": ["kafka"]}


def event(key: str, number: int, seq: int, *, padding: int = 0) -> OutboxEvent:
    new = an_event(key, number)
    data = json.dumps({"number": number, "padding": "x" * padding}).encode()
    return OutboxEvent(
        seq=seq, id=new.id, type=new.type, source=new.source, key=key, data=data, at=new.at
    )


async def arrived(broker: KafkaBroker) -> dict[str, list[int]]:
    return first_arrivals(message.value for message in await broker.messages())


class TestAKafkaMessage:
    async def test_is_the_whole_event_under_its_key(
        self, broker: KafkaBroker, sink: KafkaSink
    ) -> None:
        assert await sink.send([event("github:octo/repo#7", 1, 1)]) == [None]
        [message] = await broker.messages()
        assert message.key == b"github:octo/repo#7"
        assert message.headers == {"content-type": b"application/cloudevents+json"}
        told = json.loads(message.value)
        assert (told["id"], told["type"]) == ("github:octo/repo#7/1", "towpath.parcel.sent")

    async def test_is_in_the_partition_of_its_key(
        self, broker: KafkaBroker, sink: KafkaSink
    ) -> None:
        """aiokafka's own partitioner, and so those of other clients, choose the same partition."""
        from aiokafka.partitioner import DefaultPartitioner  # noqa: PLC0415 # pyright: ignore

        events = [event(source.key, 0, seq) for seq, source in enumerate(some_events(20, 2))]
        assert await sink.send(events) == [None] * 40
        messages = await broker.messages()
        assert len({message.partition for message in messages}) > 1
        for message in messages:
            assert message.partition == DefaultPartitioner()(message.key, [0, 1, 2, 3], [])


class TestAnEventThatKafkaRefuses:
    async def test_is_set_aside_and_its_key_goes_on(
        self, broker: KafkaBroker, sink: KafkaSink
    ) -> None:
        """It is too large to be sent at all."""
        large = event("a", 2, 2, padding=2_000_000)
        outcomes = await sink.send([event("a", 1, 1), large, event("a", 3, 3)])
        assert outcomes[::2] == [None, None]
        assert isinstance(outcomes[1], Refusal)
        assert "too large" in outcomes[1].reason
        assert await arrived(broker) == {"a": [1, 3]}

    @pytest.mark.parametrize("error", [TOO_LARGE, POLICY])
    async def test_is_found_in_its_batch(
        self, broker: KafkaBroker, sink: KafkaSink, error: int
    ) -> None:
        """Kafka refuses a batch of messages as one; sent one by one, the valid ones are
        accepted.
        """
        await sink.send([event("z", 1, 99)])
        broker.refuse(error)
        events = [event(f"k{key}", 1, key) for key in range(8)]
        assert await sink.send(events) == [None] * 8
        broker.refuse(error, times=2)
        [outcome] = await sink.send([event("a", 1, 1)])
        assert isinstance(outcome, Refusal)

    async def test_keeps_later_events_of_its_key_for_the_next_send(
        self, broker: KafkaBroker, sink: KafkaSink
    ) -> None:
        await sink.send([event("z", 1, 99)])
        broker.refuse(TOO_LARGE)
        assert await sink.send([event("a", 1, 1), event("a", 2, 2)]) == [None, Behind()]
        assert await sink.send([event("a", 2, 2)]) == [None]
        assert (await arrived(broker))["a"] == [1, 2]


class TestAKafkaBrokerInTrouble:
    @pytest.mark.parametrize("error", [NOT_ALLOWED, OUT_OF_ORDER])
    async def test_that_accepts_no_event_counts_as_unreachable(
        self, broker: KafkaBroker, sink: KafkaSink, error: int
    ) -> None:
        """Its error may be temporary; a producer that cannot be used any more is replaced."""
        await sink.send([event("z", 1, 99)])
        broker.refuse(error)
        events = [event("a", 1, 1), event("a", 2, 2)]
        with pytest.raises(SinkUnreachable) as said:
            await sink.send(events)
        assert said.value.reason
        assert await sink.send(events) == [None, None]
        assert (await arrived(broker))["a"] == [1, 2]

    async def test_that_is_down_is_an_error_in_time_and_with_the_reason(
        self, broker: KafkaBroker, sink: KafkaSink
    ) -> None:
        broker.down()
        async with asyncio.timeout(HANGS):
            with pytest.raises(SinkUnreachable, match="Connection refused"):
                await sink.send([event("a", 1, 1)])
        broker.up()
        assert await sink.send([event("a", 1, 1)]) == [None]
        assert await arrived(broker) == {"a": [1]}

    async def test_that_hesitates_is_asked_again_within_the_time_limit(
        self, broker: KafkaBroker, sink: KafkaSink
    ) -> None:
        broker.refuse(NOT_LEADER, times=3)
        assert await sink.send([event("a", 1, 1), event("a", 2, 2)]) == [None, None]
        assert await arrived(broker) == {"a": [1, 2]}

    async def test_is_not_waited_for_when_the_send_is_cancelled(self, broker: KafkaBroker) -> None:
        """No event of it is sent later."""
        sink = KafkaSink(broker.address, TOPIC, limit=minutes(10))
        broker.down()
        async with asyncio.timeout(HANGS):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await sink.send([event("a", 1, 1)])
        broker.up()
        assert await sink.send([event("b", 1, 2)]) == [None]
        assert await arrived(broker) == {"b": [1]}

    async def test_gets_everything_in_order_through_outages(
        self, ledger: Ledger, broker: KafkaBroker, caplog: pytest.LogCaptureFixture
    ) -> None:
        sink = KafkaSink(broker.address, TOPIC, limit=seconds(1))
        async with Courier(ledger, [sink], options=QUICK):
            for number in range(1, 41):
                await put(ledger, *(an_event(f"k{key}", number) for key in range(5)))
                if number in (10, 25):
                    broker.down()
                if number in (15, 30):
                    await said(caplog, "sink.unreachable")
                    broker.up()
                if number in (18, 33):
                    broker.refuse(TOO_LARGE)
                if number in (20, 35):
                    broker.refuse(OUT_OF_ORDER)
            await all_gone(ledger, "kafka")
        assert await arrived(broker) == expected(5, 40)
        assert await ledger.outbox.refused("kafka") == []


class TestMakingAKafkaSink:
    @pytest.mark.parametrize("option", ["acks", "enable.idempotence", "partitioner"])
    def test_refuses_options_that_its_guarantee_depends_on(self, option: str) -> None:
        with pytest.raises(InvalidOption, match=option) as refusal:
            KafkaSink("127.0.0.1:1", TOPIC, options={option: "0"})
        assert refusal.value.option == "options"

    def test_refuses_an_unknown_option_without_repeating_its_value(self) -> None:
        with pytest.raises(InvalidOption) as refusal:
            KafkaSink("127.0.0.1:1", TOPIC, options={"sasl.pasword": "canary"})
        assert "sasl.pasword" in str(refusal.value)
        assert "canary" not in str(refusal.value)

    def test_refuses_an_invalid_name(self) -> None:
        with pytest.raises(InvalidName):
            KafkaSink("127.0.0.1:1", TOPIC, name="My Kafka")

    def test_without_the_library_names_what_to_install(self) -> None:
        program = (
            "import sys; sys.modules['confluent_kafka'] = None\n"
            "from towpath.ledger.errors import SinkNotInstalled\n"
            "from towpath.ledger.outbox.sinks.kafka import KafkaSink\n"
            "try: KafkaSink('127.0.0.1:1', 'events')\n"
            "except SinkNotInstalled as error: print(error.remedy)\n"
        )
        ran = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        assert "towpath[kafka]" in ran.stdout
