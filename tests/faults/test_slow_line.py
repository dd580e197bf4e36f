"""Large jobs over a slow connection: an answer that takes longer than a call may last never
arrives.
"""

from collections import Counter

from tests.amounts import amount
from towpath.clock import minutes, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.engine.model import Complete, Lease, new_job
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.testing.proxy import Faults, Proxy

QUEUE = "large"
MEBIBYTE = 1024 * 1024
RATE = 8 * MEBIBYTE
JOBS = amount(24, thoroughly=64)
LIMITS = Limits(answer=seconds(7), give_up=seconds(60))
"""All jobs in one answer would take longer than a reply may."""


async def submitted(engine: Engine) -> list[str]:
    """Submits large jobs, and behind them small ones; 2,000 in all."""
    await engine.queues.configure(QUEUE, QueueOptions(max_payload=2 * MEBIBYTE))
    large = [new_job(bytes(MEBIBYTE), id=f"large-{n}") for n in range(JOBS)]
    small = [new_job(b"", id=f"small-{n}") for n in range(2000 - JOBS)]
    await engine.submit_many(QUEUE, [*large, *small])
    return [job.id for job in (*large, *small)]


async def test_every_job_arrives_and_is_done_once_over_a_slow_connection(
    server: EmbeddedServer,
) -> None:
    async with (
        Engine(server.url) as direct,
        Proxy(server.address, Faults(rate=RATE)) as proxy,
        Engine(proxy.url, limits=LIMITS) as engine,
    ):
        ids, held = await submitted(direct), list[Lease]()
        claimed, done = Counter[str](), Counter[str]()
        while done.total() < len(ids):
            answer = await engine.exchange(
                QUEUE, [Complete(lease) for lease in held], worker="w", lease=minutes(5), count=100
            )
            outcomes = zip(held, answer.outcomes, strict=True)
            done.update(lease.id for lease, outcome in outcomes if outcome is State.DONE)
            held = answer.leases
            claimed.update(lease.id for lease in held)
            assert held or done.total() == len(ids), "the queue seems to be empty"
        totals = (await direct.inspect.counts(QUEUE)).totals
    assert claimed == done == Counter(ids)
    assert (totals["completed"], totals.get("reaped", 0)) == (len(ids), 0)
