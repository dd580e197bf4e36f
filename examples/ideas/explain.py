"""Explain: `.why` says in one word why a job is not running; `.text` has the details.

Prints:

    behind_lane
"""

import asyncio

from towpath import Towpath
from towpath.embedded import EmbeddedServer


async def main(url: str) -> None:
    app = Towpath(url)

    @app.handler("chat")
    async def answer(text: str) -> None: ...

    async with app:
        await answer.submit("hello", id="first", lane="ann")
        second = await answer.submit("are you there?", id="second", lane="ann")
        print((await app.engine.inspect.explain(second.ref)).why)


with EmbeddedServer() as server:
    asyncio.run(main(server.url))
