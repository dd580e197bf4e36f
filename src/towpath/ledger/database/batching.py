"""Joining calls that come at the same time into one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

A = TypeVar("A")
R = TypeVar("R")

LARGEST = 500
"""Done at once at most: it bounds how long the first waits for the last."""


class Joined(Generic[A, R]):
    """Calls *do* for one batch at a time; what comes meanwhile is the next batch.

    It answers in order, one each; an answer that is an exception is raised where it was asked
    for. What *do* itself raises, all of them raise. A lone one waits for nobody.
    """

    def __init__(self, do: Callable[[list[A]], Awaitable[list[R]]]) -> None:
        self._do = do
        self._waiting: deque[tuple[A, asyncio.Future[R]]] = deque()
        self._task: asyncio.Task[None] | None = None

    def __call__(self, thing: A) -> asyncio.Future[R]:
        """What comes of *thing*. Cancelled before it is begun, it is not done."""
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((thing, answer))
        if self._task is None:
            # A task of its own: whoever came first may be cancelled, the others stay.
            self._task = asyncio.create_task(self._run())
        return answer

    async def rest(self) -> None:
        """Wait until nothing is left to do."""
        while self._task is not None:
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        batch: list[tuple[A, asyncio.Future[R]]] = []
        try:
            while batch := self._next_batch():
                outcomes: list[Any]
                try:
                    outcomes = await self._do([thing for thing, _ in batch])
                except Exception as error:  # noqa: BLE001 -- raised where each was asked for
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
            for _, answer in (*batch, *self._waiting):  # only if the loop ends under it
                answer.cancel()

    def _next_batch(self) -> list[tuple[A, asyncio.Future[R]]]:
        batch: list[tuple[A, asyncio.Future[R]]] = []
        while self._waiting and len(batch) < LARGEST:
            thing, answer = self._waiting.popleft()
            if not answer.done():  # done: cancelled meanwhile
                batch.append((thing, answer))
        return batch
