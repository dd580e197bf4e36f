"""Processes for handlers that compute: as many per handler as it asks for, each with one job.

Not concurrent.futures: its pool can't end the one process that is stuck, and it pickles.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from towpath.clock import instant, milliseconds
from towpath.telemetry.events import PROCESS_DIED
from towpath.telemetry.logs import Log
from towpath.worker.attempt import Attempt
from towpath.worker.child import LENGTH, Cancel, Logged, Note, Order, Raised, Returned, Said, framed
from towpath.worker.endings import ChildDiscarded, ChildFailed
from towpath.worker.handler import Handler
from towpath.worker.verdicts import Discard, Retry, Snooze

_LAST_WORDS = 1.0
_decode_said = msgspec.msgpack.Decoder(Said).decode


class Processes:
    """The processes of a worker's handlers. Started when first needed, replaced when they die."""

    def __init__(self, *, note: Callable[[Attempt, bytes], None], log: Log) -> None:
        self._note, self._log = note, log
        self._idle: dict[str, list[_Process]] = {}
        self._busy: dict[Attempt, _Process] = {}

    async def run(self, handler: Handler[Any, Any, Any], attempt: Attempt) -> bytes:
        """The result as JSON. Raises the handler's verdict, or ChildFailed.

        Cancelled, it kills the process: nothing of the attempt goes on.
        """
        idle = self._idle.setdefault(_place(handler), [])
        process = await self._idle_one(idle) or _Process(handler)
        self._busy[attempt] = process
        try:
            result = await process.run(attempt, self._note)
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
        except (ChildFailed, Discard, Retry, Snooze):
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

    async def close(self) -> None:
        """End the idle ones."""
        for process in [it for idle in self._idle.values() for it in idle]:
            await process.kill()


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
                case Returned(result):
                    return result
                case Raised() as raised:
                    raise _verdict(raised)
                case _:
                    continue

    def tell(self, message: Order | Cancel) -> None:
        self._writer.write(framed(message))

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
        case "snooze":
            ms = raised.ms or 0
            return Snooze(instant(ms) if raised.absolute else milliseconds(ms))
        case _:
            return ChildFailed(raised.error, raised.reason, raised.trace)


def _where(handler: Handler[Any, Any, Any]) -> tuple[str, str, str]:
    function = handler.function
    return function.__module__, inspect.getfile(function), getattr(function, "__qualname__", "")


def _place(handler: Handler[Any, Any, Any]) -> str:
    return f"{handler.queue}/{handler.name}"
