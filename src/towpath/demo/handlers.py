"""The demo's app, as a user would write it: handlers for messages, timers and reviews.

The handlers run in worker processes (`towpath worker towpath.demo.handlers:app`); the reviewer runs
in the server. Each handler writes notes to a file of its process, one write per note, so that the
notes of a killed process survive and are counted.
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
"""The variable with the folder of the notes; not a setting, so not named like one."""
REMINDER = "reminder"
"""The type of the demo's timers."""

app = Towpath()
timers = Timers(app)


def note(what: str, **about: Any) -> None:
    """Write one line to the notes of this process."""
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
    """Answer a user's message after a while. The notes have the fencing token: an attempt that
    lost its lease, but still runs, has a lower one.
    """
    number = message["metadata"]["number"]
    which = {"user": message["user_id"], "number": number, "token": ctx.token}
    note("message.begun", **which)
    await asyncio.sleep(message["metadata"]["takes"])
    note("message.ended", **which)
    return {"text": f"You said: {message['message']}"}


@timers.worker(REMINDER)
async def remind(params: dict[str, Any]) -> None:
    """Note that the timer was fired; the count takes the delay from the note."""
    note("timer", number=params["number"], due=params["due"])


async def review(task: ReviewTask) -> Review:
    """Review a pull request."""
    await asyncio.sleep(0.1)
    note("review", head=task.head)
    return Review(summary=f"Looked at {task.head[:12]} of {task.repository}: no problems found.")
