"""The coalescer: joins calls that are made at the same time into one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

A = TypeVar("A")
R = TypeVar("R")

LARGEST = 500
"""Maximum number of calls in a batch. It bounds how long a call waits for the rest of its batch."""


class Coalescer(Generic[A, R]):
    """Calls *do* with one batch at a time; calls made meanwhile form the next batch.

    *do* returns one outcome per item, in order; an outcome that is an exception is raised to the
    caller of that item. If *do* itself raises, every caller of the batch gets the error. A single
    call runs at once.
    """

    def __init__(self, do: Callable[[list[A]], Awaitable[list[R]]]) -> None:
        self._do = do
        self._waiting: deque[tuple[A, asyncio.Future[R]]] = deque()
        self._task: asyncio.Task[None] | None = None

    def __call__(self, thing: A) -> asyncio.Future[R]:
        """Return a future of the outcome of *thing*. Cancelled before its batch begins, *thing* is
        skipped.
        """
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((thing, answer))
        if self._task is None:
            # A separate task, because the first caller may be cancelled while others still wait.
            self._task = asyncio.create_task(self._run())
        return answer

    async def rest(self) -> None:
        """Wait until all batches are done."""
        while self._task is not None:
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        batch: list[tuple[A, asyncio.Future[R]]] = []
        try:
            while batch := self._next_batch():
                outcomes: list[Any]
                try:
                    outcomes = await self._do([thing for thing, _ in batch])
                except Exception as error:  # noqa: BLE001 -- raised to each caller
                    outcomes = [error] * len(batch)
                for (_, answer), outcome in zip(batch, outcomes, strict=True):
                    if answer.done():  # cancelled meanwhile
                        continue
                    if isinstance(outcome, Exception):
                        answer.set_exception(outcome)
                    else:
                        answer.set_result(outcome)
        finally:
            self._task = None
            for _, answer in (*batch, *self._waiting):  # some are left only if this was cancelled
                answer.cancel()

    def _next_batch(self) -> list[tuple[A, asyncio.Future[R]]]:
        batch: list[tuple[A, asyncio.Future[R]]] = []
        while self._waiting and len(batch) < LARGEST:
            thing, answer = self._waiting.popleft()
            if not answer.done():  # if it is done, its caller was cancelled
                batch.append((thing, answer))
        return batch
