"""Same id: two submits with the same id are one job, so repeating a submit is safe.

Prints:

    new: True
    new: False
    paid 1 time
"""

import asyncio

from towpath import Towpath, Worker
from towpath.embedded import EmbeddedServer


async def main(url: str) -> None:
    app, paid = Towpath(url), list[int]()

    @app.handler("payments")
    async def pay(order: int) -> None:
        paid.append(order)

    async with app:
        for _ in range(2):  # for example, because the first answer got lost
            job = await pay.submit(7, id="order-7")
            print("new:", not job.existed)
        await Worker(app).drain()
    print(f"paid {len(paid)} time")


with EmbeddedServer() as server:
    asyncio.run(main(server.url))
