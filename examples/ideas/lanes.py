"""Lanes: the jobs of one lane run one at a time and in order; lanes run in parallel.

Prints:

    ann: 1 2 3
    ben: 1 2 3
"""

import asyncio
from collections import defaultdict

from towpath import Context, Towpath, Worker
from towpath.embedded import EmbeddedServer


async def main(url: str) -> None:
    app = Towpath(url)
    done: defaultdict[str, list[str]] = defaultdict(list)

    @app.handler("chat")
    async def answer(number: int, ctx: Context) -> None:
        await asyncio.sleep(0.05 / number)  # later jobs are faster, but still run later
        done[ctx.lane or ""].append(str(number))

    async with app:
        for number in (1, 2, 3):
            for user in ("ann", "ben"):
                await answer.submit(number, lane=user)
        await Worker(app).drain()
    for user in sorted(done):
        print(f"{user}:", *done[user])


with EmbeddedServer() as server:
    asyncio.run(main(server.url))
