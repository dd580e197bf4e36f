"""Programs in which gevent or eventlet has replaced threads and sockets; the tests start them.

Arguments: the library, what to do, the URL of Redis, and the process id of Redis.
"""

# ruff: noqa: E402 -- what patches comes first
import importlib
import sys
from typing import Any

library, what, url, pid = sys.argv[1:5]
green: Any = importlib.import_module(library)
if what == "late":
    importlib.import_module("towpath.engine.blocking")  # patched too late
if library == "gevent":
    importlib.import_module("gevent.monkey").patch_all()
else:
    green.monkey_patch()

import os
import signal
import threading

from tests.waiting import eventually
from towpath import Towpath, seconds
from towpath.engine.channel import Limits
from towpath.errors import JobNotFound, ThreadsPatched

CHANNELS = 1 if what == "timeout" else 3
limits = Limits(answer=seconds(60), give_up=seconds(60), channels=CHANNELS)
app = Towpath(url, limits=limits, ledger="sqlite:///nowhere/at.all")


@app.handler("mails")
async def send(_: str) -> None: ...


@app.handler("kept", record=True)
async def keep(_: str) -> None: ...


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")


def share() -> None:
    """Many green threads submit and wait at once, and none stops the others."""
    ticks, found = list[None](), list[str]()
    stopped = threading.Event()

    def tick() -> None:
        while not stopped.wait(0.001):
            ticks.append(None)

    def live(number: int) -> None:
        job = send.blocking.submit("x", id=f"{number}")
        waiting.append(job.id)
        try:
            job.result(within=seconds(60))
        except JobNotFound:
            found.append(job.id)

    waiting: list[str] = []
    ticking = threading.Thread(target=tick)
    ticking.start()
    threads = [threading.Thread(target=live, args=(number,)) for number in range(60)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(waiting) == len(threads))
    ticks.clear()
    eventually(lambda: len(ticks) >= 10)
    for id in reversed(waiting):
        send.blocking.job(id).cancel()
    for thread in threads:
        thread.join()
    stopped.set()
    ticking.join()
    connections = _connections()
    say("found", len(set(found)), "of", len(threads), "connections", connections <= CHANNELS + 1)


def _connections() -> int:
    """How many sockets this process has to Redis."""
    import gc  # noqa: PLC0415 -- used once
    import socket  # noqa: PLC0415 -- patched by now

    path = url.removeprefix("unix://")
    return sum(
        isinstance(it, socket.socket) and it.fileno() >= 0 and it.getpeername() == path
        for it in gc.get_objects()
    )


def timeout() -> None:
    """A timeout ends a call in the middle of its reply, which comes later: the next call gets its
    own reply.
    """
    first = send.blocking.submit("x", id="first")
    for number in range(3):
        os.kill(int(pid), signal.SIGSTOP)
        limit = green.Timeout(0.3)
        if library == "gevent":
            limit.start()
        try:
            send.blocking.submit("x", id=f"cut-{number}")
        except green.Timeout as over:
            say("over", over is limit)
        finally:
            limit.close() if library == "gevent" else limit.cancel()
            os.kill(int(pid), signal.SIGCONT)
        say(first.info().id, send.blocking.submit("x", id=f"next-{number}").existed)


def result() -> None:
    """A timeout ends one wait for a result; another wait goes on."""
    jobs = [send.blocking.submit("x", id=id) for id in ("a", "b")]
    ended: list[str] = []

    def wait() -> None:
        try:
            jobs[1].result(within=seconds(60))
        except JobNotFound:
            ended.append("b")

    limit = green.Timeout(0.5)
    if library == "gevent":
        limit.start()
    other = threading.Thread(target=wait)
    try:
        green.spawn(other.start)
        jobs[0].result(within=seconds(60))
    except green.Timeout:
        say("over")
    finally:
        limit.close() if library == "gevent" else limit.cancel()
    jobs[1].cancel()
    other.join()
    say(*ended, jobs[0].state())


def refused() -> None:
    for call in (lambda: keep.blocking.submit("x"), lambda: app.blocking.run(lambda _: _.check())):
        try:
            call()
        except ThreadsPatched as error:
            say(error.code, error.library)
    say(send.blocking.submit("x").state())


def late() -> None:
    try:
        send.blocking.submit("x")
    except ThreadsPatched as error:
        say(error)


{
    "share": share,
    "timeout": timeout,
    "result": result,
    "refused": refused,
    "late": late,
}[what]()
