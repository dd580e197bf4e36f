"""Measures wall time and CPU of both sides, in rounds in which contenders take turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import median

import msgspec

from towpath.embedded import EmbeddedServer, RedisConnection, Reply
from towpath.embedded.process import Word, fields


class Cost(msgspec.Struct, frozen=True):
    """The seconds for a number of jobs: wall time, CPU of this process, CPU of Redis."""

    jobs: int
    wall: float
    client: float
    server: float

    @property
    def rate(self) -> float:
        """Jobs per second."""
        return self.jobs / self.wall

    @property
    def wall_us(self) -> float:
        return self.wall / self.jobs * 1e6

    @property
    def client_us(self) -> float:
        return self.client / self.jobs * 1e6

    @property
    def server_us(self) -> float:
        return self.server / self.jobs * 1e6


class Meter:
    """Reads the clocks of one Redis and of this process."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._connection = RedisConnection(server.address, within=60)

    async def cost(self, jobs: int, work: Awaitable[object]) -> Cost:
        """The cost of *work*, for *jobs* jobs."""
        server, client, wall = self.server_cpu(), time.process_time(), time.perf_counter()
        await work
        wall, client = time.perf_counter() - wall, time.process_time() - client
        return Cost(jobs, wall, client, self.server_cpu() - server)

    def server_cpu(self) -> float:
        """The CPU seconds that Redis has used."""
        said = self.info("cpu")
        return float(said["used_cpu_user"]) + float(said["used_cpu_sys"])

    def ask(self, *words: Word) -> Reply:
        """Sends one raw command; returns its reply."""
        return self._connection.ask(*words)

    def info(self, section: str) -> dict[str, str]:
        return fields(self.ask("INFO", section))

    def calls(self) -> dict[str, int]:
        """How often each command was called since the last `forget_calls`, including calls in
        scripts.
        """
        said = self.info("commandstats")
        return {
            name.removeprefix("cmdstat_"): int(text.partition(",")[0].removeprefix("calls="))
            for name, text in said.items()
        }

    def forget_calls(self) -> None:
        self.ask("CONFIG", "RESETSTAT")

    def memory(self) -> int:
        """The bytes of the data in Redis, including this connection."""
        return int(self.info("memory")["used_memory"])

    def size_of(self, key: str) -> int:
        """The bytes of one key."""
        size = self.ask("MEMORY", "USAGE", key, "SAMPLES", 0)
        return size if isinstance(size, int) else 0

    def empty(self) -> None:
        """Removes all data."""
        self.ask("FLUSHALL", "SYNC")

    async def until_waiting(self, clients: int) -> None:
        """Returns when so many clients wait in a blocking read. Raises TimeoutError."""
        async with asyncio.timeout(30):
            while int(self.info("clients")["blocked_clients"]) < clients:  # noqa: ASYNC110 -- only the server knows
                await asyncio.sleep(0.001)

    def close(self) -> None:
        self._connection.close()


Contender = Callable[[], Awaitable[Cost]]


async def in_turns(rounds: int, contenders: Mapping[str, Contender]) -> dict[str, list[Cost]]:
    """The cost of each contender in each round.

    Machines are noisy, so contenders take turns within a round, every other round backwards: a
    disturbance slows neighbours too, and ratios are taken within a round.
    """
    costs: dict[str, list[Cost]] = {name: [] for name in contenders}
    for number in range(rounds):
        order = list(contenders)
        for name in order if number % 2 == 0 else reversed(order):
            costs[name].append(await contenders[name]())
    return costs


def rates(costs: Sequence[Cost]) -> list[float]:
    return [cost.rate for cost in costs]


def server_us(costs: Sequence[Cost]) -> list[float]:
    return [cost.server_us for cost in costs]


def wall_us(costs: Sequence[Cost]) -> list[float]:
    return [cost.wall_us for cost in costs]


def spent(costs: Sequence[Cost]) -> str:
    """How the time of one job was spent, in words."""
    wall = median(cost.wall_us for cost in costs)
    client = median(cost.client_us for cost in costs)
    server = median(cost.server_us for cost in costs)
    return f"{wall:.1f} µs a job, {client:.1f} of client CPU and {server:.1f} of server CPU"


def percentile(samples: Sequence[float], share: float) -> float:
    """The value that *share* (0 to 1) of the samples do not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
