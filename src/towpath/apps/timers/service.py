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
"""Seconds that a recorded timer waits for Redis. Its row is enough: a relay queues it later."""
_ENDED_BY = {JobDone: State.DONE, JobDead: State.DEAD, JobCancelled: State.CANCELLED}


def _everything(_: str) -> bool:
    return True


class TimerService:
    """The application on one server. *connect* gives the engine, or raises ServerUnreachable.

    *jobs* gives the ledger's records; without it recorded timers are refused.
    """

    def __init__(
        self,
        connect: Callable[[], Engine],
        options: TimersOptions,
        *,
        jobs: Callable[[], Jobs] | None = None,
        log: FiringLog | None = None,
    ) -> None:
        self._connect, self.options = connect, options
        self._records = TimerRecords(jobs)
        self.types = Types(connect, options)
        self.log = log or FiringLog(connect, options)
        self.instances = ServiceMode(connect, options, self.types, jobs=jobs, log=self.log)

    # ── a timer's life ───────────────────────────────────────────────────────────────────

    def access(self, key: KeyInfo) -> Access:
        """What *key* may use."""
        return access_of(key, shared=self.options.shared)

    async def submit(self, timer: NewTimer) -> Timer:
        """Submit a timer. When this returns it is stored.

        The same id with the same content again is the timer that is there (`existed`). Raises
        TimerDiffers for other params or another time, TimerEnded, TimerTypesFull,
        TimerTypeAmbiguous, PayloadTooLarge, LedgerMissing and the store's errors.
        """
        [answer] = await self.submit_many([timer])
        if isinstance(answer, TowpathError):
            raise answer
        return answer

    async def submit_many(
        self, timers: Sequence[NewTimer], *, call: Call | None = None, access: Access = ALL
    ) -> list[Timer | TowpathError]:
        """Submit many timers, answered one by one, in order: a refused one's answer is its error.
        For one whose id is another owner's that is TimerTaken.

        Those of one type are one step, and so one call of that name. Where the store does not
        answer they may be stored: repeat them with the same ids.
        """
        steps: dict[tuple[TypeKey, bool], list[int]] = {}
        for place, timer in enumerate(timers):
            steps.setdefault((timer.key, timer.record), []).append(place)
        answers: dict[int, Timer | TowpathError] = {}
        for (key, record), places in steps.items():
            some = [timers[place] for place in places]
            if record:
                answered = await self._record(some, access)
            else:
                answered = await self._submit(key, some, call, access)
            answers |= dict(zip(places, answered, strict=True))
        return [answers[place] for place in range(len(timers))]

    async def set(
        self, timer: NewTimer, *, call: Call | None = None, access: Access = ALL
    ) -> Timer:
        """Make a timer under its id, or put it in the place of the one that waits there.

        One that has ended is made anew. It keeps its owner. `existed` says whether it replaced one.
        Raises TimerRunning for one that is being worked on, TimerTaken for another owner's, and
        what `submit` raises.
        """
        queue = await self.types.note(timer.key)
        job = _job(timer)
        ref = JobRef(queue, job.id)
        with _in_its_words(ref):
            there = await self._existing(ref, access)
            recorded = there is not None and there.record
            # An ended row may be hidden by a newer timer without one.
            row = await self._records.find(_ANY, ref) if timer.record and not recorded else None
            for found in filter(None, (there, row)):
                if not access.owns(found.owner):
                    raise TimerTaken(ref)
                timer = msgspec.structs.replace(timer, owner=found.owner)
            if timer.record or recorded:
                return await self._records.set(queue, timer, job.id)
            placed = await self._connect().set(
                queue, job.payload, call=call, **timer.options(job.id)
            )
        return await self._seen(timer, ref, placed.state, existed=placed.replaced)

    async def move(
        self,
        key: TypeKey,
        task_id: str,
        when: When,
        *,
        call: Call | None = None,
        access: Access = ALL,
    ) -> Timer:
        """Give a timer that waits another time; a time that is past is now.

        Raises TimerNotFound, TimerRunning, TimerEnded.
        """
        ref = job_ref(queue_of(key), task_id)
        with _in_its_words(ref):
            if await self._is_recorded(ref, access):
                return await self._records.move(key, ref, when)
            await self._connect().move(ref, **when.moved(), call=call)
        return await self.get(key, task_id)

    async def cancel(
        self, key: TypeKey, task_id: str, *, call: Call | None = None, access: Access = ALL
    ) -> Timer:
        """End a timer that has not ended: cancelled, or leased if its worker was asked to stop.

        Raises TimerNotFound, TimerEnded.
        """
        ref = job_ref(queue_of(key), task_id)
        with _in_its_words(ref):
            if await self._is_recorded(ref, access):
                return await self._records.cancel(key, ref)
            await self._connect().cancel(ref, call=call)
        return await self.get(key, task_id)

    # ── questions ────────────────────────────────────────────────────────────────────────

    async def get(self, key: TypeKey, task_id: str, *, access: Access = ALL) -> Timer:
        """Read a timer. Raises TimerNotFound for another owner's, as for a missing one."""
        ref = job_ref(queue_of(key), task_id)
        with _in_its_words(ref):
            timer = await self._get(key, ref)
        if not access.owns(timer.owner):
            raise TimerNotFound(ref)
        return timer

    async def _get(self, key: TypeKey, ref: JobRef) -> Timer:
        try:
            timer = timer_of(key, await self._connect().inspect.job(ref))
        except JobNotFound:
            if not self._records.kept:
                raise
            return await self._records.get(key, ref)
        return await self._records.get(key, ref) if timer.record else timer

    async def explain(
        self, key: TypeKey, task_id: str, *, access: Access = ALL
    ) -> TimerExplanation:
        """Why the timer is not running, in a word and a sentence. Raises TimerNotFound."""
        ref = job_ref(queue_of(key), task_id)
        with _in_its_words(ref):
            if await self._is_recorded(ref, access):
                ref = await self._records.queued_as(ref)
            found = await self._connect().inspect.explain(ref)
            if found.why is Why.NOT_DUE:
                retried = (await self._connect().inspect.job(ref)).next_try_at is not None
            else:
                retried = False
        infos = {info.key: info for info in await self.types.all()}
        info = infos.get(key)
        app = info.owner.app if info is not None and info.owner is not None else None
        waits = retried or found.why in _WAITS
        if app and waits and await self.instances.avoided(app, key.task_type):
            text = f"calls to all instances of app {app} fail; they are tried again"
            return TimerExplanation(
                "instances_avoided", f"{text}; {found.text}" if retried else text
            )
        return _explained(found, info, retried=retried)

    async def list(
        self,
        wanted: TimerQuery,
        *,
        after: str | None = None,
        size: int = 100,
        covers: Callable[[str], bool] = _everything,
        access: Access = ALL,
    ) -> TimerPage:
        """A page of timers by type, state and time, of queues that are covered."""
        infos = [info for info in await self.types.all() if covers(info.queue)]
        return await page_of(self._connect(), infos, wanted, after=after, size=size, access=access)

    async def all_types(self, covers: Callable[[str], bool] = _everything) -> list[TypeView]:
        """Every type, who serves it and what it holds."""
        return await views_of(self._connect(), await self.types.all(), covers)

    # ── types that nobody uses ───────────────────────────────────────────────────────────

    async def keep_sweeping(self) -> None:
        """Remove types that nobody uses, with their queues and logs, until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_EVERY)
            await self.sweep()

    async def sweep(self) -> int:
        """Remove the types that were unused for long enough; how many it were.

        Unused: nobody alive serves it, no timer waits, runs or can still be looked at, and no id
        is remembered. Whoever uses it meanwhile keeps it.
        """
        engine, gone = self._connect(), 0
        for info in await self.types.idle():
            await engine.queues.trim(info.queue, 1000)
            if not _is_empty(await engine.inspect.counts(info.queue)):
                continue
            if await self.types.delete(info):
                # Who has submitted a timer meanwhile has noted the type again: nothing goes then.
                await engine.queues.delete(info.queue)
                await self.log.delete(info.key)
                gone += 1
        return gone

    # ── how it is done ───────────────────────────────────────────────────────────────────

    async def _submit(
        self, key: TypeKey, timers: Sequence[NewTimer], call: Call | None, access: Access
    ) -> list[Timer | TowpathError]:
        try:
            queue = await self.types.note(key)
            engine = self._connect()
            jobs = [_job(timer) for timer in timers]
            taken = await engine.submit_many(queue, jobs, call=call)
        except (*_REFUSALS, ServerError) as refusal:
            return [refusal for _ in timers]
        each = zip(timers, taken, strict=True)
        return list(await asyncio.gather(*(self._told(*one, access) for one in each)))

    async def _told(
        self, timer: NewTimer, taken: Submitted | TowpathError, access: Access
    ) -> Timer | TowpathError:
        """What the submitter hears."""
        if isinstance(taken, TowpathError):
            return taken
        try:
            if taken.existed and access is not ALL:
                there = await self._existing(taken.job, access)
                if there is not None and not access.owns(there.owner):
                    return TimerTaken(taken.job)
            if taken.existed and taken.state in ENDED:
                return TimerEnded(taken.job, taken.state)
            if taken.existed and not taken.same_payload:
                return await self._records.same(timer, taken.job) or TimerDiffers(taken.job)
            return await self._seen(timer, taken.job, taken.state, existed=taken.existed)
        except TowpathError as error:
            return error

    async def _seen(self, timer: NewTimer, job: JobRef, state: State, *, existed: bool) -> Timer:
        """The timer that was stored. Only the server knows when a delay ends: one look more."""
        if existed or timer.when.due is None:
            with _in_its_words(job):
                return timer_of(timer.key, await self._connect().inspect.job(job), existed=existed)
        return Timer(
            task_id=job.id,
            task_type=timer.key.task_type,
            app=timer.key.app,
            state=state,
            due=instant(timer.when.due),
            params=timer.params,
            owner=timer.owner,
        )

    async def _record(
        self, timers: Sequence[NewTimer], access: Access
    ) -> list[Timer | TowpathError]:
        """Recorded timers: rows, one transaction for those that come at once."""
        answers = await asyncio.gather(
            *(self._record_one(timer, access) for timer in timers), return_exceptions=True
        )
        return [_or_error(answer) for answer in answers]

    async def _record_one(self, timer: NewTimer, access: Access) -> Timer:
        queue, job = queue_of(timer.key), _job(timer)
        # Without an answer of Redis, the row waits until it is back.
        with suppress(ServerError, TimeoutError):
            async with asyncio.timeout(_REDIS_WITHIN):
                await self.types.note(timer.key)
                if timer.task_id is not None:
                    await self._refuse_plain(timer.key, JobRef(queue, job.id), access)
        return await self._records.submit(queue, timer, job.id, access)

    async def _refuse_plain(self, key: TypeKey, ref: JobRef, access: Access) -> None:
        """A timer without a row may have the id: then that is the timer of this id."""
        try:
            there = timer_of(key, await self._connect().inspect.job(ref))
        except JobNotFound:
            return
        if not there.record:
            if not access.owns(there.owner):
                raise TimerTaken(ref)
            ended = there.state in ENDED
            raise TimerEnded(ref, there.state) if ended else TimerDiffers(ref)

    async def _is_recorded(self, ref: JobRef, access: Access) -> bool:
        """Whether its row decides. Raises TimerNotFound for another owner's timer."""
        there = await self._existing(ref, access)
        if access is not ALL and (there is None or not access.owns(there.owner)):
            raise TimerNotFound(ref)
        return there is not None and there.record

    async def _existing(self, ref: JobRef, access: Access) -> Timer | None:
        """The timer of that id; None if there is none. One look, where there are rows or owners
        at all.
        """
        if not self._records.kept and access is ALL:
            return None
        try:
            async with asyncio.timeout(_REDIS_WITHIN):
                return timer_of(_ANY, await self._connect().inspect.job(ref))
        except JobNotFound:
            return await self._records.find(_ANY, ref)
        except (ServerError, TimeoutError) as error:
            found = await self._records.find(_ANY, ref)
            if found is None and isinstance(error, ServerError):
                raise
            if found is None and access is not ALL:
                # Only Redis knows whose a timer without a row is.
                raise ServerUnreachable("Redis did not answer in time") from error
            return found


