"""Timers as those see them who set them: submitted, moved, cancelled, looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING

from towpath.apps.application import Host
from towpath.apps.timers.errors import (
    TimerDiffers,
    TimerEnded,
    TimerNotFound,
    TimerTypeAmbiguous,
    TimerTypesFull,
)
from towpath.apps.timers.model import ENDED, NewTimer, Timer, TypeKey, timer_of
from towpath.apps.timers.options import TimersOptions
from towpath.apps.timers.service_mode import ServiceMode
from towpath.apps.timers.types import Types, queue_of
from towpath.clock import instant
from towpath.engine.engine import Engine
from towpath.engine.model import (
    Call,
    JobOptions,
    NewJob,
    Submitted,
    job_ref,
    new_job,
    with_own_attempts,
)
from towpath.errors import JobNotFound, TowpathError

if TYPE_CHECKING:
    from towpath.ledger.records.jobs import Jobs

_REFUSALS = (TimerTypesFull, TimerTypeAmbiguous)


class TimerService:
    """The application on one server. *connect* gives the engine, or raises ServerUnreachable."""

    def __init__(
        self,
        connect: Callable[[], Engine],
        options: TimersOptions,
        *,
        jobs: Callable[[], Jobs] | None = None,
    ) -> None:
        self._connect, self.options = connect, options
        self.types = Types(connect, options)
        self.instances = ServiceMode(connect, options, self.types, jobs=jobs)

    # ── a timer's life ───────────────────────────────────────────────────────────────────

    async def submit(self, timer: NewTimer) -> Timer:
        """Submit a timer. When this returns it is stored.

        The same id with the same content again is the timer that is there (`existed`). Raises
        TimerDiffers for other params or another time, TimerEnded, TimerTypesFull,
        TimerTypeAmbiguous, PayloadTooLarge and the store's errors.
        """
        [answer] = await self.submit_many([timer])
        if isinstance(answer, TowpathError):
            raise answer
        return answer

    async def submit_many(
        self, timers: Sequence[NewTimer], *, call: Call | None = None
    ) -> list[Timer | TowpathError]:
        """Submit many timers, answered one by one, in order: a refused one's answer is its error.

        Those of one type are one step. Raises the store's errors, when some may be stored: then
        repeat it with the same ids.
        """
        by_type: dict[TypeKey, list[int]] = {}
        for place, timer in enumerate(timers):
            by_type.setdefault(timer.key, []).append(place)
        answers: dict[int, Timer | TowpathError] = {}
        for key, places in by_type.items():
            some = await self._submit_type(key, [timers[place] for place in places], call)
            answers |= dict(zip(places, some, strict=True))
        return [answers[place] for place in range(len(timers))]

    async def get(self, key: TypeKey, task_id: str) -> Timer:
        """The timer as it is now. Raises TimerNotFound."""
        ref = job_ref(queue_of(key), task_id)
        try:
            return timer_of(key, await self._connect().job(ref))
        except JobNotFound as error:
            raise TimerNotFound(error.job) from error

    # ── how it is done ───────────────────────────────────────────────────────────────────

    async def _submit_type(
        self, key: TypeKey, timers: Sequence[NewTimer], call: Call | None
    ) -> list[Timer | TowpathError]:
        try:
            queue = await self.types.note(key)
        except _REFUSALS as refusal:
            return [refusal for _ in timers]
        jobs = [_job(timer) for timer in timers]
        engine = self._connect()
        taken = await engine.submit_many(queue, jobs, call=call)
        each = zip(timers, taken, strict=True)
        return list(await asyncio.gather(*(self._told(engine, *one) for one in each)))

    async def _told(
        self, engine: Engine, timer: NewTimer, taken: Submitted | TowpathError
    ) -> Timer | TowpathError:
        """What the submitter hears. Only the server knows when a delay ends: one look more."""
        if isinstance(taken, TowpathError):
            return taken
        if taken.existed and taken.state in ENDED:
            return TimerEnded(taken.job, taken.state)
        if taken.existed and not taken.same_payload:
            return TimerDiffers(taken.job)
        if taken.existed or timer.when.due is None:
            try:
                return timer_of(timer.key, await engine.job(taken.job), existed=taken.existed)
            except JobNotFound:
                return TimerEnded(taken.job, "gone")
        return Timer(
            task_id=taken.id,
            task_type=timer.key.task_type,
            app=timer.key.app,
            state=taken.state,
            due=instant(timer.when.due),
            params=timer.params,
        )


def serving(host: Host) -> AbstractAsyncContextManager[TimerService]:
    """The application in a server."""
    return nullcontext(TimerService(host.engine, host.options, jobs=lambda: host.ledger.jobs))


def _job(timer: NewTimer) -> NewJob:
    options: JobOptions = {**timer.when.options(), "id": timer.task_id, "retry": timer.retry}
    return new_job(timer.packed(), **with_own_attempts(options))
