"""A topic of Kafka, or of a server that speaks its protocol.

It uses confluent-kafka (librdkafka), not aiokafka: a courier must be able to give up a batch and
know that nothing of it is sent later. librdkafka can purge its queue. aiokafka's idempotent
producer retries for ever, and its `stop` waits for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from towpath.clock import Duration, duration_ms, seconds
from towpath.errors import InvalidOption
from towpath.ids import sink_name
from towpath.ledger.errors import SinkNotInstalled, SinkUnreachable
from towpath.ledger.outbox.event import CONTENT_TYPE, Behind, OutboxEvent, Outcome, Refusal

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer

LIMIT = seconds(10)
"""How long to wait for Kafka to acknowledge a batch."""
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
_OURS: Mapping[str, Any] = MappingProxyType(
    {
        "acks": "all",
        "enable.idempotence": True,
        # The same partition for a key as Java's clients choose.
        "partitioner": "murmur2_random",
        # No timeout for single messages: a batch is only given up as a whole.
        "message.timeout.ms": 0,
        "linger.ms": 0,
        "log_level": 4,
    }
)
_HEADERS: list[tuple[str, str | bytes | None]] = [("content-type", CONTENT_TYPE)]
_REFUSALS = frozenset(
    {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG", "INVALID_MSG_SIZE",
     "INVALID_TIMESTAMP", "INVALID_RECORD", "POLICY_VIOLATION"}
)  # fmt: skip
"""Errors with which Kafka refuses a message for good."""


class KafkaSink:
    """Produces events to *topic*, keyed by their key, as CloudEvents in structured JSON.

    An event counts as sent when all in-sync replicas have it; Kafka drops messages that the client
    repeats after a broken connection. *options* are librdkafka's (`sasl.username`,
    `ssl.ca.location`, …), except those that the guarantee depends on. Events of one key are sent
    one per round trip. Raises SinkNotInstalled, InvalidOption.
    """

    def __init__(
        self,
        brokers: str,
        topic: str,
        *,
        name: str = "kafka",
        options: Mapping[str, Any] = _NO_OPTIONS,
        limit: Duration = LIMIT,
    ) -> None:
        self.name, self._topic = sink_name(name), topic
        if taken := sorted(_OURS.keys() & options.keys()):
            raise InvalidOption(
                "options",
                taken,
                rule="cannot be overridden: the delivery guarantee depends on them",
            )
        self._limit = duration_ms("limit", limit, least=seconds(1)) / 1000
        self._heard = _LastWord()
        self._config = {**options, **_OURS, "bootstrap.servers": brokers}
        self._producer: Producer | None = self._new_producer()

    async def send(self, events: Sequence[OutboxEvent]) -> Sequence[Outcome]:
        """Produce *events*. Returns their outcomes; None = Kafka has the event. Raises
        SinkUnreachable.
        """
        self._producer = self._producer or self._new_producer()
        round_ = _Round(self._producer, self._topic, events)
        running = asyncio.ensure_future(asyncio.to_thread(round_.run, self._limit))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            round_.stop()
            await running
            self._producer = None
            raise
        if round_.trouble:
            self._producer = None  # its state is unknown; the next send makes a new one
        if not round_.outcomes:
            raise SinkUnreachable(self.name, self._heard.word or round_.trouble)
        return [round_.outcomes.get(event.seq, Behind()) for event in events]

    async def close(self) -> None:
        """Drop the producer with its connections. No message is in flight between two sends."""
        self._producer = None

    def _new_producer(self) -> Producer:
        try:
            from confluent_kafka import KafkaException, Producer  # noqa: PLC0415 -- an extra
        except ModuleNotFoundError as error:
            raise SinkNotInstalled(self.name, "confluent-kafka is not installed") from error
        self._heard.word = ""
        try:
            return Producer(self._config, logger=self._heard.logger)
        except KafkaException as error:
            rule = f"librdkafka refuses them: {error.args[0].str()}"
            raise InvalidOption("options", "…", rule=rule) from None


class _Round:
    """The send of one batch, with at most one event of each key in flight.

    Kafka keeps the order within a partition only as long as nothing fails: with two events of a key
    in flight, it may accept the second but not the first.
    """

    def __init__(self, producer: Producer, topic: str, events: Sequence[OutboxEvent]) -> None:
        self._producer, self._topic = producer, topic
        self.outcomes: dict[int, Outcome] = {}
        self.trouble = ""
        """The error instead of an acknowledgement; the producer must not be used again then."""
        self._waiting: dict[str, deque[OutboxEvent]] = {}
        for event in events:
            self._waiting.setdefault(event.key, deque()).append(event)
        self._suspects: list[OutboxEvent] = []

    def run(self, limit: float) -> None:
        """Produce the batch and wait for the acknowledgements. Blocks, so it runs in a thread."""
        for key in self._waiting:
            self._next(key)
        self._flush(limit)
        # Kafka refuses whole batches of messages. Sending each alone shows which one it refuses.
        for event in self._suspects:
            if not self.trouble:
                self._produce(event, partial(self._on_delivery, event, alone=True))
                self._flush(limit)

    def stop(self) -> None:
        """Make `run` end now. Called from another thread."""
        self.trouble = "it was cancelled"
        self._producer.purge()

    def _flush(self, limit: float) -> None:
        try:
            if self._producer.flush(limit):
                self.trouble = self.trouble or f"no acknowledgement within {limit:g} s"
                self._producer.purge()
                self._producer.flush(1)
        except (_kafka_exception(), SystemError) as error:
            # librdkafka may raise a fatal error from any call. During a callback, Python turns it
            # into a SystemError.
            self.trouble = str(error.__cause__ or error)

    def _next(self, key: str) -> None:
        """Produce the next event of *key*; if it is refused right away, the one after it."""
        waiting = self._waiting[key]
        while waiting and not self.trouble:
            event = waiting.popleft()
            if self._produce(event, partial(self._on_delivery, event)):
                return

    def _produce(self, event: OutboxEvent, answered: Any) -> bool:
        """Hand *event* to librdkafka. Returns False if it is not accepted."""
        value, key = event.encoded(), event.key.encode()
        try:
            self._producer.produce(
                self._topic, value, key=key, headers=_HEADERS, on_delivery=answered
            )
        except _kafka_exception() as error:
            self._note_failure(event, error.args[0])
            return False
        except BufferError as error:
            self.trouble = str(error)
            return False
        return True

    def _on_delivery(
        self, event: OutboxEvent, error: KafkaError | None, _: object, *, alone: bool = False
    ) -> None:
        if error is None:
            self.outcomes[event.seq] = None
            if not alone:
                self._next(event.key)
        elif error.name() in _REFUSALS and not alone:
            self._suspects.append(event)
        else:
            self._note_failure(event, error)

    def _note_failure(self, event: OutboxEvent, error: KafkaError) -> None:
        if error.name() in _REFUSALS:
            self.outcomes[event.seq] = Refusal(f"Kafka refused it: {error.str()}")
        else:
            self.trouble = self.trouble or error.str()


class _LastWord(logging.Handler):
    """Keeps librdkafka's last log line about its connections, which otherwise goes to stderr."""

    def __init__(self) -> None:
        super().__init__()
        self.word = ""
        self.logger = logging.Logger("towpath.kafka")
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.word = record.getMessage().rpartition("]: ")[2]


def _kafka_exception() -> type[Exception]:
    from confluent_kafka import KafkaException  # noqa: PLC0415 -- an extra; there if we are here

    return KafkaException
