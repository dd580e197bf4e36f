"""Timers for code without an event loop, and under the names of the delay queue that they replace.

TaskSubmitService(timers).send(DelayQueueJob("order-7", "order.timeout", 1794789000000, "{}"))
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from towpath.app.app import Towpath
from towpath.apps.timers.client import TimerClient
from towpath.apps.timers.model import Timer, TimerFields, Times, TypeKey, new_timer, when
from towpath.apps.timers.options import TimersOptions
from towpath.apps.timers.service import TimerService
from towpath.engine.engine import Engine
from towpath.supervise import new_loop
from towpath.worker.executors import UnjoinedExecutor
from towpath.worker.worker import Worker

if TYPE_CHECKING:
    from towpath.apps.timers.plugin import Timers

T = TypeVar("T")


class BlockingTimers:
    """Timers for scripts, Django views and notebooks. Connects at first use, once per process.

    Recorded timers need the app's event loop: they are refused here (LedgerMissing).
    """

    def __init__(self, app: Towpath, options: TimersOptions) -> None:
        self._app, self._options = app, options
        self._service_of_engine: tuple[Engine, TimerService] | None = None

    def submit(
        self,
        task_type: str,
        params: Any = None,
        *,
        task_id: str | None = None,
        **fields: Unpack[TimerFields],
    ) -> Timer:
        """Submit a timer, as `Timers.submit` does."""
        timer = new_timer(task_type, params, task_id=task_id, **fields)
        return self._run(lambda service: service.submit(timer))

    def set(
        self, task_type: str, task_id: str, params: Any = None, **fields: Unpack[TimerFields]
    ) -> Timer:
        """Create a timer under its id, or replace the one that waits there."""
        timer = new_timer(task_type, params, task_id=task_id, **fields)
        return self._run(lambda service: service.set(timer))

    def move(
        self, task_type: str, task_id: str, *, app: str | None = None, **times: Unpack[Times]
    ) -> Timer:
        """Move a waiting timer to another time."""
        key, at = TypeKey(task_type, app), when(**times)
        return self._run(lambda service: service.move(key, task_id, at))

    def cancel(self, task_type: str, task_id: str, *, app: str | None = None) -> Timer:
        """Cancel a timer; a running one is asked to stop."""
        return self._run(lambda service: service.cancel(TypeKey(task_type, app), task_id))

    def get(self, task_type: str, task_id: str, *, app: str | None = None) -> Timer:
        """Read a timer."""
        return self._run(lambda service: service.get(TypeKey(task_type, app), task_id))

    def _run(self, do: Callable[[TimerService], Coroutine[Any, Any, T]]) -> T:
        return self._app.blocking.run(lambda engine: do(self._service(engine)))

    def _service(self, engine: Engine) -> TimerService:
        # In a forked child, the app has another engine.
        if self._service_of_engine is None or self._service_of_engine[0] is not engine:
            self._service_of_engine = engine, TimerService(engine, self._options)
        return self._service_of_engine[1]


@dataclass(frozen=True)
class DelayQueueJob:
    """A timer under the names of the delay queue."""

    taskId: str  # noqa: N815 -- its published name
    """The timer's id."""
    taskType: str  # noqa: N815 -- the same
    delayTime: int  # noqa: N815 -- the same
    """When it runs: 13 digits (ms since 1970) or 16 digits (µs)."""
    params: str = ""
    """What the worker gets as its message; JSON by custom."""


class TaskSubmitService:
    """Submits timers under the names of the delay queue: to Redis, or in service mode over HTTP."""

    def __init__(self, timers: Timers | TimerClient) -> None:
        self._timers = timers if isinstance(timers, TimerClient) else timers.blocking

    def send(self, job: DelayQueueJob) -> None:
        """Submit a timer. Returns once it is stored. Raises what `submit` raises."""
        self._timers.submit(job.taskType, job.params, task_id=job.taskId, delay_time=job.delayTime)


class BackgroundWorker:
    """A worker in the background of this process: in the running event loop, or in a thread with
    its own loop.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._task: asyncio.Task[int] | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start the worker. In a thread, it is stopped cleanly when the program ends."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            ready = threading.Event()
            self._thread = threading.Thread(
                target=self._work, args=(ready,), name="towpath-timers", daemon=True
            )
            self._thread.start()
            ready.wait()
            atexit.register(self.stop)
        else:
            self._task = asyncio.create_task(self._worker.run(), name="towpath timers")

    def stop(self) -> None:
        """Claim no more. In a thread, return when running jobs have ended. May be called twice."""
        if self._thread is None:
            self._worker.stop()
            return
        atexit.unregister(self.stop)
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._worker.stop)
        self._thread.join()

    async def stopped(self) -> None:
        """Stop the worker in an event loop, and return when running jobs have ended."""
        self._worker.stop()
        if self._task is not None:
            await self._task

    def _work(self, ready: threading.Event) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            self._loop = runner.get_loop()
            self._loop.set_default_executor(UnjoinedExecutor())
            ready.set()
            runner.run(self._worker.run())
