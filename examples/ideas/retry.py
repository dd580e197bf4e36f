"""Retry: a failed job is tried again by a policy; after the last attempt it is dead.

Prints:

    attempt 1
    attempt 2
    done
    attempt 1
    dead: no such address
"""

import asyncio

from towpath import Context, Discard, Fixed, Towpath, Worker, seconds
from towpath.embedded import EmbeddedServer


async def main(url: str) -> None:
    app = Towpath(url)

    @app.handler("mails", retry=Fixed(seconds(0)), max_attempts=3)
    async def send(address: str, ctx: Context) -> None:
        print("attempt", ctx.attempt)
        if "@" not in address:
            raise Discard("no such address")  # another attempt would not help
        if ctx.attempt == 1:
            raise ConnectionError("the mail server does not answer")

    async with app:
        for address in ("ann@example.org", "nobody"):
            job = await send.submit(address)
            await Worker(app).drain()
            info = await job.info()
            print(f"{info.state}: {info.reason}" if info.state == "dead" else info.state)


with EmbeddedServer() as server:
    asyncio.run(main(server.url))
