"""Where handlers run outside the event loop: in threads, and in processes of their own.

A thread can't be ended from outside. A thread that does not return is left behind, and its slot is
lost until it returns. concurrent.futures is not used, because it joins its threads at exit: a
handler that never returns would keep a stopped worker alive. A process can be killed; the next job
gets a new one.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

import msgspec

from towpath.clock import instant, milliseconds
from towpath.supervise import detached, expect_loss
from towpath.telemetry.events import PROCESS_DIED
from towpath.telemetry.logs import Log
from towpath.worker.attempt import Attempt, ProgressNotes
from towpath.worker.child import (
    LENGTH,
    Cancel,
    FromChild,
    Leave,
    Logged,
    Note,
    Order,
    Raised,
    Returned,
    ToChild,
    framed,
)
from towpath.worker.context import AttemptEnd, HandOver, Retry, Snooze
from towpath.worker.handler import Handler
from towpath.worker.settlements import ChildDiscarded, ChildFailed

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[[], None]


class UnjoinedExecutor(ThreadPoolExecutor):
    """An executor whose threads nothing waits for at exit; as many as asyncio's own would have.

    A subclass of ThreadPoolExecutor only because event loops accept no other class.
    """

    def __init__(self) -> None:
        super().__init__()
        self._most = min(32, (os.cpu_count() or 1) + 4)
        self._inbox: SimpleQueue[Work | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self._inbox.put(lambda: _run(future, lambda: fn(*args, **kwargs)))
        if not self._idle.acquire(blocking=False) and self._started < self._most:
            self._started += 1
            threading.Thread(target=self._work, name="towpath-executor", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 -- its name in the standard library
        """End idle threads, and busy ones after their work. Waits for none."""
        for _ in range(self._started):
            self._inbox.put(None)

    def _work(self) -> None:
        while (work := self._inbox.get()) is not None:
            work()
            self._idle.release()


def _run(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 -- raised where the future is awaited
        future.set_exception(error)
    else:
        future.set_result(result)


class Threads:
    """Threads for handlers. Idle threads are used again; their number has no limit here."""

    def __init__(self, *, lost: Callable[[], None], regained: Callable[[], None]) -> None:
        self._lost, self._regained = lost, regained
        self._idle: list[_Thread] = []

    async def run(self, call: Callable[[], T]) -> T:
        """Run *call* in a thread. Returns or raises what it does.

        Cancelling leaves the thread behind: `lost` is called now, `regained` if it returns later.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        thread = self._idle.pop() if self._idle else _Thread()
        context = contextvars.copy_context()

        def work() -> None:
            outcome = _outcome(context, call)
            # The loop may be closed by now; then the outcome is not needed.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._finish, thread, answer, outcome)

        thread.inbox.put(work)
        try:
            return await answer
        except asyncio.CancelledError:
            # Only then the wait was cancelled; otherwise the handler itself raised CancelledError.
            if answer.cancelled():
                self._lost()
            raise

    def close(self) -> None:
        """Let idle threads end."""
        while self._idle:
            self._idle.pop().inbox.put(None)

    def _finish(
        self,
        thread: _Thread,
        answer: asyncio.Future[Any],
        outcome: tuple[Any, BaseException | None],
    ) -> None:
        self._idle.append(thread)
        value, error = outcome
        if answer.cancelled():
            self._regained()
        elif error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)


class _Thread:
    def __init__(self) -> None:
        self.inbox: SimpleQueue[Work | None] = SimpleQueue()
        threading.Thread(target=self._work, name="towpath-handler", daemon=True).start()

    def _work(self) -> None:
        while (work := self.inbox.get()) is not None:
            work()
            del work  # otherwise it keeps its payload and result alive while the thread is idle


def _outcome(
    context: contextvars.Context, call: Callable[[], T]
) -> tuple[T | None, BaseException | None]:
    try:
        return context.run(call), None
    except (StopIteration, GeneratorExit) as error:
        # A future refuses StopIteration; GeneratorExit would silently end the awaiting coroutine.
        return None, RuntimeError(f"the handler raised {error!r}")
    except BaseException as error:  # noqa: BLE001 -- raised again in the event loop
        return None, error


_LAST_WORDS = 1.0
_decode_message = msgspec.msgpack.Decoder(FromChild).decode


