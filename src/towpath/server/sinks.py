"""Where events leave the server: the sinks that the options ask for, and the courier's life."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from types import MappingProxyType

import msgspec

from towpath.calls.caller import Caller
from towpath.calls.errors import CallRefused
from towpath.calls.signature import Purpose, derived
from towpath.calls.target import parse_target
from towpath.clock import seconds
from towpath.engine.engine import Engine
from towpath.errors import InvalidOption, ServerError
from towpath.ids import stream_name
from towpath.ledger.errors import SinkUnreachable
from towpath.ledger.ledger import Ledger
from towpath.ledger.outbox.courier import Courier
from towpath.ledger.outbox.event import Event
from towpath.ledger.outbox.sinks.kafka import KafkaSink
from towpath.ledger.outbox.sinks.port import Outcome, Sink
from towpath.ledger.outbox.sinks.redis_stream import KEPT, RedisStreamSink
from towpath.ledger.outbox.sinks.webhook import WebhookSink
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics

REDIS, KAFKA, WEBHOOK = "redis", "kafka", "webhook"
_WITHIN = seconds(15)
"""How long a receiver may take for an event."""
_NOTHING: Mapping[str, str] = MappingProxyType({})


class EventsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Who gets events. Shown without URL, options and secrets: they give access."""

    sinks: tuple[str, ...] = ()
    """Some of redis, kafka, webhook: the same names as those of the ledger's sinks."""
    stream: str = "events"
    kept: int = KEPT
    """Entries that the stream keeps, about."""
    kafka_servers: str | None = None
    kafka_topic: str = "towpath.events"
    kafka_options: Mapping[str, str] = _NOTHING
    """librdkafka's."""
    webhook_url: str | None = None
    secrets: tuple[str, ...] = ()
    """What the webhook's calls are signed with (`whsec_…`)."""
    allow: tuple[str, ...] = ()
    """Networks, addresses and hosts that calls may reach beside public ones."""

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.sinks) - {REDIS, KAFKA, WEBHOOK}):
            rule = f"must be some of {REDIS}, {KAFKA}, {WEBHOOK}"
            raise InvalidOption("events.sinks", unknown, rule=rule)
        stream_name(self.stream)
        self._check(KAFKA, "events.kafka_servers", self.kafka_servers)
        self._check(WEBHOOK, "events.webhook_url", self.webhook_url)
        if WEBHOOK in self.sinks and not self.secrets:
            rule = "the sink webhook needs one to be signed with (`whsec_…`)"
            raise InvalidOption("calls.secrets", "none", rule=rule)

    def _check(self, sink: str, setting: str, value: str | None) -> None:
        """A sink has what it needs; and what was said for a sink is not said in vain.

        With no sink at all it may stay: that is how events are switched off for a while.
        """
        if sink in self.sinks and not value:
            rule = f"the sink {sink} needs it; or take {sink} out of events.sinks"
            raise InvalidOption(setting, "none", rule=rule)
        if self.sinks and sink not in self.sinks and value:
            rule = f"{setting} is set: add {sink}, or leave that out"
            raise InvalidOption("events.sinks", ",".join(self.sinks), rule=rule)

    def __repr__(self) -> str:
        return f"EventsOptions({', '.join(self.sinks) or 'no sinks'})"


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
        stream, kept = self._options.stream, self._options.kept
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
