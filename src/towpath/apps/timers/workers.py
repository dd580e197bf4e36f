"""Workers of timers in your own process: functions and classes, one or several per type.

If a type has several workers, all are invoked, one after the other. Each success is stored with the
job, under the attempt's fencing token, before the next worker begins. So a retry, in this or in
another process, invokes only the others.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import msgspec

from towpath.app.app import Towpath
from towpath.apps.timers.model import TimerPayload
from towpath.engine.leases import lease_by_token
from towpath.errors import HandlerInvalid, PayloadInvalid
from towpath.ids import QueueName
from towpath.worker.context import Context, Discard
from towpath.worker.handler import Handler, Place


@runtime_checkable
class TaskWorker(Protocol):
    """A worker as a class: which type it is for, and what to do with a timer's params."""

    def type(self) -> str:
        """The type that it works for."""
        ...

    def clazz(self) -> type:
        """Its class."""
        ...

    def invoke(self, message: str) -> Any:
        """Do the work; *message* is the params as text. Plain, or async."""
        ...


def is_task_worker(worker: object) -> bool:
    """Whether *worker* has the methods of a TaskWorker."""
    return all(callable(getattr(worker, name, None)) for name in ("type", "clazz", "invoke"))


def text_of(params: msgspec.Raw) -> str:
    """Returns params as text: a string as it is, everything else as JSON."""
    value: Any = None
    try:
        value = msgspec.json.decode(params)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return bytes(params).decode(errors="replace")
    return value if isinstance(value, str) else bytes(params).decode()


class TypeWorker(NamedTuple):
    """One worker of a type: how it is called, and the name under which its success is noted."""

    name: str
    handler: Handler[Any, Any, Any]
    as_text: bool

    @classmethod
    def of(cls, queue: QueueName, worker: Callable[..., Any] | TaskWorker) -> TypeWorker:
        """Raises HandlerInvalid if *worker* can't be called with params."""
        if is_task_worker(worker):
            # `clazz()` is not called: while a class is being decorated, its name is not bound yet.
            kind = type(worker)
            invoke = cast("TaskWorker", worker).invoke
            return cls(f"{kind.__module__}.{kind.__qualname__}", Handler(queue, invoke), True)
        function = cast("Callable[..., Any]", worker)
        handler = Handler[Any, Any, Any](queue, function)
        named = f"{handler.__module__}.{getattr(function, '__qualname__', handler.name)}"
        return cls(named, handler, False)

    @property
    def is_plain(self) -> bool:
        """Whether it runs in a thread."""
        return self.handler.place is Place.THREAD

    def call(self, params: msgspec.Raw, ctx: Context) -> Any:
        """Call the worker. Returns its result, or an awaitable if the worker is async."""
        if self.as_text:
            payload: Any = text_of(params)
        elif self.handler.takes_payload:
            try:
                payload = self.handler.payload.decode(bytes(params))
            except PayloadInvalid as error:
                raise Discard(f"PayloadInvalid: {error}") from error
        else:
            payload = None
        return self.handler.invoke(payload, ctx)


class Dispatch:
    """The workers of one type, combined into one handler for its queue."""

    def __init__(self, app: Towpath, queue: QueueName) -> None:
        self._app, self.queue = app, queue
        self.workers: tuple[TypeWorker, ...] = ()

    def add(self, worker: Callable[..., Any] | TaskWorker) -> None:
        """Add a worker. Raises HandlerInvalid if it was added before."""
        invoked = TypeWorker.of(self.queue, worker)
        if invoked.name in [other.name for other in self.workers]:
            raise HandlerInvalid(invoked.name, rule="this type already has a worker")
        self.workers = (*self.workers, invoked)

    @property
    def function(self) -> Callable[..., Any]:
        """The function for the handler. A plain worker that is the only one runs in a thread of the
        runtime, which can abandon it if it never ends.
        """
        first = self.workers[0]

        def in_thread(payload: bytes, ctx: Context) -> None:
            first.call(TimerPayload.read(payload).params, ctx)

        async def in_loop(payload: bytes, ctx: Context) -> None:
            await self._invoke(payload, ctx)

        chosen = in_thread if len(self.workers) == 1 and first.is_plain else in_loop
        chosen.__name__ = first.handler.name  # what logs and metrics call it
        return chosen

    async def _invoke(self, payload: bytes, ctx: Context) -> None:
        """Invoke all workers, one after the other. If one fails, the others are invoked as well."""
        params, workers = TimerPayload.read(payload).params, self.workers
        if len(workers) == 1:
            await _call(workers[0], params, ctx)
            return
        done = await self._read_succeeded(ctx)
        failed: list[Exception] = []
        for worker in workers:
            if worker.name in done:
                continue
            try:
                await _call(worker, params, cast("Context", _WorkerContext(ctx, done)))
            except Exception as error:  # noqa: BLE001 -- user code: raised below, when all were invoked
                failed.append(error)
            else:
                done.append(worker.name)
                await self._store_succeeded(ctx, done)
        if failed:
            # Raise an error that allows a retry, even if another worker has raised Discard.
            raise next((error for error in failed if not isinstance(error, Discard)), failed[0])

    async def _read_succeeded(self, ctx: Context) -> list[str]:
        """Returns the workers that succeeded in an earlier, failed attempt at this timer."""
        progress = (await self._app.engine.inspect.job(ctx.job)).progress
        try:
            return msgspec.json.decode(progress or b"{}", type=_Progress).invoked
        except msgspec.MsgspecError:
            return []

    async def _store_succeeded(self, ctx: Context, done: Sequence[str]) -> None:
        """Store which workers have succeeded. Raises LeaseLost."""
        noted = msgspec.json.encode(_Progress(invoked=list(done)))
        ctx.progress(noted)  # replaces a note of the worker that may be on its way
        lease = lease_by_token(ctx.job, ctx.token, worker=ctx.worker)
        await self._app.engine.progress(lease, noted)


class _Progress(msgspec.Struct, omit_defaults=True):
    """The progress note of a timer whose type has several workers."""

    invoked: list[str] = []
    note: Any = None
    """The note of the worker that runs now."""


class _WorkerContext:
    """The Context for one of several workers: its notes keep the names of those that succeeded."""

    def __init__(self, ctx: Context, done: Sequence[str]) -> None:
        self._ctx, self._done = ctx, done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def progress(self, note: Any) -> None:
        if isinstance(note, bytes):
            note = note.decode(errors="replace")
        self._ctx.progress(msgspec.to_builtins(_Progress(invoked=list(self._done), note=note)))


async def _call(worker: TypeWorker, params: msgspec.Raw, ctx: Context) -> None:
    if worker.is_plain:
        await asyncio.to_thread(worker.call, params, ctx)
        return
    value = worker.call(params, ctx)
    if inspect.isawaitable(value):
        await value
