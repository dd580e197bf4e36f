"""The rate of a healthy queue beside one in trouble, against the rate of the same queue alone.

    .venv/bin/python -m benchmarks.beside_trouble

Two kinds of trouble, in one process with one engine: the other queue's shard is frozen while many
calls wait for it, or the other queue's key is corrupt so that each call is refused.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from statistics import median

from towpath.clock import minutes, steady
from towpath.embedded import CommandRefused, EmbeddedCluster, EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import Complete, new_job
from towpath.errors import ServerError

SECONDS, ROUNDS, AT_ONCE, BATCH = 0.5, 15, 20, 100


async def main() -> None:
    with EmbeddedCluster(masters=3, options={"cluster-require-full-coverage": "no"}) as cluster:
        async with Engine(cluster.url) as engine:
            bad, frozen = "q0", next(master for master in cluster.masters if _serves(master, "q0"))
            healthy = next(queue for n in range(1, 100) if not _serves(frozen, queue := f"q{n}"))
            await report(
                "a frozen shard", engine, healthy=healthy, bad=bad,
                begin=frozen.pause, end=frozen.unpause,
            )  # fmt: skip
    with EmbeddedServer() as server:
        async with Engine(server.url) as engine:
            await report(
                "a broken key", engine, healthy="healthy", bad="broken",
                begin=lambda: server.ask("SET", "{broken}:meta", "not a hash"),
                end=lambda: server.ask("DEL", "{broken}:meta"),
            )  # fmt: skip


async def report(
    name: str,
    engine: Engine,
    *,
    healthy: str,
    bad: str,
    begin: Callable[[], object],
    end: Callable[[], object],
) -> None:
    """Prints the median of short rounds of each kind, which take turns because machines are
    noisy.
    """
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(ROUNDS):
        alone.append(await rate(engine, healthy))
        begin()
        pressing = [asyncio.create_task(_press(engine, bad)) for _ in range(AT_ONCE)]
        beside.append(await rate(engine, healthy))
        for task in pressing:
            task.cancel()
        await asyncio.gather(*pressing, return_exceptions=True)
        end()
    before, now = median(alone), median(beside)
    sys.stdout.write(
        f"{name}: {before:,.0f} jobs/s alone, {now:,.0f} beside it: {now / before:.0%}\n"
    )


async def rate(engine: Engine, queue: str) -> float:
    """Jobs submitted and completed per second."""
    done, began = 0, steady()
    while steady() - began < SECONDS:
        await engine.submit_many(queue, [new_job(b"x") for _ in range(BATCH)])
        leases = await engine.claim(queue, worker="w", lease=minutes(1), count=BATCH)
        await engine.settle([Complete(lease) for lease in leases])
        done += len(leases)
    return done / (steady() - began)


async def _press(engine: Engine, queue: str) -> None:
    """Repeats a failing call twice a second."""
    while True:
        with suppress(ServerError):
            await engine.inspect.counts(queue)
        await asyncio.sleep(0.5)


def _serves(server: EmbeddedServer, queue: str) -> bool:
    try:
        server.ask("EXISTS", f"{{{queue}}}:queue")
    except CommandRefused:
        return False
    return True


if __name__ == "__main__":
    asyncio.run(main())
