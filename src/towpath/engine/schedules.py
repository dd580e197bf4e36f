"""Schedules created at run time, stored beside those that code declares.

    await engine.schedules.set("reports", "nightly", Cron("0 3 * * *", "Europe/Berlin"), b"{}")
    await engine.schedules.pause("reports", "nightly")

A schedule is kept in its queue's slot, beside its last firing. An index lists the queues that have
schedules. It is written before and after each change, so processes that fire schedules learn of a
change by one small call per second (`changes`), and notice a change that was not finished.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Unpack, cast

import msgspec

from towpath.clock import instant, instant_ms
from towpath.engine import codec
from towpath.engine.batcher import LARGEST_BATCH
from towpath.engine.check import check_size, integer
from towpath.engine.keys import keys_of
from towpath.engine.model import Call, JobOptions, NewJob, Submitted
from towpath.engine.options import QueueOptions
from towpath.engine.queues import Queues
from towpath.engine.schedule import Missed, NamedSchedule, Schedule
from towpath.engine.space import SpaceRecord
from towpath.engine.store import Store
from towpath.engine.stored_schedules import (
    LastFiring,
    QueueSchedules,
    ScheduleInfo,
    SchedulePlan,
    ScheduleSource,
    all_schedules,
    decode_last_firing,
    read_last_firing,
    schedule_info,
)
from towpath.errors import (
    FiringTaken,
    InvalidOption,
    NotOwned,
    NotYet,
    PayloadTooLarge,
    QueueFull,
    ScheduleChanged,
    ScheduleDeclared,
    ScheduleNotFound,
    SchedulesFull,
    ScheduleUnreadable,
    ScriptDefect,
    ServerError,
    ServerUnreachable,
    TowpathError,
)
from towpath.ids import QueueName, new_job_id, queue_name, schedule_name

MOST_IN_A_QUEUE, MOST_IN_ALL = 1_000, 10_000
"""Maximum number of stored schedules."""
LONGEST_ABOUT = 512
_CHANGES_MOST = 100
_AT_ONCE = 16
_SAME_COUNT = -1
_DONE_WORDS = (b"made", b"replaced", b"deleted")
_ENTRY = re.compile(r"(begun|done) (\S+) (\d+)")


class SetSchedule(NamedTuple):
    """The schedule, and whether it is new."""

    schedule: ScheduleInfo
    new: bool


class SchedulePage(msgspec.Struct, frozen=True):
    """A page of schedules, by queue and name."""

    schedules: list[ScheduleInfo]
    after: str | None
    """Where the next page begins; None on the last one."""


class IndexEntry(NamedTuple):
    """The entry of a queue in the index."""

    begun: bool
    """A change is under way, or was not finished."""
    change: str


class Changes(NamedTuple):
    """The state of the index."""

    last: str
    now: datetime
    queues: dict[QueueName, IndexEntry] | None
    """None if there was no change after the known one."""


class _CurrentSchedule(NamedTuple):
    """A schedule as it was read before a change; without *info* if there is none."""

    info: ScheduleInfo | None
    work: NamedSchedule | None
    plan: bytes
    payload: bytes
    now: datetime


class Schedules:
    """Schedules stored at run time, and those that code declares: `engine.schedules`.

    Workers fire both kinds. They decide when a firing is due (`schedule.py`). Any number of them
    may find it due at the same time: the jobs of the first are submitted, the others get
    FiringTaken.
    """

    def __init__(self, store: Store, index: SpaceRecord, queues: Queues) -> None:
        self._store, self.index, self._queues = store, index, queues

    async def set(
        self,
        queue: str,
        name: str,
        when: Schedule,
        payload: bytes = b"null",
        *,
        missed: Missed = Missed.ONCE,
        paused: bool = False,
        for_owner: str | None = None,
        **options: Unpack[JobOptions],
    ) -> SetSchedule:
        """Create a schedule, or replace one that was created this way.

        A new schedule starts now; a replaced one continues from its last firing. It applies
        everywhere within a second. The owner of a schedule is that of its jobs. Raises NotOwned if
        there is one with another owner than *for_owner*, ScheduleDeclared for a name that code
        declares, ScheduleUnreadable, SchedulesFull, MemoryFull, PayloadTooLarge, InvalidOption,
        InvalidName; then nothing has changed.
        """
        work = NamedSchedule(
            name=name, queue=queue, when=when, payload=payload, options=options, missed=missed
        )

        def decide(found: _CurrentSchedule) -> tuple[NamedSchedule, bool]:
            if found.info is not None:
                _check_owner(found.info, for_owner)
            return work, paused

        return await self._put(queue_name(queue), schedule_name(name), decide, make=True)

    async def change(
        self,
        queue: str,
        name: str,
        *,
        when: Schedule | None = None,
        payload: bytes | None = None,
        missed: Missed | None = None,
        paused: bool | None = None,
        for_owner: str | None = None,
        **options: Unpack[JobOptions],
    ) -> ScheduleInfo:
        """Change parts of a schedule. An option that is None is removed.

        If somebody else changes it at the same time, no change is lost. Raises what `set` raises,
        and ScheduleNotFound.
        """

        def decide(found: _CurrentSchedule) -> tuple[NamedSchedule, bool]:
            info, before = cast("ScheduleInfo", found.info), cast("NamedSchedule", found.work)
            _check_owner(info, for_owner)
            both = {**before.options, **options}
            kept = {name: value for name, value in both.items() if value is not None}
            changed = NamedSchedule(
                name=before.name,
                queue=before.queue,
                when=when or before.when,
                payload=before.payload if payload is None else payload,
                options=cast("JobOptions", kept),
                missed=missed or before.missed,
            )
            return changed, info.paused if paused is None else paused

        return (await self._put(queue_name(queue), schedule_name(name), decide)).schedule

    async def pause(self, queue: str, name: str) -> ScheduleInfo:
        """Do not fire the schedule until `resume`. Raises ScheduleNotFound, ScheduleDeclared."""
        return await self.change(queue, name, paused=True)

    async def resume(self, queue: str, name: str) -> ScheduleInfo:
        """Fire the schedule again, from now on; firings missed meanwhile are not made up for."""
        return await self.change(queue, name, paused=False)

    async def delete(self, queue: str, name: str, *, for_owner: str | None = None) -> None:
        """Delete a stored schedule. Its jobs stay.

        Raises ScheduleNotFound, NotOwned as `set` does, and ScheduleDeclared if code declares it;
        for that use `delete_declared`.
        """
        target, name = queue_name(queue), schedule_name(name)
        for _ in range(_CHANGES_MOST):
            info = (await self._find(target, name)).info
            if info is None:
                raise ScheduleNotFound(target, name)
            if info.source is ScheduleSource.CODE:
                raise ScheduleDeclared(target, name)
            _check_owner(info, for_owner)
            item = [name, info.version, secrets.token_hex(8)]
            if await self._change(target, "delete_schedule", lambda _, i=item: i) is not None:
                return
        raise ScheduleChanged(target, name)

    async def delete_declared(self, queue: str, name: str, *, call: Call | None = None) -> None:
        """Delete what *queue* has stored about a schedule that code declares. Its jobs stay.

        A worker that still declares it creates it again, starting now. Raises ScheduleNotFound.
        """
        target, name = queue_name(queue), schedule_name(name)
        answer = await self._store.write("delete_declared", target, lambda _: [name], call)
        if answer not in (
            b"deleted",
            b"forgotten",
        ):  # earlier releases: "forgotten"
            raise ScheduleNotFound(target, name)

    async def fire(
        self,
        queue: str,
        name: str,
        *,
        id: str | None = None,
        call: Call | None = None,
        for_owner: str | None = None,
    ) -> Submitted:
        """Submit the job of the schedule once, now. Its last and its next firing do not change.

        A paused schedule can be fired, too. The id of the job is `<name>!<random>`, or *id*. Raises
        ScheduleNotFound, ScheduleDeclared, ScheduleUnreadable, QueueFull, MemoryFull, and NotOwned
        if the schedule has another owner than *for_owner*.
        """
        target, name = queue_name(queue), schedule_name(name)
        for _ in range(_CHANGES_MOST):
            found = await self._find(target, name)
            info, work = _require_stored(target, name, found)
            _check_owner(info, for_owner)
            job = work.job(found.now, id or f"{name}!{new_job_id()}")
            try:
                return await self.fire_once(target, name, job, version=info.version, call=call)
            except ScheduleChanged:
                continue
        raise ScheduleChanged(target, name)

    async def get(self, queue: str, name: str) -> ScheduleInfo:
        """A schedule, stored or declared. Raises ScheduleNotFound. One round trip."""
        target, name = queue_name(queue), schedule_name(name)
        info = (await self._find(target, name)).info
        if info is None:
            raise ScheduleNotFound(target, name)
        return info

    async def list(
        self, *, queues: Collection[str] | None = None, after: str | None = None, size: int = 100
    ) -> SchedulePage:
        """A page of the schedules of *queues*, or of all: stored and declared ones, by queue and
        name.

        Payloads are left out. One round trip per queue.
        """
        integer("size", size, 1, 1000)
        known = await self._queues.list() if queues is None else queues
        first, _, begin = (after or "").partition("/")
        names = [name for name in sorted(map(queue_name, known)) if name >= first]
        found: list[ScheduleInfo] = []
        for at in range(0, len(names), _AT_ONCE):
            part = names[at : at + _AT_ONCE]
            looks = await asyncio.gather(*map(self.of, part))
            for queue, look in zip(part, looks, strict=True):
                found += [
                    schedule
                    for schedule in all_schedules(queue, look)
                    if queue > first or schedule.name > begin
                ]
            if len(found) > size:
                break
        page = found[:size]
        last = f"{page[-1].queue}/{page[-1].name}" if len(found) > size else None
        return SchedulePage(page, last)

    # ── for processes that fire schedules ────────────────────────────────────────────────

    async def changes(self, known: str = "") -> Changes:
        """Internal: which queues have stored schedules, unless the last change is the *known* one.

        One round trip, however many there are.
        """
        last, now, flat = await self.index.read("schedule_changes", known=known)
        if last.decode() == known:
            return Changes(known, instant(now), None)
        words = [word.decode(errors="replace") for word in flat]
        queues = {
            QueueName(queue): _parse_entry(text)
            for queue, text in zip(words[::2], words[1::2], strict=True)
            if queue != "*"
        }
        return Changes(last.decode(), instant(now), queues)

    async def mend(self, queue: str, change: str = "") -> None:
        """Internal: correct the index's count for *queue* if *change* is the last that it knows of,
        or if it does not know the queue: after a change that was not finished, or after Redis lost
        data.
        """
        count = await self._store.command("HLEN", keys_of(queue_name(queue)).schedules)
        if count or change:
            await self._write_index(queue_name(queue), change or secrets.token_hex(8), count)

    async def of(self, queue: str, *, known: str = "") -> QueueSchedules:
        """Internal: the schedules of *queue* with their last firings, and the time of Redis. One
        round trip.

        Stored schedules are included, unless their last change is the *known* one.
        """
        answer = await self._store.read("schedules", queue_name(queue), known)
        flat, now, change, plans = answer
        last: dict[str, LastFiring] = {}
        unreadable: set[str] = set()
        for name, value in zip(flat[::2], flat[1::2], strict=True):
            try:
                last[name.decode()] = decode_last_firing(value)
            except (ValueError, OverflowError):  # a foreign entry, or a newer release's
                unreadable.add(name.decode(errors="replace"))
        kept = {
            name.decode(errors="replace"): plan
            for name, plan in zip(plans[::2], plans[1::2], strict=True)
        }
        return QueueSchedules(instant(now), last, frozenset(unreadable), change.decode(), kept)

    async def fire_due(
        self,
        queue: str,
        name: str,
        jobs: Sequence[NewJob],
        *,
        after: datetime | None,
        upto: datetime,
        about: str = "",
        version: str = "",
        call: Call | None = None,
    ) -> list[Submitted]:
        """Internal: submit the jobs of all firings after *after* up to *upto*, unless another
        caller did.

        *after* is the last firing that the caller knows of; None for a schedule that was never
        seen: then *upto* is where it begins, and there are no jobs. Either all jobs are submitted
        and *upto* becomes the last firing, or nothing is done. Raises FiringTaken with the last
        firing, NotYet if *upto* is in the future by the clock of Redis, QueueFull, MemoryFull,
        PayloadTooLarge. *version* is that of the stored schedule of this name, if there is one: the
        jobs get its payload, and another version raises ScheduleChanged. At most LARGEST_BATCH
        jobs; one round trip.
        """
        last_ms, upto_ms = instant_ms("after", after) if after else 0, instant_ms("upto", upto)
        if upto_ms <= last_ms:
            raise InvalidOption("upto", upto, rule=f"must come after {after}")
        item = [schedule_name(name), last_ms, upto_ms, _check_about(about), list(jobs), version]
        return await self._fire(queue, item, call)

    async def fire_once(
        self, queue: str, name: str, job: NewJob, *, version: str, call: Call | None = None
    ) -> Submitted:
        """Internal: submit one more job of the schedule that *queue* stores under *name*; its last
        firing does not change. Raises ScheduleChanged, QueueFull, MemoryFull. One round trip.
        """
        [answer] = await self._fire(queue, [schedule_name(name), 0, 0, "", [job], version], call)
        return answer

    # ── how it is done ───────────────────────────────────────────────────────────────────

    async def _find(self, queue: QueueName, name: str) -> _CurrentSchedule:
        plan, payload, last, now = await self._store.read("scheduled", queue, name)
        seen = read_last_firing(last)
        if plan is None and last is None:
            return _CurrentSchedule(None, None, b"", b"", instant(now))
        info, work = schedule_info(queue, name, plan, seen, payload)
        return _CurrentSchedule(info, work, plan or b"", payload or b"", instant(now))

    async def _put(
        self,
        queue: QueueName,
        name: str,
        decide: Callable[[_CurrentSchedule], tuple[NamedSchedule, bool]],
        *,
        make: bool = False,
    ) -> SetSchedule:
        for _ in range(_CHANGES_MOST):
            found = await self._find(queue, name)
            if not (make and found.info is None):
                _require_stored(queue, name, found)
            work, paused = decide(found)
            before = found.info.version if found.info else ""
            version, plan = (
                secrets.token_hex(8),
                msgspec.json.encode(SchedulePlan.of(work, paused=paused)),
            )
            if found.plan == f"{before} ".encode() + plan and found.payload == work.payload:
                return SetSchedule(cast("ScheduleInfo", found.info), new=False)
            anew = int(found.info is not None and found.info.paused and not paused)
            item = [
                name, before, version, str(work.when), plan, work.payload, anew, MOST_IN_A_QUEUE,
            ]  # fmt: skip

            def body(options: QueueOptions, item: list[Any] = item) -> Any:
                check_size("payload", item[5], options.max_payload)
                return item

            answer = await self._change(queue, "schedule", body, more=not before)
            if answer is not None:
                return SetSchedule(await self.get(queue, name), new=answer == b"made")
        raise ScheduleChanged(queue, name)

    async def _change(
        self,
        queue: QueueName,
        verb: str,
        body: Callable[[QueueOptions], Any],
        *,
        more: bool = False,
    ) -> bytes | None:
        """Change a stored schedule, and write the index before and after. Returns what was done;
        None if another change came first.
        """
        change, count = secrets.token_hex(8), _SAME_COUNT
        begun = await self.index.run(
            "begin_schedule_change", queue=queue, change=change, more=int(more), most=MOST_IN_ALL
        )
        if begun != b"ok":
            raise SchedulesFull("all queues together", MOST_IN_ALL)
        try:
            answer = await self._store.write(verb, queue, body)
        except ServerUnreachable:
            raise  # it may still take effect: the index stays at "begun", so it is checked
        except TowpathError:
            await self._write_index(queue, change, count)
            raise
        if answer[0] in _DONE_WORDS:
            count = answer[1]
        await self._write_index(queue, change, count)
        match answer:
            case [bytes(done), int()] if done in _DONE_WORDS:
                return done
            case [b"SCHEDULE_CHANGED", _] | [b"SCHEDULE_DECLARED"]:
                return None  # the caller reads the schedule again, which shows why
            case [b"SCHEDULES_FULL", most]:
                raise SchedulesFull(f"queue {queue}", most)
            case _:
                raise ScriptDefect(f"{verb} answered {answer!r}")

    async def _fire(self, queue: str, item: list[Any], call: Call | None) -> list[Submitted]:
        target, name, upto_ms, jobs = queue_name(queue), item[0], item[2], item[4]
        if len(jobs) > LARGEST_BATCH:
            raise InvalidOption("jobs", len(jobs), rule=f"at most {LARGEST_BATCH} in one step")

        def body(options: QueueOptions) -> Any:
            for job in jobs:
                check_size("payload", job.payload, options.max_payload)
            return item

        answer = await self._store.write("fire", target, body, call)
        refusal = _decode_refusal(target, name, instant(upto_ms), answer)
        if refusal is not None:
            raise refusal
        return [
            _decode_submitted(target, job, reply) for job, reply in zip(jobs, answer, strict=True)
        ]

    async def _write_index(self, queue: QueueName, change: str, count: int) -> None:
        try:
            news = secrets.token_hex(8)
            await self.index.run(
                "end_schedule_change", queue=queue, change=change, count=count, news=news
            )
        except ServerError:
            # The index stays at "begun": processes that fire check each second, and correct it.
            return


def _require_stored(
    queue: QueueName, name: str, found: _CurrentSchedule
) -> tuple[ScheduleInfo, NamedSchedule]:
    """The schedule that was read, if it is a stored one. Raises ScheduleNotFound, ScheduleDeclared,
    ScheduleUnreadable.
    """
    if found.info is None:
        raise ScheduleNotFound(queue, name)
    if found.info.source is ScheduleSource.CODE:
        raise ScheduleDeclared(queue, name)
    if found.work is None:
        raise ScheduleUnreadable(queue, name)
    return found.info, found.work


def _check_owner(info: ScheduleInfo, for_owner: str | None) -> None:
    if for_owner is not None and info.options.get("owner") != for_owner:
        raise NotOwned(f"schedule {info.queue}/{info.name}")


def _parse_entry(text: str) -> IndexEntry:
    found = _ENTRY.fullmatch(text)
    return (
        IndexEntry(found[1] == "begun", found[2]) if found else IndexEntry(begun=True, change=text)
    )


def _check_about(text: str) -> str:
    if not isinstance(text, str) or len(text.encode(errors="replace")) > LONGEST_ABOUT:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise InvalidOption("about", text, rule=f"must be text of at most {LONGEST_ABOUT} bytes")
    return text


def _decode_refusal(
    queue: QueueName, name: str, upto: datetime, answer: list[Any]
) -> TowpathError | None:
    """The error for an answer that refuses the firing; None if the jobs were submitted."""
    match answer:
        case [b"SCHEDULE_CHANGED", _]:
            return ScheduleChanged(queue, name)
        case [b"FIRING_TAKEN", last]:
            return FiringTaken(queue, name, instant(last) if last else None)
        case [b"NOT_YET", now]:
            return NotYet(queue, name, upto=upto, now=instant(now))
        case [b"QUEUE_FULL", length]:
            return QueueFull(queue, length)
        case [b"PAYLOAD_TOO_LARGE", size, limit]:
            return PayloadTooLarge("payload", size, limit=limit)
        case _:
            return None


def _decode_submitted(queue: QueueName, job: NewJob, answer: Any) -> Submitted:
    outcome = codec.decode_submitted(queue, job.id, answer)
    if isinstance(outcome, TowpathError):
        raise ScriptDefect(f"fire answered {answer!r} for one job")
    return outcome
