"""The service of timers: submit, set, move, cancel, read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from towpath.app.jobs import STATES
from towpath.apps.application import Host
from towpath.apps.owners import ALL, Access, access_of
from towpath.apps.timers.errors import (
    TimerDiffers,
    TimerEnded,
    TimerNotFound,
    TimerRunning,
    TimerTaken,
    TimerTypeAmbiguous,
    TimerTypesFull,
)
from towpath.apps.timers.listing import (
    NO_INSTANCE,
    TimerPage,
    TimerQuery,
    TypeView,
    page_of,
    status_of,
    views_of,
)
from towpath.apps.timers.log import FiringLog
from towpath.apps.timers.model import (
    ENDED,
    NewTimer,
    Timer,
    TypeKey,
    When,
    timer_of,
)
from towpath.apps.timers.options import TimersOptions
from towpath.apps.timers.recording import TimerRecords
from towpath.apps.timers.service_mode import ServiceMode
from towpath.apps.timers.types import TypeInfo, Types, queue_of
from towpath.clock import instant
from towpath.engine.engine import Engine
from towpath.engine.explain import Explanation, Why
from towpath.engine.inspect import Counts
from towpath.engine.model import Call, JobRef, NewJob, Submitted, job_ref, new_job
from towpath.engine.states import State
from towpath.errors import (
    JobCancelled,
    JobDead,
    JobDone,
    JobNotFound,
    JobNotWaiting,
    ServerError,
    ServerUnreachable,
    TowpathError,
)
from towpath.ledger.errors import RecordEnded, RecordNotFound, RecordNotWaiting

if TYPE_CHECKING:
    from towpath.ledger.keys.key import KeyInfo
    from towpath.ledger.records.jobs import Jobs

_REFUSALS = (TimerTypesFull, TimerTypeAmbiguous)
_WAITS = (Why.NO_WORKER, Why.NEXT, Why.BEHIND_OTHERS)
_SWEEP_EVERY = 60.0
_REDIS_WITHIN = 2.0
"""Seconds that a call for a recorded timer waits for Redis. Its record is enough: a relay queues it
later."""
_ENDED_BY = {JobDone: State.DONE, JobDead: State.DEAD, JobCancelled: State.CANCELLED}


def _everything(_: str) -> bool:
    return True


class TimerService:
    """The timers on one Redis. *jobs* are the ledger's jobs; without them, recorded timers are
    refused.
    """

    def __init__(
        self,
        engine: Engine,
        options: TimersOptions,
        *,
        jobs: Jobs | None = None,
        log: FiringLog | None = None,
    ) -> None:
        self._engine, self.options = engine, options
        self._records = TimerRecords(jobs)
        self.types = Types(engine, options)
        self.log = log or FiringLog(engine, options)
        self.instances = ServiceMode(engine, options, self.types, jobs=jobs, log=self.log)

    # ── changes of timers ────────────────────────────────────────────────────────────────

    def access(self, key: KeyInfo) -> Access:
        """Returns the rights of *key*."""
        return access_of(key, shared=self.options.shared)

    async def submit(self, timer: NewTimer) -> Timer:
        """Submit a timer. Returns once it is stored.

        The same id with the same content again returns the existing timer (`existed`). Raises
        TimerDiffers for other params or another time, TimerEnded, TimerTypesFull,
        TimerTypeAmbiguous, PayloadTooLarge, LedgerMissing and the errors of Redis.
        """
        [answer] = await self.submit_many([timer])
        if isinstance(answer, TowpathError):
            raise answer
        return answer

    async def submit_many(
        self, timers: Sequence[NewTimer], *, call: Call | None = None, access: Access = ALL
    ) -> list[Timer | TowpathError]:
        """Submit many timers. Returns the timer or the error of each, in order; TimerTaken if the
        id belongs to another owner.

        All timers of one type are stored in one step, under the name *call*. If Redis does not
        answer, timers may be stored or not: repeat them with the same ids.
        """
        steps: dict[tuple[TypeKey, bool], list[int]] = {}
        for place, timer in enumerate(timers):
            steps.setdefault((timer.key, timer.record), []).append(place)
        answers: dict[int, Timer | TowpathError] = {}
        for (key, record), places in steps.items():
            batch = [timers[place] for place in places]
            if record:
                answered = await self._submit_recorded(batch, access)
                answers |= dict(zip(places, answered, strict=True))
                continue
            try:
                queue = await self.types.ensure(key)
                submitted = await self._engine.submit_many(
                    queue, [_job(timer) for timer in batch], call=call
                )
            except (*_REFUSALS, ServerError) as refusal:
                answers |= dict.fromkeys(places, refusal)
                continue
            each = zip(batch, submitted, strict=True)
            answered = await asyncio.gather(*(self._answer_submit(*one, access) for one in each))
            answers |= dict(zip(places, answered, strict=True))
        return [answers[place] for place in range(len(timers))]

    async def set(
        self, timer: NewTimer, *, call: Call | None = None, access: Access = ALL
    ) -> Timer:
        """Create a timer under its id, or replace the one that waits there.

        An ended timer is created again. The owner stays. `existed` says whether a timer was
        replaced. Raises TimerRunning if a worker runs the timer, TimerTaken if it belongs to
        another owner, and what `submit` raises.
        """
        queue = await self.types.ensure(timer.key)
        job = _job(timer)
        ref = JobRef(queue, job.id)
        with _as_timer_errors(ref):
            there = await self._find_existing(ref, access)
            recorded = there is not None and there.record
            # A newer timer without a record may hide a record that has ended.
            row = await self._records.find(_ANY, ref) if timer.record and not recorded else None
            for found in filter(None, (there, row)):
                if not access.owns(found.owner):
                    raise TimerTaken(ref)
                timer = msgspec.structs.replace(timer, owner=found.owner)
            if timer.record or recorded:
                return await self._records.set(queue, timer, job.id)
            placed = await self._engine.set(queue, job.payload, call=call, **timer.options(job.id))
        return await self._read_stored(timer, ref, placed.state, existed=placed.replaced)

    async def move(
        self,
        key: TypeKey,
        task_id: str,
        when: When,
        *,
        call: Call | None = None,
        access: Access = ALL,
    ) -> Timer:
        """Move a waiting timer to another time; a time in the past means now.

        Raises TimerNotFound, TimerRunning, TimerEnded.
        """
        ref = job_ref(queue_of(key), task_id)
        with _as_timer_errors(ref):
            if await self._is_recorded(ref, access):
                return await self._records.move(key, ref, when)
            await self._engine.move(ref, **when.job_time(), call=call)
        return await self.get(key, task_id)

    async def cancel(
        self, key: TypeKey, task_id: str, *, call: Call | None = None, access: Access = ALL
    ) -> Timer:
        """Cancel a timer that has not ended. A running timer stays leased until its worker stops.

        Raises TimerNotFound, TimerEnded.
        """
        ref = job_ref(queue_of(key), task_id)
        with _as_timer_errors(ref):
            if await self._is_recorded(ref, access):
                return await self._records.cancel(key, ref)
            await self._engine.cancel(ref, call=call)
        return await self.get(key, task_id)

    # ── questions ────────────────────────────────────────────────────────────────────────

    async def get(self, key: TypeKey, task_id: str, *, access: Access = ALL) -> Timer:
        """Read a timer. Raises TimerNotFound if there is none, or if it has another owner."""
        ref = job_ref(queue_of(key), task_id)
        with _as_timer_errors(ref):
            timer = await self._get(key, ref)
        if not access.owns(timer.owner):
            raise TimerNotFound(ref)
        return timer

    async def _get(self, key: TypeKey, ref: JobRef) -> Timer:
        try:
            timer = timer_of(key, await self._engine.inspect.job(ref))
        except JobNotFound:
            if not self._records.has_ledger:
                raise
            return await self._records.get(key, ref)
        return await self._records.get(key, ref) if timer.record else timer

    async def explain(
        self, key: TypeKey, task_id: str, *, access: Access = ALL
    ) -> TimerExplanation:
        """Returns why the timer is not running. Raises TimerNotFound."""
        ref = job_ref(queue_of(key), task_id)
        with _as_timer_errors(ref):
            if await self._is_recorded(ref, access):
                ref = await self._records.queued_as(ref)
            found = await self._engine.inspect.explain(ref)
            if found.why is Why.NOT_DUE:
                retried = (await self._engine.inspect.job(ref)).next_try_at is not None
            else:
                retried = False
        infos = {info.key: info for info in await self.types.all()}
        info = infos.get(key)
        app = info.owner.app if info is not None and info.owner is not None else None
        waits = retried or found.why in _WAITS
        if app and waits and await self.instances.are_all_avoided(app, key.task_type):
            text = f"calls to all instances of app {app} fail; they are tried again"
            return TimerExplanation(
                "instances_avoided", f"{text}; {found.text}" if retried else text
            )
        return _explanation_of(found, info, retried=retried)

    async def list(
        self,
        wanted: TimerQuery,
        *,
        after: str | None = None,
        size: int = 100,
        covers: Callable[[str], bool] = _everything,
        access: Access = ALL,
    ) -> TimerPage:
        """Returns a page of timers by type, state and time, of queues that are covered."""
        infos = [info for info in await self.types.all() if covers(info.queue)]
        return await page_of(self._engine, infos, wanted, after=after, size=size, access=access)

    async def all_types(self, covers: Callable[[str], bool] = _everything) -> list[TypeView]:
        """Returns every type: who serves it, and how many timers it has."""
        return await views_of(self._engine, await self.types.all(), covers)

    # ── unused types ─────────────────────────────────────────────────────────────────────

    async def keep_sweeping(self) -> None:
        """Delete unused types with their queues and logs, again and again, until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_EVERY)
            await self.sweep()

    async def sweep(self) -> int:
        """Delete the types that were unused for long enough. Returns how many.

        A type is unused if no live worker or instance serves it, it has no timers, and no ids are
        remembered. A type that is used again meanwhile is kept.
        """
        engine, gone = self._engine, 0
        for info in await self.types.idle():
            await engine.queues.trim(info.queue, 1000)
            if not _is_empty(await engine.inspect.counts(info.queue)):
                continue
            if await self.types.delete(info):
                # A submit from now on creates the type again. Then its queue is not empty, and
                # stays, and so does its log. A paused queue stays, too, but the type is gone.
                deleted = await engine.queues.delete(info.queue)
                if deleted or info.key not in {known.key for known in await self.types.all()}:
                    await self.log.delete(info.key)
                gone += 1
        return gone

    # ── how it is done ───────────────────────────────────────────────────────────────────

    async def _answer_submit(
        self, timer: NewTimer, taken: Submitted | TowpathError, access: Access
    ) -> Timer | TowpathError:
        """Returns the answer to the submit of *timer*: the timer, or why it was refused."""
        if isinstance(taken, TowpathError):
            return taken
        try:
            if taken.existed and access is not ALL:
                there = await self._find_existing(taken.job, access)
                if there is not None and not access.owns(there.owner):
                    return TimerTaken(taken.job)
            if taken.existed and taken.state in ENDED:
                return TimerEnded(taken.job, taken.state)
            if taken.existed and not taken.same_payload:
                return await self._records.find_equal(timer, taken.job) or TimerDiffers(taken.job)
            return await self._read_stored(timer, taken.job, taken.state, existed=taken.existed)
        except TowpathError as error:
            return error

    async def _read_stored(
        self, timer: NewTimer, job: JobRef, state: State, *, existed: bool
    ) -> Timer:
        """Returns the stored timer. After a delay, one more read gets its due time, which Redis
        computes.
        """
        if existed or timer.when.due is None:
            with _as_timer_errors(job):
                return timer_of(timer.key, await self._engine.inspect.job(job), existed=existed)
        return Timer(
            task_id=job.id,
            task_type=timer.key.task_type,
            app=timer.key.app,
            state=state,
            due=instant(timer.when.due),
            params=timer.params,
            owner=timer.owner,
        )

    async def _submit_recorded(
        self, timers: Sequence[NewTimer], access: Access
    ) -> list[Timer | TowpathError]:
        """Submit recorded timers. Their records share transactions."""
        answers = await asyncio.gather(
            *(self._submit_one_recorded(timer, access) for timer in timers), return_exceptions=True
        )
        return [_or_error(answer) for answer in answers]

    async def _submit_one_recorded(self, timer: NewTimer, access: Access) -> Timer:
        queue, job = queue_of(timer.key), _job(timer)
        # If Redis does not answer, the record is created all the same; it is queued later.
        with suppress(ServerError, TimeoutError):
            async with asyncio.timeout(_REDIS_WITHIN):
                await self.types.ensure(timer.key)
                if timer.task_id is not None:
                    await self._require_no_plain_timer(timer.key, JobRef(queue, job.id), access)
        return await self._records.submit(queue, timer, job.id, access)

    async def _require_no_plain_timer(self, key: TypeKey, ref: JobRef, access: Access) -> None:
        """Raises TimerTaken, TimerEnded or TimerDiffers if a timer without a record has the id."""
        try:
            there = timer_of(key, await self._engine.inspect.job(ref))
        except JobNotFound:
            return
        if not there.record:
            if not access.owns(there.owner):
                raise TimerTaken(ref)
            ended = there.state in ENDED
            raise TimerEnded(ref, there.state) if ended else TimerDiffers(ref)

    async def _is_recorded(self, ref: JobRef, access: Access) -> bool:
        """Whether the timer has a record. Raises TimerNotFound if it has another owner."""
        there = await self._find_existing(ref, access)
        if access is not ALL and (there is None or not access.owns(there.owner)):
            raise TimerNotFound(ref)
        return there is not None and there.record

    async def _find_existing(self, ref: JobRef, access: Access) -> Timer | None:
        """Returns the timer of that id, or None. Without a ledger and owners, returns None without
        a call to Redis: only records and owners matter to the callers.
        """
        if not self._records.has_ledger and access is ALL:
            return None
        try:
            async with asyncio.timeout(_REDIS_WITHIN):
                return timer_of(_ANY, await self._engine.inspect.job(ref))
        except JobNotFound:
            return await self._records.find(_ANY, ref)
        except (ServerError, TimeoutError) as error:
            found = await self._records.find(_ANY, ref)
            if found is None and isinstance(error, ServerError):
                raise
            if found is None and access is not ALL:
                # Only Redis knows the owner of a timer without a record.
                raise ServerUnreachable("Redis did not answer in time") from error
            return found


