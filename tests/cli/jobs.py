"""Jobs in the states that commands show."""

from towpath import Engine, QueueOptions, hours, seconds

KEEPING = QueueOptions(keep=hours(1))


async def bury(engine: Engine, queue: str, *ids: str, reason: str = "no such address") -> None:
    """Dead jobs."""
    for id in ids:
        await engine.submit(queue, b'{"to": "anna"}', id=id, priority=100)
        [lease] = await engine.claim(queue, worker="w1", lease=seconds(60))
        await engine.bury(lease, reason)
