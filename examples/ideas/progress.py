"""Progress: a running handler reports its progress; `job.progress()` returns the last report.

Prints:

    {'page': 3, 'of': 3}
"""

import asyncio

from towpath import Context, Towpath, Worker
from towpath.embedded import EmbeddedServer


async def main(url: str) -> None:
    app = Towpath(url)

    @app.handler("books")
    async def scan(pages: int, ctx: Context) -> None:
        for page in range(1, pages + 1):
            ctx.progress({"page": page, "of": pages})

    async with app:
        job = await scan.submit(3)
        await Worker(app).drain()
        print(await job.progress())


with EmbeddedServer() as server:
    asyncio.run(main(server.url))
