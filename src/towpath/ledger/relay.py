"""From the rows to Redis: every open record is queued there, whatever happened on the way.

New records are brought at once (`bring`). What that missed is found by its `relay_at` within
seconds. And when Redis is new, empty, or was started again, all open records are gone through:
at the start, too, and now and then.

Queueing a record again is harmless: its id makes it one job, and the row decides who may run it.
So everything here is one step, `_queue`, done to different records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from random import uniform
from typing import TYPE_CHECKING, Any, Self

import msgspec
from sqlalchemy import select

from towpath.clock import Duration, minutes, seconds, steady
from towpath.engine.batcher import LARGEST_BATCH
from towpath.engine.engine import Engine
from towpath.engine.model import JobRef, NewJob, Submitted
from towpath.engine.states import State
from towpath.errors import JobError, JobNotFound, QueueFull, ServerError, TowpathError
from towpath.ids import QueueName
from towpath.ledger.errors import LedgerError
from towpath.ledger.open_records import (
    At,
    by_queue,
    give_back,
    highest_fence,
    open_queues,
    page_of,
    read_all,
    take_due,
    write_down,
)
from towpath.ledger.record import (
    Record,
    RecordState,
    as_job,
    next_name,
    spoilt,
)
from towpath.ledger.schema import jobs, now_ms
from towpath.ledger.turns import Turns
from towpath.telemetry import events
from towpath.telemetry.logs import Log

if TYPE_CHECKING:
    from collections.abc import Callable

    from towpath.ledger.ledger import Ledger

LOOK_EVERY = seconds(1)
RECONCILE_EVERY = minutes(5)
_PRUNED_MOST = 100
_LATER = 5_000
"""Milliseconds until a record that Redis refused for now is tried again."""
_QUEUED = {State.READY, State.DELAYED, State.WAITING, State.LEASED}
_ENDS = {State.DONE: RecordState.COMPLETED, State.CANCELLED: RecordState.CANCELLED,
         State.DEAD: RecordState.DEAD}  # fmt: skip


class Relay:
    """Keeps Redis filled from the ledger, while it is entered. Any number may run, anywhere.

    *connect* gives the engine, or raises ServerError while there is none.
    """

    def __init__(
        self,
        ledger: Ledger,
        connect: Callable[[], Engine],
        *,
        log: Log,
        look_every: Duration = LOOK_EVERY,
        reconcile_every: Duration = RECONCILE_EVERY,
    ) -> None:
        self._ledger, self._connect, self._log = ledger, connect, log
        self._look_every = look_every.total_seconds()
        self._reconcile_every = reconcile_every.total_seconds()
        self._lives: dict[QueueName, str] = {}
        """Which life of each queue's data was last gone through."""
        self._reconciled_at = float("-inf")
        self._trouble = ""
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._ledger.jobs.fastpath = self
        self._task = asyncio.create_task(self.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._ledger.jobs.fastpath is self:
            self._ledger.jobs.fastpath = None
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def run(self) -> None:
        """Look after the records until cancelled."""
        while True:
            try:
                await self.look()
            except (ServerError, LedgerError) as error:
                self._say(error)
            else:
                self._say(None)
            await asyncio.sleep(self._look_every * uniform(0.75, 1.25))  # noqa: S311 -- jitter

    # ── at once ──────────────────────────────────────────────────────────────────────────

    async def bring(self, records: Sequence[Record]) -> None:
        """Queue records that were just made. What fails is left to the next look."""
        if self._trouble:
            return  # it is known to be away: nobody waits to hear it again
        with suppress(ServerError, LedgerError):
            # Just made: what is due counts from then.
            await self._queue([(it, it.created_at) for it in records], seen=False)

    async def bring_made(self, seqs: Sequence[int]) -> None:
        """The same for records that may have been made: those that are there."""
        query = select(jobs, now_ms().label("now")).where(jobs.c.seq.in_(seqs))
        if not self._trouble:
            with suppress(ServerError, LedgerError):
                await self._queue(
                    await self._ledger.read(lambda it: read_all(it, query)), seen=False
                )

    def watch(self, queues: Iterable[QueueName]) -> None:
        """Keep an eye on these queues: their records may all have been made by others."""
        for queue in queues:
            self._lives.setdefault(queue, "")

    async def stop(self, record: Record) -> None:
        """Tell the worker of a record that was cancelled."""
        with suppress(ServerError):
            await self._cancel(record)

    async def forget(self, job: JobRef) -> None:
        """Take away a job whose record has another name by now. Left alone, it would end itself."""
        for way in (self._connect().cancel, self._connect().delete):
            with suppress(ServerError, JobError):
                await way(job)

    async def _cancel(self, record: Record) -> None:
        with suppress(JobError):  # it has ended, or is gone
            await self._connect().cancel(JobRef(record.queue, record.job))

    async def _stop_cancelled(self, records: Sequence[At]) -> None:
        """Whoever cancelled them may have had no Redis to say so."""
        for record, _ in records:
            if record.cancel_requested:
                await self._cancel(record)

    # ── again and again ──────────────────────────────────────────────────────────────────

    async def look(self) -> int:
        """See that everything is where it should be; how many records were brought to Redis."""
        brought, turns = 0, Turns()
        await self._connect().try_write()  # before anything is taken out of others' hands
        if steady() - self._reconciled_at >= self._reconcile_every:
            await self._prune()
            queues = await self._ledger.read(open_queues)
            self.watch(queues)
            for queue in queues:
                with turns:
                    brought += await self._reconcile(queue)
            self._reconciled_at = steady()
        else:
            for queue in list(self._lives):
                with turns:
                    if await self._connect().anchor(queue) != self._lives[queue]:
                        brought += await self._reconcile(queue)
        with turns:
            brought += await self._bring_missed()
        turns.done()
        return brought

    async def _prune(self) -> None:
        """Remove what ended long ago: in steps, so that nobody waits for long, and not for ever."""
        for _ in range(_PRUNED_MOST):
            if await self._ledger.jobs.prune() == 0:
                return

    async def _reconcile(self, queue: QueueName) -> int:
        """Go through all open records of *queue*, in bounded steps."""
        # Tokens must be higher than those that the rows have seen, whatever the clock says.
        floor = await self._ledger.read(lambda it: highest_fence(it, queue))
        life = await self._connect().anchor(queue, floor=floor)
        brought, after = 0, 0
        while rows := await self._ledger.read(lambda it, seq=after: page_of(it, queue, seq)):
            brought += await self._queue(rows)
            after = rows[-1][0].seq
        self._lives[queue] = life
        if brought:
            self._log.emit(events.RECORDS_QUEUED, queue=queue, jobs=brought, reason="reconciled")
        return brought

    async def _bring_missed(self) -> int:
        """Queue the records whose maker did not, in the order they were made."""
        brought = 0
        while rows := await self._ledger.write(take_due):
            try:
                brought += await self._queue(rows)
            except ServerError:
                seqs = [record.seq for record, _ in rows]
                await self._ledger.write(lambda it, seqs=seqs: give_back(it, seqs))
                raise
            if len(rows) < LARGEST_BATCH:
                break
        if brought:
            self._log.emit(events.RECORDS_QUEUED, queue="", jobs=brought, reason="missed")
        return brought

    # ── one step for all of them ─────────────────────────────────────────────────────────

    async def _queue(self, records: Sequence[At], *, seen: bool = True) -> int:
        """Queue these records, and write into the rows what Redis says of them.

        With *seen*, also that they are there, and that whoever works on a cancelled one was told:
        not needed for those just made, which a worker may have already.
        """
        if seen:
            await self._stop_cancelled(records)
        brought, turns = 0, Turns()
        for queue, group in groupby(sorted(records, key=by_queue), key=lambda at: at[0].queue):
            self._lives.setdefault(queue, "")
            named = list(group)
            with turns:
                while named:
                    answers = await self._submit(queue, named)
                    brought += sum(_is_new(answer) for _, answer in answers)
                    named = await self._note(answers, seen=seen)
        turns.done()
        return brought

    async def _submit(self, queue: str, records: list[At]) -> list[tuple[Record, _Answer]]:
        """What Redis answers for each record."""
        made: list[tuple[Record, NewJob]] = []
        answers: list[tuple[Record, _Answer]] = []
        for record, now in records:
            try:
                made.append((record, as_job(record, now=now)))
            except (ValueError, TowpathError, msgspec.MsgspecError) as error:
                answers.append((record, spoilt(error)))
        submitted = await self._connect().submit_many(queue, [job for _, job in made])
        return answers + [(it, answer) for (it, _), answer in zip(made, submitted, strict=True)]

    async def _note(self, answers: Sequence[tuple[Record, _Answer]], *, seen: bool) -> list[At]:
        """Write down what has to be; the records that got another name, to be queued under it."""
        changes = [(it, await self._change(it, answer)) for it, answer in answers]
        there = [
            (it.seq, it.job, it.cancel_requested)
            for it, change in changes
            if change is None and seen
        ]
        others = [(it, change) for it, change in changes if change is not None]
        if not there and not others:
            return []
        tell = self._ledger.jobs.tell
        return await self._ledger.write(
            lambda connection: write_down(connection, there, others, tell)
        )

    async def _change(self, record: Record, answer: _Answer) -> dict[str, Any] | None:
        """What the answer means for the row; None = it is queued."""
        match answer:
            case Submitted(existed=False):
                return None
            case Submitted(state=state) if state in _QUEUED:
                return None
            case Submitted(state=state) if state in _ENDS:
                return await self._ended(JobRef(record.queue, record.job), state)
            case Submitted():
                return {"job": next_name(record.id, record.job)}
            case QueueFull():
                return {"relay_at": now_ms() + _LATER}
            case _:
                return _dead(str(answer))

    async def _ended(self, ref: JobRef, state: State) -> dict[str, Any]:
        """Redis has ended a job whose record is open: somebody worked around the ledger, or no
        attempt got as far as the row.
        """
        try:
            job = await self._connect().job(ref)
        except JobNotFound:
            return {"relay_at": now_ms()}  # gone this very moment: looked at again
        if state is State.DEAD:
            return _dead(job.reason or "dead in Redis")
        change = {"state": _ENDS[state], "finished_at": now_ms(), "relay_at": None}
        return change | ({"result": job.result or None} if state is State.DONE else {})

    def _say(self, error: TowpathError | None) -> None:
        """Once when it begins, once when it is over."""
        name = type(error).__qualname__ if error else ""
        if name and not self._trouble:
            self._log.emit(events.RELAY_STUCK, error=name, reason=str(error))
        elif self._trouble and not name:
            self._log.emit(events.RELAY_GOES_ON)
        self._trouble = name


_Answer = Submitted | TowpathError | str


def _is_new(answer: _Answer) -> bool:
    return isinstance(answer, Submitted) and not answer.existed


def _dead(reason: str) -> dict[str, Any]:
    ended = {"state": RecordState.DEAD, "finished_at": now_ms(), "relay_at": None}
    return ended | {"last_error": reason.replace("\0", "")}
