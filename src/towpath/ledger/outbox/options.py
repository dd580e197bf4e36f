"""The options of the outbox: which sinks get the ends of recorded jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, cast

from msgspec import Meta

from towpath.errors import InvalidOption
from towpath.ids import stream_name
from towpath.options import Allowed, FieldInfo, Options, Secret, Signing, listed

REDIS, KAFKA, WEBHOOK = SINKS = ("redis", "kafka", "webhook")
"""The sinks that can be configured, by their names in the outbox."""


def _sinks(value: object) -> object:
    """Read `redis,kafka` or a list; `none` = no sink."""
    found = listed(value)
    names = cast("list[str]", found if isinstance(found, list) else [])
    if names == ["none"]:
        return []
    if set(names) - set(SINKS) or len(set(names)) < len(names):
        rule = f"must be some of {', '.join(SINKS)}, each once; or none"
        raise InvalidOption("sinks", names, rule=rule)
    return cast("object", found)


def _stream(value: object) -> object:
    return stream_name(value) if isinstance(value, str) else value


class OutboxOptions(Options, frozen=True, kw_only=True):
    """The outbox: where the ends of recorded jobs are sent; the same for all of a database."""

    sinks: Annotated[tuple[str, ...], FieldInfo(read=_sinks)] = (REDIS,)
    """Sinks that receive events: some of redis, kafka, webhook; or none."""
    redis_stream: Annotated[str, FieldInfo(read=_stream)] = "events"
    """Name of the Redis stream: its key is `towpath:stream:` and this name."""
    redis_kept: Annotated[int, Meta(ge=1, le=10_000_000)] = 100_000
    """About how many entries the Redis stream keeps, whether they were read or not."""
    kafka_servers: str | None = None
    """Kafka's bootstrap servers: `kafka-1:9092,kafka-2:9092`."""
    kafka_topic: str = "towpath.events"
    """The Kafka topic; it must exist, unless the brokers create topics."""
    kafka_options: Mapping[str, Secret] = {}
    """More librdkafka options, for TLS and passwords: `sasl.username=towpath`, one per line; in
    the settings file, a table."""
    webhook_url: Secret | None = None
    """URL to post events to; calls are signed, see `towpath secret`."""
    secrets: Signing = ()
    allow: Allowed = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _sinks(list(self.sinks))
        stream_name(self.redis_stream)
        self._check(KAFKA, "kafka_servers", self.kafka_servers)
        self._check(WEBHOOK, "webhook_url", self.webhook_url)
        if WEBHOOK in self.sinks and not self.secrets:
            rule = "the sink webhook needs a secret for signing (`whsec_…`)"
            raise InvalidOption("secrets", "none", rule=rule)

    def _check(self, sink: str, option: str, value: str | None) -> None:
        """Check that a sink in use has its option, and that no option is set for an unused sink.

        With `sinks = none` options may stay set, so that events can be switched off for a while.
        """
        if sink in self.sinks and not value:
            rule = f"the sink {sink} needs this setting: set it, or remove {sink} from outbox.sinks"
            raise InvalidOption(option, "none", rule=rule)
        if self.sinks and sink not in self.sinks and value:
            rule = f"outbox.{option} is set: add {sink}, or remove outbox.{option}"
            raise InvalidOption("sinks", ",".join(self.sinks), rule=rule)


DEFAULTS = OutboxOptions()
