"""A worker process: dequeues until the queue is empty, and prints the tasks that it got.

With `silent` as its second argument it takes one task and waits, so that it can be killed.
"""

import asyncio
import sys

from towpath.apps.reviews.queue import ReviewQueue
from towpath.engine.engine import Engine


async def main(url: str, how: str) -> None:
    async with Engine(url) as engine:
        queue = ReviewQueue(engine)
        while (task := await queue.dequeue()) is not None:
            sys.stdout.write(f"{task}\n")
            sys.stdout.flush()
            if how == "silent":
                sys.stdin.read()
            await queue.release_lock(task)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
