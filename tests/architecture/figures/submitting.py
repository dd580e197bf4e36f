"""A warm lone `handler.submit`, up to the moment its bytes are handed to the socket."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket
from types import FrameType
from typing import Any

from tests.architecture.figures.nesting import is_ours, mark, nested, watched_tasks
from tests.architecture.sources import shown
from towpath import Towpath
from towpath.embedded import EmbeddedServer

_WARM = 20


@dataclass
class SubmitPath:
    """How a submit gets to the socket."""

    frames: list[str] = field(default_factory=list)
    """Nested there, the outermost first."""
    modules: set[str] = field(default_factory=set)
    """Entered before, in whatever order."""


def measured() -> SubmitPath:
    """On a real server, with the event loop of Python itself: its sockets can be seen at work."""
    with EmbeddedServer() as server, watched_tasks():
        return asyncio.run(_measured(server.url))


async def _measured(url: str) -> SubmitPath:
    app = Towpath(url)

    @app.handler("figures")
    async def thumbnail(path: str) -> None: ...

    async with app:
        for _ in range(_WARM):
            await thumbnail.submit("cat.png")
        # In a task of its own: nothing of this module is around it.
        return await asyncio.create_task(_watched(thumbnail))


async def _watched(handler: Any) -> SubmitPath:
    taken, tasks = SubmitPath(), mark()

    def see(frame: FrameType, event: str, what: Any) -> None:
        if event == "call" and is_ours(frame) and asyncio.current_task() in tasks:
            taken.modules.add(shown(Path(frame.f_code.co_filename)))
        elif event == "c_call" and _sends(what):
            sys.setprofile(None)
            taken.frames = nested(tasks, frame)

    call = handler.submit("cat.png")
    sys.setprofile(see)
    try:
        await call
    finally:
        sys.setprofile(None)
    assert taken.frames, "no bytes were seen on their way"
    return taken


def _sends(what: Any) -> bool:
    """Whether *what* is a socket's own way to send."""
    of = getattr(what, "__self__", None)
    return isinstance(of, socket) and what.__name__ in ("send", "sendall", "sendmsg")