_ANY = TypeKey("any")


@asynccontextmanager
async def serving(host: Host) -> AsyncGenerator[TimerService]:
    """Yields the service for a server."""
    log = FiringLog(host.engine, host.options, host.metrics)
    try:
        yield TimerService(host.engine, host.options, jobs=host.ledger.jobs, log=log)
    finally:
        await log.close()


def tasks(service: TimerService) -> Mapping[str, Callable[[], Awaitable[None]]]:
    """Returns the background tasks of the server."""
    return {"unused types": service.keep_sweeping}


def _job(timer: NewTimer) -> NewJob:
    return new_job(timer.packed(), **timer.options(timer.task_id))


def _or_error(answer: Timer | BaseException) -> Timer | TowpathError:
    if isinstance(answer, BaseException) and not isinstance(answer, TowpathError):
        raise answer
    return answer


@contextmanager
def _as_timer_errors(ref: JobRef) -> Generator[None]:
    """Turn errors of engine and ledger about the job into errors about the timer."""
    try:
        yield
    except TimerNotFound:
        raise
    except (JobNotFound, RecordNotFound) as error:
        raise TimerNotFound(ref) from error
    except JobNotWaiting as error:
        leased = error.state == State.LEASED
        raise (TimerRunning(ref) if leased else TimerEnded(ref, error.state)) from error
    except (RecordEnded, RecordNotWaiting) as error:
        state = STATES[error.state]
        raise (TimerRunning(ref) if state is State.LEASED else TimerEnded(ref, state)) from error
    except (JobDone, JobDead, JobCancelled) as error:
        raise TimerEnded(ref, _ENDED_BY[type(error)]) from error


