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
                await task
            finally:
                self._task = None if task.done() else task

    async def give_up(self) -> None:
        """After trouble nobody wants it any more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])


async def in_pieces(
    body: AsyncIterator[bytes], length: int | None = None
) -> AsyncGenerator[memoryview]:
    """*body* in pieces of 1 MiB, the last one shorter; *length* is what it may have, if known.

    There are two, which take turns: a piece is the caller's until it asks for the one after next.
    """
    size = PIECE if length is None else max(min(length, PIECE), 1)
    piece, other = memoryview(bytearray(size)), None
    filled = 0
    async for data in body:
        rest = memoryview(data)
        while rest:
            some = rest[: size - filled]
            piece[filled : filled + len(some)] = some
            filled += len(some)
            rest = rest[len(some) :]
            if filled == size:
                yield piece
                piece, other, filled = other or memoryview(bytearray(size)), piece, 0
    if filled:
        yield piece[:filled]
