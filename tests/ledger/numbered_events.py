"""Events for tests, numbered per key, so that missing or reordered ones are noticed."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from towpath.clock import milliseconds, seconds
from towpath.ledger.ledger import Ledger
from towpath.ledger.outbox.backoff import CourierOptions
from towpath.ledger.outbox.event import NewEvent

QUICK = CourierOptions(
    look_every=milliseconds(20),
    first_pause=milliseconds(10),
    longest_pause=milliseconds(100),
    lease=seconds(2),
)


def an_event(key: str, number: int = 1) -> NewEvent:
    """The event *number* about *key*; its id says both."""
    data = json.dumps({"number": number}).encode()
    return NewEvent(type="towpath.parcel.sent", key=key, data=data, id=f"{key}/{number}")


def some_events(keys: int, each: int) -> list[NewEvent]:
    """Several keys, taking turns, from number 1."""
    return [an_event(f"k{key}", number) for number in range(1, each + 1) for key in range(keys)]


async def put(ledger: Ledger, *events: NewEvent) -> None:
    await ledger.write(lambda connection: ledger.outbox.put(connection, events))


def first_arrivals(bodies: Iterable[bytes]) -> dict[str, list[int]]:
    """The numbers that arrived for each key, in that order, each event id counted once."""
    seen: dict[str, Mapping[str, Any]] = {}
    for body in bodies:
        told = json.loads(body)
        assert seen.setdefault(told["id"], told) == told, "the same event, told differently"
    arrived: dict[str, list[int]] = {}
    for told in seen.values():
        arrived.setdefault(told["subject"], []).append(told["data"]["number"])
    return arrived


def expected(keys: int, each: int) -> dict[str, list[int]]:
    """What `parcels` looks like when all of it arrived in order."""
    return {f"k{key}": list(range(1, each + 1)) for key in range(keys)}
