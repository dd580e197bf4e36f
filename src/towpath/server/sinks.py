"""Where events leave the server: the sinks that the options ask for, and the courier's life."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext

from towpath.calls.caller import Caller
from towpath.calls.errors import CallRefused
from towpath.calls.signature import Purpose, derived
from towpath.calls.target import parse_target
from towpath.clock import seconds
from towpath.engine.engine import Engine
from towpath.errors import InvalidOption, ServerError
from towpath.ledger.errors import SinkUnreachable
from towpath.ledger.ledger import Ledger
from towpath.ledger.outbox.courier import Courier
from towpath.ledger.outbox.event import Event
from towpath.ledger.outbox.options import KAFKA, REDIS, WEBHOOK, EventsOptions
from towpath.ledger.outbox.sinks.kafka import KafkaSink
from towpath.ledger.outbox.sinks.port import Outcome, Sink
from towpath.ledger.outbox.sinks.redis_stream import RedisStreamSink
from towpath.ledger.outbox.sinks.webhook import WebhookSink
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics

_WITHIN = seconds(15)
"""How long a receiver may take for an event."""


class Sinks:
    """The sinks of *options*. Making it checks all that was said; nothing is sent before `sending`.

    The webhook's address is the operator's own, so its host may be a private one. Raises
    InvalidOption, SecretInvalid, SinkNotInstalled.
    """

    def __init__(self, options: EventsOptions) -> None:
        self._options = options
        self._caller: Caller | None = None
        self._outside: list[Sink] = []
        if KAFKA in options.sinks:
            self._outside.append(_kafka(options))
        if WEBHOOK in options.sinks:
            self._outside.append(self._webhook(options))

    @asynccontextmanager
    async def sending(
        self, ledger: Ledger, engine: Callable[[], Engine], *, log: Log, metrics: Metrics
    ) -> AsyncGenerator[None]:
        """Send the events of *ledger* while the body runs.

        With no sinks too: what was left for one that is no longer asked for stays countable.
        """
        sinks = list(self._outside)
        if REDIS in self._options.sinks:
            sinks.append(_StreamSink(engine, self._options))
        async with self._caller or nullcontext(), Courier(ledger, sinks, log=log, metrics=metrics):
            yield

    def _webhook(self, options: EventsOptions) -> WebhookSink:
        url = options.webhook_url or ""
        try:
            host = parse_target(url).host
        except CallRefused as error:
            raise InvalidOption("events.webhook_url", "…", rule=error.reason) from None
        self._caller = Caller(allow=(host, *options.allow), timeout=_WITHIN)
        secrets = [derived(it, Purpose.EVENTS) for it in options.secrets]
        return WebhookSink(self._caller, url, secrets=secrets, name=WEBHOOK)


class _StreamSink:
    """The stream in Redis, by way of an engine that may not be there yet."""

    def __init__(self, engine: Callable[[], Engine], options: EventsOptions) -> None:
        self.name = REDIS
        self._engine, self._options = engine, options

    async def send(self, events: Sequence[Event]) -> Sequence[Outcome]:
        """Append all of *events*. Raises SinkUnreachable, also while nothing is connected."""
        try:
            engine = self._engine()
        except ServerError as error:
            raise SinkUnreachable(self.name, str(error)) from error
        stream, kept = self._options.redis_stream, self._options.redis_kept
        return await RedisStreamSink(engine, stream, name=self.name, kept=kept).send(events)

    async def close(self) -> None:
        """Nothing to close: the engine is its owner's."""


def _kafka(options: EventsOptions) -> KafkaSink:
    servers, topic = options.kafka_servers or "", options.kafka_topic
    try:
        return KafkaSink(servers, topic, name=KAFKA, options=options.kafka_options)
    except InvalidOption as error:
        # Under the name that it was set by, and without what it was set to.
        raise InvalidOption("events.kafka_options", "…", rule=error.rule) from None
