"""Read a body in pieces: one piece is written to Redis while the next arrives, never more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Any

from towpath.apps.uploads.records import PIECE


class Before:
    """The write of the previous piece, which may still run."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def start(self, sending: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(sending)

    async def done(self) -> None:
        """Wait for the write. Raises its error."""
        task, self._task = self._task, None
        if task is not None:
            try:
                await asyncio.shield(task)
            finally:
                self._task = None if task.done() else task

    async def give_up(self) -> None:
        """Wait for the write and ignore its outcome.

        The caller may delete staged bytes next, and a write that is still running would come after
        that.
        """
        task, self._task = self._task, None
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)


async def in_pieces(body: AsyncIterator[bytes], of: int | None = None) -> AsyncGenerator[bytes]:
    """*body* in pieces of 1 MiB, or of *of* bytes; the last may be shorter. Copies bytes once."""
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
