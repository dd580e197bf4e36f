"""The code that a user would write: handlers for messages, timers and reviews.

It runs in worker processes (`towpath worker towpath.demo.desk:app`) and, the reviewer, in the
server. What handlers do is noted in a file per process, with one write each: what a process that is
killed has noted before stays, and is counted.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from towpath.app.app import Towpath
from towpath.apps.reviews.model import Review, ReviewTask
from towpath.apps.timers.plugin import Timers
from towpath.clock import wall_ms
from towpath.worker.context import Context

FOLDER = "NOTES_OF_TOWPATH_DEMO"
"""The variable that names the folder with the notes; no setting, so not called like one."""
REMINDER = "reminder"
"""The type of the demo's timers."""

app = Towpath()
timers = Timers(app)


def note(what: str, **about: Any) -> None:
    """One line, written at once."""
    pid = os.getpid()
    line = {"what": what, "at": wall_ms(), "pid": pid, **about}
    path = Path(os.environ[FOLDER]) / f"{pid}.notes"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


@app.handler("messages")
async def answer(message: dict[str, Any], ctx: Context) -> dict[str, str]:
    """Answers a user's message, after some thinking. The token goes with what it notes: an attempt
    that was given up for dead, and goes on, is known by a lower one.
    """
    number = message["metadata"]["number"]
    which = {"user": message["user_id"], "number": number, "token": ctx.token}
    note("message.begun", **which)
    await asyncio.sleep(message["metadata"]["takes"])
    note("message.ended", **which)
    return {"text": f"You said: {message['message']}"}


@timers.worker(REMINDER)
async def remind(params: dict[str, Any]) -> None:
    """Runs when its time has come; by how much it is late is counted from the note."""
    note("timer", number=params["number"], due=params["due"])


async def review(task: ReviewTask) -> Review:
    """Looks at a pull request."""
    await asyncio.sleep(0.1)
    note("review", head=task.head)
    return Review(summary=f"Looked at {task.head[:12]} of {task.repository}: no problems found.")
