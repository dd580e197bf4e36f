"""A row's producer: `python -m benchmarks.peers.side.produce MODULE`.

Reads one order per line on stdin (JSON) and answers each with a line on stdout; ends with stdin.
The row's module has `submit(payload)`, perhaps `submit_many(payloads)`, `submit_later(payload,
due)` and `submit_many_later(payloads, dues)` with due times in seconds of the wall clock, and
`connect()`; plain functions or async ones.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import random
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

Payload: TypeAlias = dict[str, Any]

PAYLOAD_BYTES = 106
BATCH = 500


def payload_of(kind: str, *, run: str = "", of: float = 0, at: float = 0) -> Payload:
    """A job that is 106 bytes as JSON."""
    payload: Payload = {"kind": kind, "run": run, "of": of, "at": at, "pad": ""}
    payload["pad"] = "x" * (PAYLOAD_BYTES - len(json.dumps(payload)))
    return payload


class Producer:
    """Carries out orders with the functions of a row."""

    def __init__(self, row: Any) -> None:
        self._row = row

    async def one(self, order: Payload) -> Payload:
        """Submits one after the other; returns how long that took."""
        payload = payload_of("drain", run=order["run"], of=order["of"])
        submit: Callable[[Payload], Any] = self._row.submit
        began = time.perf_counter()
        for _ in range(order["count"]):
            given = submit(payload)
            if inspect.isawaitable(given):
                await given
        return {"seconds": time.perf_counter() - began}

    async def blocking(self, order: Payload) -> Payload:
        """The same in one thread without an event loop, if the row has a blocking way too."""
        payload = payload_of("drain", run=order["run"], of=order["of"])
        submit: Callable[[Payload], Any] = self._row.submit_blocking

        def submit_all() -> float:
            began = time.perf_counter()
            for _ in range(order["count"]):
                submit(payload)
            return time.perf_counter() - began

        return {"seconds": await asyncio.to_thread(submit_all)}

    async def many(self, order: Payload) -> Payload:
        """Submits in batches of 500."""
        payload = payload_of("drain", run=order["run"], of=order["of"])
        left = order["count"]
        began = time.perf_counter()
        while left:
            batch = min(BATCH, left)
            await _done(self._row.submit_many([payload] * batch))
            left -= batch
        return {"seconds": time.perf_counter() - began}

    async def pickup(self, order: Payload) -> Payload:
        """Submits one job with the time at which its submit began."""
        await _done(self._row.submit(payload_of("pickup", at=time.monotonic() * 1000)))
        return {}

    async def delayed(self, order: Payload) -> Payload:
        """Submits jobs that are due so many milliseconds from now, at whole milliseconds."""
        now = round(time.time(), 3)
        for delay in order["delays_ms"]:
            due = round(now + delay / 1000, 3)
            payload = payload_of("delayed", at=round(due * 1000))
            await _done(self._row.submit_later(payload, due))
        return {}

    async def storm(self, order: Payload) -> Payload:
        """Submits jobs that fall due within a span, in any order; returns when the first is due."""
        first, count = time.time() + order["lead_s"], order["count"]
        dues = [round(first + order["span_s"] * n / count, 3) for n in range(count)]
        random.Random(count).shuffle(dues)
        for at in range(0, count, BATCH):
            some = dues[at : at + BATCH]
            payloads = [
                payload_of("storm", run=order["run"], of=count, at=round(due * 1000))
                for due in some
            ]
            await _done(self._row.submit_many_later(payloads, some))
        return {"first_ms": first * 1000, "in_time": time.time() < first}

    async def long(self, order: Payload) -> Payload:
        """Submits one job that runs for so many seconds."""
        await _done(self._row.submit(payload_of("long", of=order["seconds"])))
        return {}


async def serve(row: Any) -> None:
    if hasattr(row, "connect"):
        await _done(row.connect())
    producer = Producer(row)
    _answer({"ready": True})
    # In a thread: the row's event loop goes on between orders.
    while line := await asyncio.to_thread(sys.stdin.readline):
        order: Payload = json.loads(line)
        carry_out: Callable[[Payload], Coroutine[Any, Any, Payload]]
        carry_out = getattr(producer, order["do"])
        _answer(await carry_out(order))
    sys.stdout.flush()
    # Without cleaning up: some libraries wait for their connections, which are not needed any more.
    os._exit(0)


async def _done(given: Any) -> None:
    if inspect.isawaitable(given):
        await given


def _answer(facts: Payload) -> None:
    print(json.dumps(facts), flush=True)


def main() -> None:
    row = importlib.import_module(sys.argv[1])
    try:
        uvloop: Any = importlib.import_module("uvloop")
    except ImportError:
        asyncio.run(serve(row))
    else:
        uvloop.run(serve(row))


if __name__ == "__main__":
    main()