_ANY = TypeKey("any")


@asynccontextmanager
async def serving(host: Host) -> AsyncGenerator[TimerService]:
    """The application in a server."""
    log = FiringLog(host.engine, host.options, lambda: host.metrics)
    try:
        yield TimerService(host.engine, host.options, jobs=lambda: host.ledger.jobs, log=log)
    finally:
        await log.close()


def tasks(service: TimerService) -> Mapping[str, Callable[[], Awaitable[None]]]:
    """What runs beside the requests."""
    return {"unused types": service.keep_sweeping}


def _job(timer: NewTimer) -> NewJob:
    return new_job(timer.packed(), **timer.options(timer.task_id))


def _or_error(answer: Timer | BaseException) -> Timer | TowpathError:
    if isinstance(answer, BaseException) and not isinstance(answer, TowpathError):
        raise answer
    return answer


@contextmanager
def _in_its_words(ref: JobRef) -> Generator[None]:
    """What engine and ledger refuse, told as of a timer."""
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
    """As of a job; `no_instance` where the app that is to be called has none alive,
    `instances_avoided` where calls to all of them fail, `next_try` where it was due and waits to be
    tried again."""
    text: str


def _explained(
    found: Explanation, info: TypeInfo | None, *, retried: bool = False
) -> TimerExplanation:
    """The engine's word, unless nobody is there to run it. *retried*: it was due before."""
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
