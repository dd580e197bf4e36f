"""Frames of ours that are nested at one moment: when bytes reach a socket, when SQL is executed.

What is counted: each frame of a file of the package on the stack that does it, in whatever thread
that is; and, for every other task that the caller's call has begun and that has not ended, each
frame of ours in its chain of awaits. So a hand-over to another task or thread hides nothing: those
who wait for it are counted with it. Frames of libraries in between are not ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any

from tests.architecture.sources import SOURCE, shown

_INSIDE = str(SOURCE)
_under_way: ContextVar[list[asyncio.Task[Any]] | None] = ContextVar("_under_way", default=None)
"""The tasks of one call: those that it begins inherit the list, and are added to it."""


@contextmanager
def watched_tasks() -> Generator[None]:
    """Until the end of the block, tasks that a marked one begins are noted with it."""
    begin = asyncio.BaseEventLoop.create_task

    def noting(self: Any, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = begin(self, coro, **options)
        if (tasks := _under_way.get()) is not None:
            tasks.append(task)
        return task

    asyncio.BaseEventLoop.create_task = noting
    try:
        yield
    finally:
        asyncio.BaseEventLoop.create_task = begin


def mark() -> list[asyncio.Task[Any]]:
    """This task and those that it begins from now on are one call; the list grows with them."""
    task = asyncio.current_task()
    assert task is not None
    tasks = [task]
    _under_way.set(tasks)
    return tasks


def nested(tasks: list[asyncio.Task[Any]], at: FrameType | None) -> list[str]:
    """The frames of ours, outermost first: of those who wait, then of the stack of *at*."""
    stack = list(_stack(at))
    on_stack = {id(frame) for frame in stack}
    found: list[str] = []
    for task in tasks:
        chain = list(_awaiting(task.get_coro()))
        if not task.done() and not any(id(frame) in on_stack for frame in chain):
            found += [_named(frame) for frame in chain if is_ours(frame)]
    return found + [_named(frame) for frame in reversed(stack) if is_ours(frame)]


def is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_INSIDE)


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _awaiting(coro: Any) -> Iterator[FrameType]:
    """The frame of *coro*, of what it awaits, and so on; a future is the end."""
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None)
        if frame is not None:
            yield frame
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None)


def _named(frame: FrameType) -> str:
    code = frame.f_code
    return f"{shown(Path(code.co_filename))}:{code.co_qualname}"
