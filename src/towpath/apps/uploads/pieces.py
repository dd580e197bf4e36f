"""A body in pieces: one is on its way to Redis while the next one comes, and there are no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Any

from towpath.apps.uploads.records import PIECE


class Before:
    """The piece before this one, on its way."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def start(self, sending: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(sending)

    async def done(self) -> None:
        """Raises what became of it."""
        task, self._task = self._task, None
        if task is not None:
            try:
                await asyncio.shield(task)
            finally:
                self._task = None if task.done() else task

    async def give_up(self) -> None:
        """After trouble nobody wants to know what became of it; but what is removed next must not
        be overtaken by it, so it is waited for."""
        task, self._task = self._task, None
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)


async def in_pieces(body: AsyncIterator[bytes], of: int | None = None) -> AsyncGenerator[bytes]:
    """*body* in pieces of 1 MiB, or *of* so many bytes; the last one is shorter. Copies once."""
    of = of or PIECE
    waiting: list[memoryview] = []
    size = 0
    async for data in body:
        rest = memoryview(data)
        while rest:
            some = rest[: of - size]
            waiting.append(some)
            size += len(some)
            rest = rest[len(some) :]
            if size == of:
                yield b"".join(waiting)
                waiting, size = [], 0
    if size:
        yield b"".join(waiting)
