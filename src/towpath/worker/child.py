"""A process that runs one handler: takes a job, reports its outcome, takes the next.

Started by `executors.py` with one end of a socket. Both sides send MessagePack behind a length;
nothing is ever pickled. The process ends when the worker closes the socket or dies, even in the
middle of a job.
"""

from __future__ import annotations

import importlib
import logging
import os
import runpy
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from queue import SimpleQueue
from typing import Any

import msgspec

from towpath.clock import duration_ms, instant_ms
from towpath.engine.model import Lease
from towpath.errors import LifespanFailed, PayloadInvalid
from towpath.worker.context import NO_STATE, Context, Discard, HandOver, Retry, Snooze
from towpath.worker.handler import Handler
from towpath.worker.lifespan import LifespanThread
from towpath.worker.settlements import (
    first_leaf,
    only_leaf,
    reason_of,
    traceback_of,
    words_of,
    writable,
)

LENGTH = struct.Struct(">I")
_LONGEST_TRACE = 20_000
MAIN = "__towpath_main__"
"""The `__name__` of a program's main file here, so that its `if __name__` part does not run."""


class Order(msgspec.Struct, frozen=True, tag="run"):
    """Run the handler with this lease."""

    lease: Lease
    waited: float
    """Seconds from its claim to its start."""
    log_level: int
    """The lowest level that the worker's process logs."""


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """The job was cancelled; the handler decides how to end."""


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """No more jobs follow: leave the lifespan and end the process."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The handler was found; the process takes jobs."""


class Note(msgspec.Struct, frozen=True, tag="note"):
    """A progress note."""

    note: bytes


class Logged(msgspec.Struct, frozen=True, tag="logged"):
    """A log line that the handler wrote."""

    logger: str
    level: int
    text: str


class Returned(msgspec.Struct, frozen=True, tag="returned"):
    """The handler returned; the result as JSON, empty for None."""

    result: bytes
    noticed: bool = False
    """Whether the handler read `ctx.cancelled` when it was true."""


class Raised(msgspec.Struct, frozen=True, tag="raised"):
    """The handler raised. *kind* names an AttemptEnd (discard, retry, …); empty = a failure."""

    kind: str
    error: str
    reason: str
    ms: int | None = None
    """retry: the delay; snooze: a delay, or an instant if *absolute*; hand_over: how long the lease
    is."""
    absolute: bool = False
    trace: str = ""
    """The end of the traceback of a failure."""


FromChild = Ready | Note | Logged | Returned | Raised
ToChild = Order | Cancel | Leave
_encode = msgspec.msgpack.encode
_decode_message = msgspec.msgpack.Decoder(ToChild).decode


def framed(message: ToChild | FromChild) -> bytes:
    """Returns *message* as it is sent over the socket."""
    packed = _encode(message)
    return LENGTH.pack(len(packed)) + packed


