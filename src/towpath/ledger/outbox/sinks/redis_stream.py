"""A stream in Redis or Valkey: the sink that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from towpath.engine.check import integer
from towpath.engine.engine import Engine
from towpath.engine.space import MOST_KEPT
from towpath.errors import ServerError
from towpath.ids import sink_name, stream_name
from towpath.ledger.errors import SinkUnreachable
from towpath.ledger.outbox.event import OutboxEvent, Outcome
from towpath.ledger.outbox.options import DEFAULTS


class RedisStreamSink:
    """Appends events to `towpath:stream:<stream>`: `id`, `type` and the whole `event` as JSON.

    The stream keeps about the last *kept* entries, read or not. A batch is appended in one round
    trip, completely or not at all; a batch that is sent again after a timeout may be in the stream
    twice.
    """

    def __init__(
        self,
        engine: Engine,
        stream: str = DEFAULTS.redis_stream,
        *,
        name: str = "events",
        kept: int = DEFAULTS.redis_kept,
    ) -> None:
        self.name = sink_name(name)
        self._engine, self._stream = engine, stream_name(stream)
        self._kept = integer("kept", kept, 1, MOST_KEPT)

    async def send(self, events: Sequence[OutboxEvent]) -> Sequence[Outcome]:
        """Append all *events*. Raises SinkUnreachable for any error of Redis, as it may pass."""
        entries = [
            {"id": event.id, "type": event.type, "event": event.encoded()} for event in events
        ]
        try:
            await self._engine.publish(self._stream, entries, cap=self._kept)
        except ServerError as error:
            raise SinkUnreachable(self.name, str(error)) from error
        return [None] * len(events)

    async def close(self) -> None:
        """Do nothing: the owner of the engine closes it."""
