"""Claiming: its arguments, the names of its calls, and the release of jobs whose caller is gone."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from towpath.clock import DurationLike
from towpath.engine import codec
from towpath.engine.batcher import LARGEST_BATCH
from towpath.engine.check import integer
from towpath.engine.model import Call, Release
from towpath.engine.options import QueueOptions
from towpath.engine.store import Body, Store
from towpath.errors import InvalidOption, TowpathError
from towpath.ids import QueueName, lane_key, selector_name, worker_name
from towpath.supervise import detached

_ATTEMPTS_MOST = 2**20
_NUMBER_MOST = 2**53 // _ATTEMPTS_MOST - 1


SELECTORS_MOST, HELD_MOST = 100, 10_000
"""The most selectors that one claim may name, and the largest `max_held`."""
_CLOSE_S = 3.0
_UNDO_TRIES = 30


class ClaimAttempts:
    """The calls of a waiting claim that the caller has named: one for each attempt to claim. Their
    numbers are a range of their own, made from the caller's number.

    A repeated claim begins with the number of the first attempt. If the channel is further, it gets
    CallStale, and asks for the answer of the last attempt instead.
    """

    def __init__(self, call: Call) -> None:
        integer("call.number", call.number, 1, _NUMBER_MOST)
        self._channel = call.channel
        self._first = self._number = call.number * _ATTEMPTS_MOST

    def next(self) -> Call:
        """The call for the next attempt."""
        self._number += 1
        return Call(self._channel, self._number)

    def again(self, last: int) -> bool:
        """Whether *last* was an attempt of this claim; if so, the next one repeats it."""
        mine = self._number <= last < self._first + _ATTEMPTS_MOST
        self._number = last - 1
        return mine


def claim_args(
    worker: str, lease: DurationLike, count: int, lane: str | None, *, least: int = 1
) -> list[Any]:
    """The arguments of a claim's script, up to those of `Outages`."""
    return [
        worker_name(worker),
        codec.lease_ms(lease),
        integer("count", count, least, LARGEST_BATCH),
        lane_key(lane) if lane is not None else "",
    ]


def selection_args(
    selectors: Iterable[str], max_held: int | None, lane: str | None
) -> list[Any] | None:
    """The arguments behind those of `Outages`: the selectors, and how many jobs the worker may
    hold (0 = any number). None if neither is given.
    """
    if isinstance(selectors, str):
        raise InvalidOption(
            "selectors", selectors, rule="must be a list of texts, not a single text"
        )
    named = list(dict.fromkeys(map(selector_name, selectors)))
    if not named and max_held is None:
        return None
    if len(named) > SELECTORS_MOST:
        raise InvalidOption("selectors", len(named), rule=f"at most {SELECTORS_MOST}")
    if named and lane is not None:
        raise InvalidOption("selectors", lane, rule="pass a lane or selectors, not both")
    return [named, 0 if max_held is None else integer("max_held", max_held, 1, HELD_MOST)]


class Claims:
    """Sends the calls that claim. A call that its caller has not named gets a name here: if the
    caller is cancelled, the call is repeated under that name to learn which jobs it claimed, and
    these are released. Otherwise they would not run before their leases end.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._idle: list[Iterator[Call]] = []
        self._undoing: set[asyncio.Task[None]] = set()

    async def ask(
        self, verb: str, queue: QueueName, worker: str, body: Body, call: Call | None
    ) -> Any:
        """The answer of *verb*, which is claim or exchange."""
        if call is not None:
            return await self._store.write(verb, queue, body, call)
        calls = self._idle.pop() if self._idle else _new_calls()
        call = next(calls)
        try:
            return await self._store.write(verb, queue, body, call)
        except asyncio.CancelledError:
            task = detached("giving back of a claim", self._undo(verb, queue, worker, body, call))
            self._undoing.add(task)
            task.add_done_callback(self._undoing.discard)
            calls = _new_calls()  # `_undo` still needs the last answer under the old channel
            raise
        finally:
            self._idle.append(calls)

    async def close(self) -> None:
        """Wait up to three seconds for claims that are being undone, then cancel them."""
        if self._undoing:
            await asyncio.wait(self._undoing, timeout=_CLOSE_S)
        for task in self._undoing:
            task.cancel()

    async def _undo(self, verb: str, queue: QueueName, worker: str, body: Body, call: Call) -> None:
        """Release the jobs that a cancelled call has claimed. Tries for about 30 seconds; jobs that
        it cannot release come back when their leases end.
        """
        for _ in range(_UNDO_TRIES):
            with suppress(TowpathError):
                answer = await self._store.write(verb, queue, body, call)
                leases = answer[1] if verb == "exchange" else answer[0]
                if leases:
                    releases = [
                        Release(codec.decode_lease(queue, worker, entry)) for entry in leases
                    ]
                    await self._store.write("release", queue, partial(_release_items, releases))
                return
            await asyncio.sleep(1)


def _release_items(releases: list[Release], options: QueueOptions) -> list[Any]:
    return [codec.settlement_item(release, options)[1:] for release in releases]


def _new_calls() -> Iterator[Call]:
    channel = secrets.token_hex(8)
    return (Call(channel, number) for number in itertools.count(1))
