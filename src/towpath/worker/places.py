"""Where handlers run beside the event loop: threads, and processes of their own.

A thread can't be ended from outside: one that does not return is left behind, and whoever uses the
pool is told that a slot is lost for as long as that lasts. Not concurrent.futures: its threads are
joined when the process ends, so that one handler that never returns would keep a stopped worker
alive. A process can be ended: it is killed, and the next job gets another.
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
    Leave,
    Logged,
    Note,
    Order,
    Raised,
    Returned,
    Said,
    framed,
)
from towpath.worker.context import AttemptEnd, HandOver, Retry, Snooze
from towpath.worker.handler import Handler
from towpath.worker.settlements import ChildDiscarded, ChildFailed

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[[], None]


class Unjoined(ThreadPoolExecutor):
    """As many threads as asyncio would have, none of them waited for.

    A ThreadPoolExecutor in name only: event loops take nothing else.
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
        """Let the threads end that have nothing to do; wait for none."""
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
    except BaseException as error:  # noqa: BLE001 -- told to whoever waits for it
        future.set_exception(error)
    else:
        future.set_result(result)


class Threads:
    """As many threads as are in use at once; idle ones are used again."""

    def __init__(self, *, lost: Callable[[], None], regained: Callable[[], None]) -> None:
        self._lost, self._regained = lost, regained
        self._idle: list[_Thread] = []

    async def run(self, call: Callable[[], T]) -> T:
        """What *call* returns or raises, run in a thread.

        Cancelling leaves the thread behind: `lost` is told now, `regained` if it returns after all.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        thread = self._idle.pop() if self._idle else _Thread()
        context = contextvars.copy_context()

        def work() -> None:
            outcome = _outcome(context, call)
            # The loop may be closed by now: then nobody waits for the outcome.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._returned, thread, answer, outcome)

        thread.inbox.put(work)
        try:
            return await answer
        except asyncio.CancelledError:
            # Unless it has answered: what the handler raised may be a cancellation too.
            if answer.cancelled():
                self._lost()
            raise

    def close(self) -> None:
        """Let idle threads end."""
        while self._idle:
            self._idle.pop().inbox.put(None)

    def _returned(
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
            del work  # or its payload and result are kept until there is another


def _outcome(
    context: contextvars.Context, call: Callable[[], T]
) -> tuple[T | None, BaseException | None]:
    try:
        return context.run(call), None
    except (StopIteration, GeneratorExit) as error:
        # A future refuses the one, the other would end whoever waits without a word.
        return None, RuntimeError(f"the handler raised {error!r}")
    except BaseException as error:  # noqa: BLE001 -- whatever it is, the runner decides
        return None, error


_LAST_WORDS = 1.0
_decode_said = msgspec.msgpack.Decoder(Said).decode


class Processes:
    """The processes of a worker's handlers. Started when first needed, replaced when they die."""

    def __init__(self, notes: ProgressNotes, log: Log) -> None:
        self._notes, self._log = notes, log
        self._idle: dict[Handler[Any, Any, Any], list[_Process]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._busy: dict[Attempt, _Process] = {}

    async def run(self, handler: Handler[Any, Any, Any], attempt: Attempt) -> bytes:
        """The result as JSON. Raises the handler's verdict, or ChildFailed.

        Cancelled, it kills the process: nothing of the attempt goes on.
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
        """Tell the handler that somebody wants it to end; it decides itself."""
        if attempt in self._busy:
            self._busy[attempt].tell(Cancel())

    def let_go(self, handler: Handler[Any, Any, Any]) -> None:
        """End the processes of a handler that has nothing more to do."""
        for process in self._idle.pop(handler, ()):
            task = detached("end of a handler's process", process.leave())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End the idle ones."""
        for handler in list(self._idle):
            self.let_go(handler)
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
        """Whether it has not ended while nobody needed it."""
        return not self._reader.at_eof()

    async def run(self, attempt: Attempt, note: Callable[[Attempt, bytes], None]) -> bytes:
        if self._child is None:
            await self._start()
        lease = msgspec.structs.replace(attempt.lease, headers=dict(attempt.lease.headers))
        level = logging.getLogger().getEffectiveLevel()
        self.tell(Order(lease, attempt.idled, level))
        while True:
            match await self._hear():
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
                    raise _verdict(raised)
                case _:
                    continue

    def tell(self, message: Order | Cancel | Leave) -> None:
        self._writer.write(framed(message))

    async def leave(self) -> None:
        """Let it end what its handler shares with others, and end it then."""
        lifespan = self._handler.lifespan
        if lifespan is not None and self._watching is not None and self._child is not None:
            self.tell(Leave())
            most = lifespan.limit.total_seconds() + _LAST_WORDS
            await asyncio.wait((self._watching,), timeout=most)
        await self._end()

    async def kill(self) -> None:
        """End it, and what it has started itself."""
        await self._end()

    async def _end(self) -> int:
        """The same; its exit code."""
        child, self._child = self._child, None
        if child is None or self._watching is None:
            return 0
        self._writer.close()
        if child.returncode is None:
            _kill_group(child.pid)
        return await asyncio.shield(self._watching)

    async def _watched(self, child: asyncio.subprocess.Process) -> int:
        """Its exit code, once it has ended by itself or was killed.

        What it has started ends with it, and with that the line: a copy of it holds that open.
        """
        code = await child.wait()
        _kill_group(child.pid)
        # Who has left the group holds it all the same. The last words may still be on their way.
        asyncio.get_running_loop().call_later(_LAST_WORDS, self._writer.transport.abort)
        return code

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        expect_loss(self._writer)
        with theirs:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "towpath.worker.child", str(theirs.fileno()),
                *_where(self._handler), *sys.path,
                pass_fds=[theirs.fileno()],
                # A Ctrl-C or a signal to the group is for the worker alone.
                start_new_session=True,
            )  # fmt: skip
        self._watching = asyncio.create_task(self._watched(self._child))

    async def _hear(self) -> Said:
        try:
            head = await self._reader.readexactly(LENGTH.size)
            return _decode_said(await self._reader.readexactly(*LENGTH.unpack(head)))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise ProcessDied(await self._end()) from error


def _write_line(name: str, level: int, text: str) -> None:
    """A line of a handler's own logger, as if it ran here: it names the job that it is about."""
    logger = logging.getLogger(name)
    if logger.isEnabledFor(level):
        logger.handle(logging.LogRecord(name, level, "", 0, text, None, None))


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _verdict(raised: Raised) -> Exception:
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


def _where(handler: Handler[Any, Any, Any]) -> tuple[str, str, str]:
    function = handler.function
    return function.__module__, inspect.getfile(function), getattr(function, "__qualname__", "")
