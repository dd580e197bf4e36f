"""Cancel: a waiting job is removed at once; a running job is asked to stop.

Prints:

    gone
    stopped
    cancelled
"""

import asyncio

from towpath import Towpath, Worker
from towpath.embedded import EmbeddedServer


async def main(url: str) -> None:
    app = Towpath(url)
    begun, stopped = asyncio.Event(), asyncio.Event()

    @app.handler("reports")
    async def report(year: int) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()  # for ever
        finally:
            stopped.set()

    async with app:
        waits = await report.submit(2025)
        await waits.cancel()
        print(await waits.state())

        worker = Worker(app)
        running = asyncio.create_task(worker.run())
        runs = await report.submit(2026)
        await begun.wait()
        await runs.cancel()
        await stopped.wait()
        print("stopped")
        worker.stop()
        await running
        print(await runs.state())


with EmbeddedServer() as server:
    asyncio.run(main(server.url))
