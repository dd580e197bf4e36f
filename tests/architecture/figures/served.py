"""The command line with an observer: each row that a request writes, and what was nested there.

`python -m tests.architecture.figures.served FILE serve …` is `towpath serve …`; *FILE* gets a line
of JSON per INSERT of a job's record.
"""

from __future__ import annotations

import asyncio
import json
import sys
from inspect import currentframe
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tests.architecture.figures.nesting import mark, nested, watched_tasks
from towpath.cli.main import main

INSERT = "INSERT INTO towpath_jobs"


def observe(file: Path) -> None:
    """From now on, requests are followed to their rows."""
    answer = RequestResponseCycle.run_asgi
    latest: list[list[asyncio.Task[Any]]] = []

    async def followed(self: RequestResponseCycle, app: Any) -> None:
        latest[:] = [mark()]
        await answer(self, app)

    def written(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(INSERT) and latest:
            with file.open("a") as lines:
                lines.write(json.dumps(nested(latest[0], currentframe())) + "\n")

    RequestResponseCycle.run_asgi = followed  # type: ignore[method-assign]
    event.listen(Engine, "before_cursor_execute", written)


if __name__ == "__main__":
    # The event loop of Python itself: its tasks can be followed.
    sys.modules["uvloop"] = None  # type: ignore[assignment]
    observe(Path(sys.argv.pop(1)))
    with watched_tasks():
        main()
