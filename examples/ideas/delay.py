"""Delay: a job does not run before its due time, even with a high priority and an idle worker.

Prints:

    delayed
    ready
    sent
"""

import asyncio

from towpath import HIGH, Towpath, Worker, hours
from towpath.clock import ManualClock
from towpath.embedded import EmbeddedServer


async def main(url: str) -> None:
    clock = ManualClock()  # to show it at once; leave it out in production
    app = Towpath(url, clock=clock)

    @app.handler("reminders")
    async def remind(text: str) -> str:
        return text

    async with app:
        job = await remind.submit("sent", delay="30m", priority=HIGH)
        await Worker(app).drain()
        print(await job.state())
        clock.advance(hours(1))
        await app.engine.queues.promote("reminders")
        print(await job.state())
        await Worker(app).drain()
        print(await job.result(within=5))


with EmbeddedServer() as server:
    asyncio.run(main(server.url))
