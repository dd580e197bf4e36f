"""Sinks in memory: one that accepts everything, one that waits, one that fails as scripted."""

import asyncio
import json
from collections.abc import Sequence

from towpath.ledger.errors import SinkUnreachable
from towpath.ledger.outbox.event import OutboxEvent, Outcome

AWAY = SinkUnreachable("events", "no route")


class MemorySink:
    """A sink in memory that answers by event id as its *answers* say; it accepts all other
    events.
    """

    def __init__(self, name: str = "events", answers: dict[str, Outcome] | None = None) -> None:
        self.name = name
        self.answers = answers or {}
        self.bodies: list[bytes] = []
        self.batches: list[list[str]] = []
        self.closed = False

    async def send(self, events: Sequence[OutboxEvent]) -> Sequence[Outcome]:
        self.batches.append([event.id for event in events])
        outcomes = [self.answers.get(event.id) for event in events]
        taken = [event for event, outcome in zip(events, outcomes, strict=True) if outcome is None]
        self.bodies += [event.encoded() for event in taken]
        return outcomes

    async def close(self) -> None:
        self.closed = True

    @property
    def ids(self) -> list[str]:
        return [json.loads(body)["id"] for body in self.bodies]


class HeldSink(MemorySink):
    """Accepts nothing until it is opened; counts the sends under way."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.open = asyncio.Event(), asyncio.Event()
        self.cut = 0

    async def send(self, events: Sequence[OutboxEvent]) -> Sequence[Outcome]:
        self.reached.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cut += 1
            raise
        return await super().send(events)


class FailingSink(MemorySink):
    """Fails as *failures* says, send by send; then it accepts everything."""

    def __init__(self, *failures: Exception | None) -> None:
        super().__init__()
        self.failures = list(failures)

    async def send(self, events: Sequence[OutboxEvent]) -> Sequence[Outcome]:
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        return await super().send(events)
