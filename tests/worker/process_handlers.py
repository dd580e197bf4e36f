"""Handlers that run in processes of their own. They are in a module because the processes import
them.
"""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel

from tests.waiting import eventually
from towpath.app.app import Towpath
from towpath.clock import hours, minutes
from towpath.worker.context import Context, Discard, Retry, Snooze

app = Towpath("")
LATER = datetime(2100, 1, 1, tzinfo=UTC)


class Order(BaseModel):
    """A payload as a pydantic model."""

    item: str
    count: int = 1


class Receipt(msgspec.Struct):
    """A result as a msgspec struct."""

    text: str
    pid: int


@app.handler("orders", processes=1)
def sell(order: Order, ctx: Context) -> Receipt:
    return Receipt(f"{order.count} {order.item} {ctx.attempt} {ctx.handler}", os.getpid())


@app.handler("pids", processes=1)
def own_pid(_: int) -> int:
    return os.getpid()


@app.handler("lines", processes=1)
def log_lines(ctx: Context) -> None:
    logging.getLogger("mine").info("sold %s", 7)
    logging.getLogger("mine").debug("not wanted")
    try:
        int("nine")
    except ValueError:
        logging.getLogger("mine").exception("failed")


@app.handler("notes", processes=1)
def note_twice(ctx: Context) -> str:
    ctx.progress({"percent": 50})
    ctx.progress({"percent": 100})
    return "noted"


@app.handler("watch", processes=1)
def until_cancelled(path: str, ctx: Context) -> str:
    """Writes a file of that name when it begins, and returns once the job is cancelled."""
    Path(path).write_text(str(os.getpid()))
    eventually(lambda: ctx.cancelled)
    return "it was cancelled"


@app.handler("loops", processes=1)
def never_end(path: str) -> None:
    """Writes a file when it begins, starts a process of its own, and never checks whether it should
    end.
    """
    with subprocess.Popen(["sleep", "60"]) as beside:
        Path(f"{path}.part").write_text(f"{os.getpid()} {beside.pid}")
        Path(f"{path}.part").rename(path)
        eventually(lambda: False)


@app.handler("orphans", processes=1)
def leave_behind(how: str) -> None:
    """Starts a process that goes on, then kills itself; the file's name says how to start that
    process.
    """
    Path(f"{how}.part").write_text(str(BESIDE[Path(how).name]()))
    Path(f"{how}.part").rename(how)
    os.kill(os.getpid(), signal.SIGKILL)


def _copy() -> int:
    """Forks this process, with everything that is open in it."""
    pid = os.fork()
    if not pid:
        try:
            eventually(lambda: False)
        finally:
            os._exit(0)
    return pid


def _other() -> int:
    """Starts another program that inherits the open files."""
    return subprocess.Popen(["sleep", "60"], close_fds=False).pid


BESIDE = {"copy": _copy, "other": _other}


@app.handler("faces", processes=1)
def end_as_told(how: str) -> Any:
    """Ends an attempt in one of the wrong ways that a handler in a process can."""
    return ENDS[how]()


class Unpicklable(Exception):
    """Its arguments cannot be pickled, and unpickling cannot create it from them."""

    def __init__(self, one: object, two: object) -> None:
        super().__init__("can't be sent anywhere")
        self.one, self.two = one, two


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def _raise(error: BaseException) -> Any:
    raise error


def _raised() -> ValueError:
    """Returns an error that has been raised already, as in a task of a group."""
    try:
        return _raise(ValueError("broken"))
    except ValueError as error:
        return error


ENDS: dict[str, Any] = {
    "retry": lambda: _raise(Retry("out of paper", after=hours(1))),
    "retry by policy": lambda: _raise(Retry()),
    "discard": lambda: _raise(Discard("nobody wants it")),
    "snooze until": lambda: _raise(Snooze(LATER)),
    "snooze for": lambda: _raise(Snooze(minutes(10))),
    "fail": lambda: _raise(ValueError("broken")),
    "fail in json": lambda: json.loads("{"),
    "group": lambda: _raise(
        ExceptionGroup("", [_raised(), ExceptionGroup("", [KeyError(), KeyError()])])
    ),
    "grouped discard": lambda: _raise(ExceptionGroup("one", [Discard("nobody wants it")])),
    "unpicklable": lambda: _raise(Unpicklable(lambda: 1, sys.stdout)),
    "speechless": lambda: _raise(UnprintableError()),
    "enormous": lambda: _raise(ValueError("x" * 5_000_000)),
    "surrogate": lambda: _raise(ValueError("file \udcff is gone")),
    "exit": lambda: sys.exit(3),
    "stop": lambda: _raise(StopIteration(1)),
    "cancel": lambda: _raise(asyncio.CancelledError()),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
    "close": lambda: _raise(GeneratorExit()),
    "big": lambda: "x" * 2_000_000,
    "object": object,
    "huge int": lambda: 2**100,
    "surrogate result": lambda: "\udcff",
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "fine": lambda: "fine",
}


class ExitingError(Exception):
    """Converting it to text ends the process."""

    def __str__(self) -> str:
        raise SystemExit("nothing to say")


@app.handler("bad", processes=1)
def raise_badly(how: str) -> None:
    """Raises something that a worker must survive."""
    if how == "mute":
        raise ExitingError
    verdict = Retry("x") if how == "after" else Discard("x")
    setattr(verdict, how, 5)
    raise verdict
