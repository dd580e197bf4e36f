"""The raw limit for comparison: EVALSHA of a small script, with redis-py and without a client
library.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
from types import TracebackType
from typing import Any, Self

from redis.asyncio import Redis

from benchmarks.bench import PAYLOAD, Bench
from benchmarks.measure import Cost
from towpath.embedded.process import encode

SMALL = "redis.call('SET', KEYS[1], ARGV[1]) return redis.call('INCR', KEYS[2])"
"""Two writes, one of them of 100 bytes."""

LOOPED = "for i = 1, tonumber(ARGV[2]) do redis.call('SET', KEYS[1], ARGV[1]) end"

CLIENTS = 50
COUNTER = "{raw}:count"


class Raw:
    """Bare calls to the Redis of a bench, without Towpath."""

    def __init__(self, bench: Bench, *, clients: int = CLIENTS) -> None:
        self._bench, self._clients = bench, clients
        # redis-py types its commands for both of its clients at once; RESP2, as the engine.
        self._redis: Any = Redis(unix_socket_path=bench.socket, protocol=2, max_connections=clients)

    async def __aenter__(self) -> Self:
        self._small: str = await self._redis.script_load(SMALL)
        self._looped: str = await self._redis.script_load(LOOPED)
        await self._pooled(self._clients)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._redis.aclose()

    async def pooled(self, calls: int) -> Cost:
        """EVALSHA by 50 tasks over one connection pool, no pipelining."""
        return await self._bench.meter.cost(calls, self._pooled(calls))

    async def one_by_one(self, calls: int) -> Cost:
        """One EVALSHA after the other."""
        return await self._bench.meter.cost(calls, self._calls("{raw}:0", calls))

    async def bare(self, calls: int) -> Cost:
        """EVALSHA over 50 sockets without any client library: close to what a C client does."""
        return await self._bench.meter.cost(calls, self._bare(calls))

    async def set_in_lua(self, times: int, calls: int) -> Cost:
        """SET in a loop of so many *times* in a script: the cost of one command in a script."""

        async def work() -> None:
            for _ in range(calls):
                await self._redis.evalsha(self._looped, 1, "{raw}:0", PAYLOAD, times)

        return await self._bench.meter.cost(times * calls, work())

    async def _pooled(self, calls: int) -> None:
        each = calls // self._clients
        await asyncio.gather(*(self._calls(f"{{raw}}:{i}", each) for i in range(self._clients)))

    async def _calls(self, key: str, calls: int) -> None:
        for _ in range(calls):
            await self._redis.evalsha(self._small, 2, key, COUNTER, PAYLOAD)

    async def _bare(self, calls: int) -> None:
        drive_sockets(self._bench.socket, self._small, self._clients, calls)


def drive_sockets(path: str, sha: str, clients: int, calls: int) -> None:
    """Keeps one call in flight on each of *clients* sockets until *calls* were sent and
    answered.
    """
    command = encode("EVALSHA", sha, 2, "{raw}:0", COUNTER, PAYLOAD)
    with selectors.DefaultSelector() as selector:
        for _ in range(clients):
            one = socket.socket(socket.AF_UNIX)
            one.connect(path)
            selector.register(one, selectors.EVENT_READ, one)
            one.send(command)
        sent, answered = clients, 0
        while answered < calls:
            for key, _ in selector.select():
                one = key.data
                if not one.recv(64).startswith(b":"):
                    raise RuntimeError("the server did not answer with the counter")
                answered += 1
                if sent < calls:
                    one.send(command)
                    sent += 1
        for key in list(selector.get_map().values()):
            key.data.close()