class Child:
    """The handler's process: runs jobs that arrive over the socket, and reports each outcome."""

    def __init__(self, line: socket.socket, handler: Handler[Any, Any, Any]) -> None:
        self._socket, self._handler = line, handler
        self._orders: SimpleQueue[Order | None] = SimpleQueue()
        self._ctx: Context | None = None
        self._sending = threading.Lock()
        self._log_handler: logging.Handler | None = None
        self._state: Any = NO_STATE

    def serve(self) -> None:
        """Run jobs until the worker sends Leave or closes the socket."""
        threading.Thread(target=self._listen, name="towpath-child", daemon=True).start()
        root = logging.getLogger()
        if not root.handlers:  # the handler's module may have configured logging itself
            self._log_handler = _LogSender(self._send)
            root.addHandler(self._log_handler)
        self._send(Ready())
        lifespan = self._handler.lifespan
        if lifespan is None:
            self._take_orders()
            return
        try:
            with LifespanThread(lifespan) as self._state:
                self._take_orders()
        except LifespanFailed as error:
            if self._state is NO_STATE and self._orders.get() is not None:
                self._send(
                    _describe_error(error)
                )  # fails this job; the next one gets a new process

    def _take_orders(self) -> None:
        while (order := self._orders.get()) is not None:
            self._send(self._answer(order))

    def _answer(self, order: Order) -> Returned | Raised:
        handler, lease = self._handler, order.lease
        if self._log_handler is not None:
            logging.getLogger().setLevel(order.log_level)
        try:
            payload = handler.payload.decode(lease.payload) if handler.takes_payload else None
        except PayloadInvalid as error:
            return Raised("discard", "PayloadInvalid", str(error))
        self._ctx = Context(
            lease,
            handler=handler.name,
            time_limit=handler.options.time_limit,
            waited=order.waited,
            send_note=lambda note: self._send(Note(note)),
            state=self._state,
        )
        try:
            value = handler.invoke(payload, self._ctx)
        except BaseException as error:  # noqa: BLE001 -- user code: reported to the worker
            try:
                return _describe_error(error)
            except Exception as defect:  # noqa: BLE001 -- user code: an invalid AttemptEnd
                return _describe_error(defect)
        noticed = self._ctx.noticed
        try:
            return Returned(b"" if value is None else handler.result.encode(value), noticed)
        except PayloadInvalid as error:
            return Raised("discard", "ResultInvalid", f"ResultInvalid: {error}")
        except Exception as error:  # noqa: BLE001 -- user code: a model may have its own encoder
            return _describe_error(error)

    def _send(self, message: FromChild) -> None:
        with self._sending:
            self._socket.sendall(framed(message))

    def _listen(self) -> None:
        with suppress(OSError):
            while head := self._socket.recv(LENGTH.size, socket.MSG_WAITALL):
                (size,) = LENGTH.unpack(head)
                message = _decode_message(self._socket.recv(size, socket.MSG_WAITALL))
                if isinstance(message, Order):
                    self._orders.put(message)
                elif isinstance(message, Leave):
                    self._orders.put(None)
                elif self._ctx is not None:
                    self._ctx.cancelled = True
        # The worker is gone, so the job will be delivered again: this attempt must not go on.
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)  # includes processes that the handler has started
        os._exit(1)


class _LogSender(logging.Handler):
    """Sends log lines to the worker, which writes them to its own log."""

    def __init__(self, send: Callable[[FromChild], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        text = writable(self.format(record)[:_LONGEST_TRACE])
        self._send(Logged(record.name, record.levelno, text))


def _describe_error(error: BaseException) -> Raised:
    name = type(only_leaf(error)).__qualname__
    match only_leaf(error):
        case Discard() as discard:
            return Raised("discard", "Discard", words_of(discard.reason))
        case Retry() as retry:
            after = None if retry.after is None else duration_ms("after", retry.after)
            return Raised("retry", name, words_of(retry.reason), after)
        case Snooze(until=datetime() as until) as snooze:
            return Raised("snooze", name, str(snooze), instant_ms("until", until), absolute=True)
        case Snooze() as snooze:
            return Raised("snooze", name, str(snooze), duration_ms("until", snooze.until))  # pyright: ignore[reportArgumentType] -- not a datetime, see above
        case HandOver() as hand_over:
            return Raised("hand_over", name, str(hand_over), duration_ms("lease", hand_over.lease))
        case failure:
            name = type(first_leaf(failure)[0]).__qualname__
            # The handler's frames are at the end of the traceback; the text may be of any length.
            trace = traceback_of(failure)[-_LONGEST_TRACE:]
            return Raised("", name, reason_of(failure), trace=trace)


def find(module: str, file: str, name: str) -> Handler[Any, Any, Any]:
    """Returns the handler *name* of *module*. A program's main file is loaded from *file*."""
    found: Any = (
        runpy.run_path(file, run_name=MAIN)
        if module == "__main__"
        else vars(importlib.import_module(module))
    )
    first, *rest = name.split(".")
    found = found[first]
    for part in rest:
        found = getattr(found, part)
    if not isinstance(found, Handler):
        raise TypeError(f"{module}.{name} is not a handler: processes= needs the decorated name")
    return found  # pyright: ignore[reportUnknownVariableType] -- its types are its module's own


def main() -> None:
    """Serve one handler. Arguments: socket number, module, file, name, entries of sys.path."""
    number, module, file, name, *path = sys.argv[1:]
    # Ctrl-C is for the worker, which lets this process finish its job or ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:] = path
    line = socket.socket(fileno=int(number))
    line.set_inheritable(False)  # a process that the handler starts must not hold it open
    Child(line, find(module, file, name)).serve()


if __name__ == "__main__":
    main()
