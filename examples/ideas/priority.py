"""Priority: jobs with a higher priority run first; equal ones run first in, first out.

Prints:

    urgent
    first
    second
    whenever
"""

import asyncio

from towpath import HIGH, LOW, Towpath, Worker
from towpath.embedded import EmbeddedServer


async def main(url: str) -> None:
    app = Towpath(url)

    @app.handler("mails")
    async def send(subject: str) -> None:
        print(subject)

    async with app:
        await send.submit("whenever", priority=LOW)
        await send.submit("first")
        await send.submit("second")
        await send.submit("urgent", priority=HIGH)
        await Worker(app, concurrency=1).drain()


with EmbeddedServer() as server:
    asyncio.run(main(server.url))
