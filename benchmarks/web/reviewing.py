"""A worker whose reviewer only reports when it began.

`python -m benchmarks.web.reviewing URL DATABASE CONCURRENCY` prints a JSON list whenever reviews
began: ids, and when each began on the clock that all processes share.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from time import perf_counter_ns

import msgspec

from benchmarks.databases import Database
from benchmarks.web.process import cpu_of, started
from towpath import Towpath
from towpath.apps.reviews.handlers import add_reviews
from towpath.apps.reviews.model import Review, ReviewTask, Verdict
from towpath.apps.reviews.options import ReviewsOptions
from towpath.apps.reviews.service import RECORD_ID
from towpath.worker.context import Context
from towpath.worker.worker import Worker

CONCURRENCY = 200
_SAID_EVERY = 0.05
_LONGEST_LINE = 2**24
Began = tuple[str, int]
_REVIEW = Review(summary="Nothing to say.", verdict=Verdict.COMMENT)


class ReviewWorker:
    """A worker process, for the bench."""

    def __init__(self) -> None:
        self.began: dict[str, int] = {}
        """When each review began for the first time, in ns."""
        self.twice = 0
        self.pid = 0
        self._news = asyncio.Condition()

    def cpu(self) -> float:
        return cpu_of([self.pid])

    async def until(self, count: int, *, within: float) -> None:
        """Returns when so many reviews have begun. Raises TimeoutError."""
        async with asyncio.timeout(within), self._news:
            await self._news.wait_for(lambda: len(self.began) >= count)

    async def listen(self, said: asyncio.StreamReader) -> None:
        while line := await said.readline():
            for id, at in msgspec.json.decode(line, type=list[Began]):
                self.twice += id in self.began
                self.began.setdefault(id, at)
            async with self._news:
                self._news.notify_all()


@asynccontextmanager
async def reviewing(url: str, database: Database) -> AsyncGenerator[ReviewWorker]:
    """Starts a worker process on that Redis and database; it ends with the block."""
    words = (sys.executable, "-m", "benchmarks.web.reviewing", url, database.url, str(CONCURRENCY))
    worker = ReviewWorker()
    settings = {"TOWPATH_LOG__LEVEL": "warning"}
    async with started(words, settings, longest_line=_LONGEST_LINE) as process:
        await process.said.readline()
        worker.pid = process.pid
        listening = asyncio.create_task(worker.listen(process.said))
        try:
            yield worker
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


class _Reviewer:
    def __init__(self) -> None:
        self._began: list[Began] = []

    async def review(self, task: ReviewTask, ctx: Context) -> Review:
        if not self._began:
            asyncio.get_running_loop().call_later(_SAID_EVERY, self._say)
        self._began.append((ctx.headers[RECORD_ID], perf_counter_ns()))
        return _REVIEW

    def _say(self) -> None:
        began, self._began = self._began, []
        print(msgspec.json.encode(began).decode(), flush=True)


def main() -> int:
    url, database, concurrency = sys.argv[1:]
    app = Towpath(url, ledger=database)
    options = ReviewsOptions(concurrency=int(concurrency))
    add_reviews(app, _Reviewer(), options)
    print("[]", flush=True)
    return Worker(app, concurrency=int(concurrency)).run_forever()


if __name__ == "__main__":
    sys.exit(main())
