"""A script that ends while a thread waits for the result of a job.

The test starts it with the URL of Redis, and what becomes of the thread: `daemon` waits on, `late`
loses its connection while the interpreter ends, `frozen` waits for a frozen Redis (its process id
follows), `joined` is joined. With `exit_handler` the main thread waits, while the interpreter ends.
"""

import atexit
import os
import signal
import sys
import threading

from tests.waiting import eventually
from towpath import Engine, Towpath, hours, seconds
from towpath.app.blocking import Blocking
from towpath.errors import EngineClosed, StillOpen

url, what = sys.argv[1:3]


def where(thread: threading.Thread) -> set[str]:
    """The functions on the stack of a thread."""
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- where the thread is
    names: set[str] = set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return names


def lose_connections() -> None:
    """Called after the app's own engine was closed: exit handlers run in reverse order."""
    with Blocking(Engine(url)) as blocking:
        blocking.run(lambda engine: engine._store.command("CLIENT", "KILL", "TYPE", "normal"))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- there is no other way to it
        eventually(lambda: {"ended"} == where(waiting) & {"ended", "_wait_for"})


def wait_at_exit() -> None:
    """Called after the app's own engine was closed, too."""
    try:
        job.result(within=hours(1))
    except EngineClosed as error:
        sys.stdout.write(f"{error.code}\n")


if what == "exit_handler":
    atexit.register(wait_at_exit)
if what == "late":
    atexit.register(lose_connections)
app = Towpath(url)


@app.handler("mails")
async def send(_: str) -> None: ...


job = send.blocking.submit("hello")


def wait() -> None:
    try:
        job.result(within=seconds(0.5) if what == "joined" else hours(1))
    except StillOpen as error:
        sys.stdout.write(f"{error.code}\n")


waiting = threading.Thread(target=wait, daemon=what != "joined")
if what != "exit_handler":
    waiting.start()
    eventually(lambda: "_wait_for_news" in where(waiting))
if what == "frozen":
    os.kill(int(sys.argv[3]), signal.SIGSTOP)
sys.stdout.write("ends\n")
