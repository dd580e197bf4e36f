"""The program of a worker process under test: python -m towpath.testing.worker_program <descriptor>

The first line that it reads there says what to run, in JSON. Each further line is the time of the
test's manual clock, in ms. At the end of the lines, the process ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

from towpath.app.app import Towpath
from towpath.clock import Duration, ManualClock, instant, milliseconds
from towpath.telemetry import logs
from towpath.worker.worker import Worker

_LONGEST_SLEEP = 0.5


class FollowingClock(ManualClock):
    """A manual clock that the test sets from outside. A sleep ends after half a second of real
    time: if the worker that was to wake a sleeper is killed, nothing else would end the sleep.
    """

    def follow(self, ms: int) -> None:
        self.advance(max(instant(ms) - self.now, milliseconds(0)))

    async def sleep(self, duration: Duration) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_SLEEP):
                await super().sleep(duration)


def main() -> None:
    lines = _lines(int(sys.argv[1]))
    settings = json.loads(next(lines))
    sys.path[:] = settings["path"]
    clock = FollowingClock(instant(int(settings["now_ms"]))) if settings["now_ms"] else None
    threading.Thread(target=_follow_test, args=(lines, clock), daemon=True).start()
    sys.exit(_work(settings, clock))


def _work(settings: dict[str, Any], clock: ManualClock | None) -> int:
    logs.configure(form="json", level="debug")
    app = _app(settings["app"])
    with app.pointed_at(settings["url"], clock=clock, ledger=settings["ledger"]):
        return Worker(app, lease=milliseconds(settings["lease_ms"])).run_forever()


def _app(path: str) -> Towpath:
    module, _, name = path.partition(":")
    app = getattr(import_module(module), name)
    if not isinstance(app, Towpath):
        sys.exit(f"{path} is a {type(app).__name__}, not a Towpath")
    return app


def _lines(descriptor: int) -> Iterator[bytes]:
    # Not a file object: the reading thread would hold its lock when the process ends.
    rest = b""
    while piece := os.read(descriptor, 65_536):
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole


def _follow_test(lines: Iterator[bytes], clock: FollowingClock | None) -> None:
    for line in lines:
        if clock is not None:
            clock.follow(int(line))
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