class TimerExplanation(NamedTuple):
    """Why a timer is not running."""

    why: str
    """The reason, as for a job; or `no_instance` if the app has no live instance,
    `instances_avoided` if calls to all of them fail, `next_try` if the timer was due and waits for
    another attempt."""
    text: str


def _explanation_of(
    found: Explanation, info: TypeInfo | None, *, retried: bool = False
) -> TimerExplanation:
    """Returns the engine's explanation; or that no instance or worker serves the type. *retried* =
    the timer was due before, and waits for another attempt.
    """
    why = "next_try" if retried else found.why
    if info is None or info.alive or found.why in (Why.LEASED, Why.ENDED, Why.PAUSED):
        return TimerExplanation(why, found.text)
    last = f"; the last one was seen at {info.last_alive}" if info.last_alive else ""
    if status_of(info) == NO_INSTANCE and info.owner is not None:
        nobody = f"no instance of app {info.owner.app} is alive{last}"
        if retried:
            return TimerExplanation(NO_INSTANCE, f"{nobody}; {found.text}")
        if found.why is not Why.NOT_DUE:
            return TimerExplanation(NO_INSTANCE, nobody)
        return TimerExplanation(found.why, f"{found.text}; {nobody}")
    nobody = "" if found.why is not Why.NOT_DUE else f"; no worker serves the type now{last}"
    return TimerExplanation(why, found.text + nobody)


def _is_empty(counts: Counts) -> bool:
    return not (
        counts.ready
        or counts.delayed
        or counts.waiting
        or counts.leased
        or counts.dead
        or counts.kept
        or counts.remembered
    )
