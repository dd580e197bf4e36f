"""One queue of Redis, filled from its rows in the order of the rows.

New records are brought at once (`bring`). What that missed is found by its `relay_at` within
seconds. And when the queue's data is new, empty, or on a server that was started again, all open
records of the queue are gone through: at the start, too, and now and then.

Queueing a record again is harmless: its id makes it one job, and the row decides who may run it
and when it is its turn. So everything here is one step, `_queue`, done to different records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from towpath.clock import steady
from towpath.engine.batcher import LARGEST_BATCH
from towpath.engine.engine import Engine
from towpath.engine.model import JobRef, NewJob, Submitted
from towpath.engine.states import State
from towpath.errors import JobError, JobNotFound, QueueFull, ServerError, TowpathError
from towpath.ids import QueueName
from towpath.ledger.database.batching import Joined
from towpath.ledger.errors import LedgerError
from towpath.ledger.records.making import NUDGED_WITHIN
from towpath.ledger.records.open_records import (
    At,
    as_read,
    claim_due,
    highest_fence,
    page_of,
    release,
    write_down,
)
from towpath.ledger.records.record import (
    NOT_RUN,
    RECORD_MISSING,
    Record,
    RecordState,
    as_job,
    next_name,
    spoilt,
)
from towpath.telemetry import events
from towpath.telemetry.logs import Log

if TYPE_CHECKING:
    from towpath.ledger.ledger import Ledger

_LATER = 5_000
"""Milliseconds until a record that Redis refused for now is tried again."""
_QUEUED = {State.READY, State.DELAYED, State.WAITING, State.LEASED}
_ENDS = {State.DONE: RecordState.COMPLETED, State.CANCELLED: RecordState.CANCELLED,
         State.DEAD: RecordState.DEAD}  # fmt: skip


class FillCounts(NamedTuple):
    """What one check of a queue found."""

    open: int = 0
    """Open records that were gone through."""
    brought: int = 0
    """Those that were not in Redis, and are now."""
    ended: int = 0
    """Those that had ended in Redis, and have now."""

    def and_(self, other: FillCounts) -> FillCounts:
        """Both together."""
        return FillCounts(*map(sum, zip(self, other, strict=True)))


class Filling:
    """Keeps *queue* filled. *connect* gives the engine, or raises ServerError."""

    def __init__(
        self, ledger: Ledger, queue: QueueName, connect: Callable[[], Engine], log: Log
    ) -> None:
        self._ledger, self.queue, self._connect, self._log = ledger, queue, connect, log
        self._life = ""
        """Which life of the queue's data was last gone through."""
        self._behind = False
        """Something was not brought that should have been: what is made from then on waits for the
        next look, which brings all of it in order."""
        self._turn = asyncio.Lock()
        self.bring = Joined(self._bring_many)
        """Queue records that were just made, after those before. What fails is left to a look."""

    # ── at once ──────────────────────────────────────────────────────────────────────────

    async def _bring_many(self, several: list[Sequence[At]]) -> list[None]:
        if self._behind or self._turn.locked():
            self._behind = True
        else:
            try:
                # Not needed for those just made, which a worker may have already: to see that they
                # are there, and to tell whoever works on a cancelled one.
                await self._queue([at for some in several for at in some], seen=False)
            except (ServerError, LedgerError):
                self._behind = True
        return [None] * len(several)

    # ── again and again ──────────────────────────────────────────────────────────────────

    async def look(self, *, whole: bool = False) -> FillCounts:
        """See that everything is where it should be; with *whole*, go through all open records.

        Raises ServerError, LedgerError.
        """
        async with self._turn:
            found = FillCounts()
            try:
                renewed = await self._connect().queues.anchor(self.queue) != self._life
                if whole or renewed:
                    found = await self._reconcile(renewed=renewed)
                while True:
                    early, self._behind = self._behind, False
                    found = found.and_(await self._bring_missed(early=early))
                    if not self._behind:  # nothing was made meanwhile that nobody brought
                        return found
            except BaseException:
                self._behind = True
                raise

    async def _reconcile(self, *, renewed: bool) -> FillCounts:
        """Go through all open records, in bounded steps."""
        # Tokens must be higher than those that the rows have seen, whatever the clock says.
        floor = await self._ledger.read(lambda connection: highest_fence(connection, self.queue))
        life = await self._anchor(floor)
        found, after = FillCounts(), 0
        while rows := await self._ledger.read(
            lambda connection, seq=after: page_of(connection, self.queue, seq)
        ):
            began = steady()
            found = found.and_(await self._queue(rows))
            after = rows[-1].record.seq
            if len(rows) < LARGEST_BATCH:
                break
            if not renewed:
                # Nothing is known to be lost: others have work to do, too.
                await asyncio.sleep(steady() - began)
        self._life = life
        self._say(found, "reconciled")
        return found

    async def _anchor(self, floor: int) -> str:
        """Tokens to come are higher than *floor*; which life of the queue's data this is."""
        return await self._connect().queues.anchor(self.queue, floor=floor)

    async def _bring_missed(self, *, early: bool) -> FillCounts:
        """Queue the records whose maker did not; *early*: those too whose maker still might."""
        found, within = FillCounts(), NUDGED_WITHIN if early else 0
        while rows := as_read(
            await self._ledger.write(lambda connection: claim_due(connection, self.queue, within))
        ):
            try:
                found = found.and_(await self._queue(rows))
            except ServerError:
                seqs = [at.record.seq for at in rows]
                await self._ledger.write(lambda connection, seqs=seqs: release(connection, seqs))
                raise
            if len(rows) < LARGEST_BATCH:
                break
        self._say(found, "missed")
        return found

    def _say(self, found: FillCounts, reason: str) -> None:
        if found.brought:
            self._log.emit(
                events.RECORDS_QUEUED, queue=self.queue, jobs=found.brought, reason=reason
            )

    # ── one step for all of them ─────────────────────────────────────────────────────────

    async def _queue(self, records: Sequence[At], *, seen: bool = True) -> FillCounts:
        """Queue these records, and write into the rows what Redis says of them.

        With *seen*, also that they are there, and whoever works on a cancelled one is told.
        """
        if seen:
            await self._stop_cancelled(records)
        found, named = FillCounts(open=len(records)), sorted(records, key=lambda at: at.record.seq)
        while named:
            answers = await self._submit(named)
            changes = [(at, await self._change(at.record, answer)) for at, answer in answers]
            submitted = [answer for _, answer in answers if isinstance(answer, Submitted)]
            brought = sum(not answer.existed for answer in submitted)
            ended = sum("finished_at" in change for _, change in changes if change)
            found = found.and_(FillCounts(brought=brought, ended=ended))
            named = await self._note(changes, seen=seen)
        return found

    async def _stop_cancelled(self, records: Sequence[At]) -> None:
        """Whoever cancelled them may have had no Redis to say so."""
        for at in records:
            if at.record.cancel_requested:
                with suppress(JobError):  # it has ended, or is gone
                    ref = JobRef(self.queue, at.record.job)
                    await self._connect().cancel(ref, by_record=True)

    async def _submit(self, records: list[At]) -> list[tuple[At, _Answer]]:
        """What Redis answers for each record."""
        timely = self._connect().goes_by_server_clock
        made: list[tuple[At, NewJob]] = []
        answers: list[tuple[At, _Answer]] = []
        for at in records:
            try:
                made.append((at, as_job(at.record, now=at.now, timely=timely)))
            except (ValueError, TowpathError, msgspec.MsgspecError) as error:
                answers.append((at, spoilt(error)))
        # A record that had ended is no part of what a look goes by. Sent again it must not begin
        # under a lower token than before, whatever Redis has lost and its clock says meanwhile.
        if floor := max((at.record.fence for at, _ in made), default=0):
            await self._anchor(floor)
        submitted = await self._connect().submit_many(self.queue, [job for _, job in made])
        return answers + [(at, answer) for (at, _), answer in zip(made, submitted, strict=True)]

    async def _note(
        self, changes: Sequence[tuple[At, dict[str, Any] | None]], *, seen: bool
    ) -> list[At]:
        """Write down what has to be; the records that got another name, to be queued under it."""
        # Most of them were seen before: a row that is not written costs nothing.
        there = [at.record for at, change in changes if change is None and seen and at.unseen]
        others = [(at.record, change) for at, change in changes if change is not None]
        if not there and not others:
            return []
        tell = self._ledger.jobs.tell
        return as_read(
            await self._ledger.decide(
                lambda connection: write_down(connection, there, others, tell)
            )
        )

    async def _change(self, record: Record, answer: _Answer) -> dict[str, Any] | None:
        """What the answer means for the row, times as from now; None = it is queued."""
        match answer:
            case Submitted(existed=False):
                return None
            case Submitted(state=state) if state in _QUEUED:
                return None
            case Submitted(state=state) if state in _ENDS:
                return await self._ended(record, state)
            case Submitted():
                return _renamed(record)
            case QueueFull():
                return {"relay_at": _LATER}
            case _:
                return _dead(str(answer))

    async def _ended(self, record: Record, state: State) -> dict[str, Any]:
        """Redis has ended a job whose record is open: somebody worked around the ledger, no attempt
        got as far as the row, or the row is from an older backup.
        """
        ref = JobRef(record.queue, record.job)
        try:
            job = await self._connect().inspect.job(ref)
        except JobNotFound:
            return {"relay_at": 0}  # gone this very moment: looked at again
        if state is State.DEAD and (job.reason or "").startswith(RECORD_MISSING):
            # It never ran: there was no row at the time. Now there is one again.
            with suppress(JobError):
                await self._connect().delete(ref, by_record=True)
            return _renamed(record)
        if state is State.DEAD:
            return _dead(job.reason or "dead in Redis")
        if state is State.DONE and (job.result or b"").startswith(NOT_RUN):
            if job.result != NOT_RUN + RecordState.CANCELLED.encode():
                return _renamed(record)
            state = State.CANCELLED
        change = {"state": _ENDS[state], "finished_at": 0, "relay_at": None}
        return change | ({"result": job.result or None} if state is State.DONE else {})


_Answer = Submitted | TowpathError | str


def _renamed(record: Record) -> dict[str, Any]:
    return {"job": next_name(record.id, record.job)}


def _dead(reason: str) -> dict[str, Any]:
    ended = {"state": RecordState.DEAD, "finished_at": 0, "relay_at": None}
    return ended | {"last_error": reason.replace("\0", "")}