class Processes:
    """The processes of a worker's handlers. Started when first needed, replaced when they die."""

    def __init__(self, notes: ProgressNotes, log: Log) -> None:
        self._notes, self._log = notes, log
        self._idle: dict[Handler[Any, Any, Any], list[_Process]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._busy: dict[Attempt, _Process] = {}

    async def run(self, handler: Handler[Any, Any, Any], attempt: Attempt) -> bytes:
        """Run *attempt* in a process. Returns the result as JSON. Raises the handler's AttemptEnd,
        or ChildFailed.

        Cancelling kills the process, so that nothing of the attempt goes on.
        """
        idle = self._idle.setdefault(handler, [])
        process = await self._idle_one(idle) or _Process(handler)
        self._busy[attempt] = process
        try:
            result = await process.run(attempt, self._notes.send)
        except asyncio.CancelledError:
            await process.kill()
            raise
        except ProcessDied as died:
            lease = attempt.lease
            self._log.emit(
                PROCESS_DIED,
                job=lease.id,
                queue=lease.queue,
                handler=handler.name,
                attempt=lease.attempt,
                code=died.code,
            )
            raise
        except (ChildFailed, AttemptEnd):
            idle.append(process)
            raise
        finally:
            del self._busy[attempt]
        idle.append(process)
        return result

    async def _idle_one(self, idle: list[_Process]) -> _Process | None:
        while idle:
            process = idle.pop()
            if process.is_there:
                return process
            await process.kill()
        return None

    def cancel(self, attempt: Attempt) -> None:
        """Set `ctx.cancelled` for the handler, which decides how to end."""
        if attempt in self._busy:
            self._busy[attempt].send(Cancel())

    def end_idle(self, handler: Handler[Any, Any, Any]) -> None:
        """End the idle processes of *handler*."""
        for process in self._idle.pop(handler, ()):
            task = detached("end of a handler's process", process.leave())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End all idle processes, and wait for their end."""
        for handler in list(self._idle):
            self.end_idle(handler)
        await asyncio.gather(*self._ending, return_exceptions=True)


class ProcessDied(ChildFailed):
    """The process ended in the middle of the job."""

    def __init__(self, code: int) -> None:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        super().__init__("ProcessDied", f"ProcessDied: the handler's process ended with {how}")
        self.code = code


class _Process:
    def __init__(self, handler: Handler[Any, Any, Any]) -> None:
        self._handler = handler
        self._child: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[int] | None = None

    @property
    def is_there(self) -> bool:
        """Whether the process is alive; it may have died while it was idle."""
        return not self._reader.at_eof()

    async def run(self, attempt: Attempt, note: Callable[[Attempt, bytes], None]) -> bytes:
        if self._child is None:
            await self._start()
        lease = msgspec.structs.replace(attempt.lease, headers=dict(attempt.lease.headers))
        level = logging.getLogger().getEffectiveLevel()
        self.send(Order(lease, attempt.idled, level))
        while True:
            match await self._receive():
                case Note(text):
                    if attempt.ctx is not None:
                        attempt.ctx.noted = True
                    note(attempt, text)
                case Logged(name, level, text):
                    _write_line(name, level, text)
                case Returned(result, noticed):
                    if attempt.ctx is not None:
                        attempt.ctx.noticed = noticed
                    return result
                case Raised() as raised:
                    raise _exception_of(raised)
                case _:
                    continue

    def send(self, message: ToChild) -> None:
        self._writer.write(framed(message))

    async def leave(self) -> None:
        """Let the process leave its lifespan, then end it."""
        lifespan = self._handler.lifespan
        if lifespan is not None and self._watching is not None and self._child is not None:
            self.send(Leave())
            most = lifespan.limit.total_seconds() + _LAST_WORDS
            await asyncio.wait((self._watching,), timeout=most)
        await self._end()

    async def kill(self) -> None:
        """Kill the process and all processes that it has started."""
        await self._end()

    async def _end(self) -> int:
        """Kill the process and all processes that it has started. Returns its exit code."""
        child, self._child = self._child, None
        if child is None or self._watching is None:
            return 0
        self._writer.close()
        if child.returncode is None:
            _kill_group(child.pid)
        return await asyncio.shield(self._watching)

    async def _watch_exit(self, child: asyncio.subprocess.Process) -> int:
        """Wait for the end of the process. Returns its exit code.

        Processes that it has started are killed, too: a forked copy keeps the socket open.
        """
        code = await child.wait()
        _kill_group(child.pid)
        # A copy that has left the process group keeps the socket open all the same. Close it after
        # a while: the last messages may still be on their way.
        asyncio.get_running_loop().call_later(_LAST_WORDS, self._writer.transport.abort)
        return code

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        expect_loss(self._writer)
        with theirs:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "towpath.worker.child", str(theirs.fileno()),
                *_location_of(self._handler), *sys.path,
                pass_fds=[theirs.fileno()],
                # A Ctrl-C, or a signal to the worker's process group, must not reach it.
                start_new_session=True,
            )  # fmt: skip
        self._watching = asyncio.create_task(self._watch_exit(self._child))

    async def _receive(self) -> FromChild:
        try:
            head = await self._reader.readexactly(LENGTH.size)
            return _decode_message(await self._reader.readexactly(*LENGTH.unpack(head)))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise ProcessDied(await self._end()) from error


def _write_line(name: str, level: int, text: str) -> None:
    """Log a line of the handler's process as if it was written here, so that it names its job."""
    logger = logging.getLogger(name)
    if logger.isEnabledFor(level):
        logger.handle(logging.LogRecord(name, level, "", 0, text, None, None))


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _exception_of(raised: Raised) -> Exception:
    span = None if raised.ms is None else milliseconds(raised.ms)
    match raised.kind:
        case "discard":
            return ChildDiscarded(raised.error, raised.reason)
        case "retry":
            return Retry(raised.reason, after=span)
        case "hand_over":
            return HandOver(milliseconds(raised.ms or 0))
        case "snooze":
            ms = raised.ms or 0
            return Snooze(instant(ms) if raised.absolute else milliseconds(ms))
        case _:
            return ChildFailed(raised.error, raised.reason, raised.trace)


def _location_of(handler: Handler[Any, Any, Any]) -> tuple[str, str, str]:
    function = handler.function
    return function.__module__, inspect.getfile(function), getattr(function, "__qualname__", "")
