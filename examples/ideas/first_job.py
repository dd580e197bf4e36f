"""A first job: submit it, let a worker run it, and wait for its result.

Prints:

    cat.png.small
"""

import asyncio

from towpath import Towpath, Worker
from towpath.embedded import EmbeddedServer


async def main(url: str) -> None:
    app = Towpath(url)

    @app.handler("thumbnails")
    async def thumbnail(path: str) -> str:
        return f"{path}.small"

    async with app:
        job = await thumbnail.submit("cat.png")
        await Worker(app).drain()
        print(await job.result(within=5))


with EmbeddedServer() as server:
    asyncio.run(main(server.url))
