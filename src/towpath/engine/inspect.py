"""Reading queues: what a job is, why it does not run, what the queue holds. Changes nothing."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from towpath.clock import Duration, hours, instant, instant_ms, milliseconds
from towpath.engine.check import integer
from towpath.engine.codec import pairs
from towpath.engine.explain import SILENT_MS, Explanation, Facts, Position, explain, position
from towpath.engine.history import History, columns, window
from towpath.engine.model import Failure, JobInfo, JobRef, read_attributes
from towpath.engine.record import STATES, STORED, StoredJob, decode, readable
from towpath.engine.states import State
from towpath.engine.store import Store
from towpath.engine.worker_registry import Workers
from towpath.errors import InvalidOption, JobNotFound, ServerError
from towpath.ids import JobId, QueueName, Token, lane_key, queue_name, text_name

LARGEST_PAGE = 1000
_LAST_HOUR = hours(1)
SEARCHED_MOST, _SEARCHED_AT_ONCE = 10_000, 1000
"""How many dead jobs a search covers, newest first, and how many of them one step reads."""


class Look(msgspec.Struct, frozen=True):
    """A job and the facts that explain it, both of one moment."""

    job: JobInfo
    facts: Facts

    @property
    def position(self) -> Position | None:
        """How far the job was from running; None for one that is delayed, leased or has ended."""
        return position(self.job.state, self.facts)


class Lane(msgspec.Struct, frozen=True):
    """A lane at one moment: its head, and the jobs behind it."""

    head: JobId | None = None
    """The job that may run; None = the lane is empty."""
    head_state: State | None = None
    """The state of the head; LEASED only while its lease lasts."""
    behind: int = 0
    """Number of jobs that wait behind the head."""
    before: int | None = None
    """Number of those that are before the job asked for; None if it is not among them."""


class Page(msgspec.Struct, frozen=True):
    """A page of jobs. Pass *after* to get the next page; None = this is the last one."""

    jobs: list[JobInfo]
    after: str | None


class SearchStep(msgspec.Struct, frozen=True):
    """What one step of a search found, and how far the search has come."""

    jobs: list[JobInfo]
    """Newest first."""
    looked: int
    """Number of dead jobs searched so far, of the newest 10,000; pass it to continue."""
    is_over: bool


class ErrorGroup(msgspec.Struct, frozen=True):
    """Dead jobs that died of the same error."""

    group: str
    """The group's id for other requests; `other` collects the errors beyond the first hundred."""
    error: str
    """The first line of the reasons; `#` replaces numbers and ids."""
    count: int
    """Number of dead jobs."""
    first: datetime
    """When the first job of the group died."""
    last: datetime
    """When the last job of the group died."""


class ErrorGroups(msgspec.Struct, frozen=True):
    """The dead jobs of a queue, grouped by error."""

    groups: list[ErrorGroup]
    """The largest first."""
    ungrouped: int
    """Number of dead jobs without a group: they died under an older release."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs a queue has in each state, and what it has counted so far."""

    ready: int
    delayed: int
    waiting: int
    """Jobs that wait behind the head of their lane."""
    leased: int
    dead: int
    kept: int
    """Jobs that are done or cancelled and can still be read."""
    lanes: int
    """Lanes with at least one job."""
    remembered: int
    """Ids that are still known after their jobs are gone."""
    paused: bool
    no_worker: bool
    """Whether jobs could run, but no worker has asked for any for 12 seconds and none runs one."""
    oldest: Duration | None
    """Age of the oldest job among the first ones of each priority; None if no job is ready. Jobs
    that came back stand behind the others, however old they are."""
    totals: dict[str, int]
    """Totals since the queue was created: submitted, completed, failed, died, …"""


_TOTALS = (
    "submitted", "completed", "failed", "died", "cancelled", "released", "reaped", "promoted",
    "retried", "deleted", "trimmed", "moved", "replaced", "unhandled",
)  # fmt: skip


class Inspector:
    """Reads jobs, counts and lists: `engine.inspect`. Changes nothing."""

    def __init__(self, store: Store, workers: Workers) -> None:
        self._store, self._workers = store, workers

    async def job(self, ref: JobRef) -> JobInfo:
        """The job as it is now, with payload and result. Raises JobNotFound. One round trip."""
        return (await self.look(ref)).job

    async def look(self, ref: JobRef) -> Look:
        """The job with the facts that explain it, of one moment. Raises JobNotFound."""
        record, payload, result, facts = await self._look(ref)
        return Look(_make_info(ref, record, facts, payload=payload, result=result), facts)

    async def state(self, ref: JobRef) -> State:
        """The state of the job; GONE if it ended and is no longer kept, or never existed."""
        try:
            record, *_ = await self._look(ref)
        except JobNotFound:
            return State.GONE
        return record.state

    async def position(self, ref: JobRef) -> Position | None:
        """How many jobs run before this one, and about how long that takes. O(log n).

        None for a job that is delayed, leased or has ended. Raises JobNotFound.
        """
        return (await self.look(ref)).position

    async def lane(self, queue: str, lane: str, *, job: str | None = None) -> Lane:
        """The head of *lane*, how many jobs wait behind it, and how many of these are before *job*.

        A lane that was never used is empty. One round trip, O(log n).
        """
        name, key = queue_name(queue), lane_key(lane)
        head, state, behind, rank = await self._store.read("lane", name, key, job or "")
        return Lane(
            head=JobId(head.decode(errors="replace")) if head else None,
            head_state=State(state.decode()) if state else None,
            behind=behind,
            before=rank if rank >= 0 else None,
        )

    async def explain(self, ref: JobRef) -> Explanation:
        """Why the job is not running, as a word and a sentence. Raises JobNotFound."""
        return await self.explain_look(await self.look(ref))

    async def explain_look(self, look: Look) -> Explanation:
        """Why the job was not running at the moment of *look*."""
        options = await self._store.known_options(look.job.ref.queue)
        workers = await self._workers.list() if look.job.unhandled_since else []
        return explain(
            look.job,
            look.facts,
            most=options.attempts_of(look.job.lane),
            workers=[worker.report for worker in workers],
        )

    async def lanes_waiting(self, queue: str, *, limit: int = 1000) -> int:
        """The number of lanes in which at least one job waits: all lanes with jobs, except those
        whose only job is leased. Exact up to *limit* leased jobs, too high beyond. O(leased jobs).
        """
        name = queue_name(queue)
        limit = integer("limit", limit, 1, 10_000)
        without_backlog, _ = await self._store.read("lanes_without_backlog", name, limit)
        return max((await self.counts(name)).lanes - without_backlog, 0)

    async def list(
        self,
        queue: str,
        state: State,
        *,
        lane: str | None = None,
        group: str | None = None,
        after: str | None = None,
        size: int = 100,
    ) -> Page:
        """A page of the jobs in *state*, in the order they run or ended. Payloads are left out.

        With *lane*, only jobs that wait in that lane. With *group*, only jobs that died of that
        error; `dead_groups` names the groups. A page has at most *size* jobs, fewer if their
        records are large. Pass its `after` to get the next page; it is None on the last. A job that
        moves meanwhile may be listed twice or not at all; a job that stays is listed.
        """
        name = queue_name(queue)
        if state not in STATES:
            raise InvalidOption("state", state, rule=f"{state} jobs cannot be listed")
        if lane is not None and state is not State.WAITING:
            raise InvalidOption("lane", lane, rule="only waiting jobs are listed by lane")
        if group is not None and state is not State.DEAD:
            raise InvalidOption("group", group, rule="only dead jobs are listed by error group")
        size = integer("size", size, 1, LARGEST_PAGE)
        last, score = _parse_cursor(after)
        of_lane = lane_key(lane) if lane is not None else ""
        of_group = text_name("group", group, longest=40) if group is not None else ""
        rows, now, more = await self._store.read(
            "list", name, state.value, of_lane, of_group, last, score, size
        )
        jobs = [_decode_row(name, row, now) for row in rows]
        rest = _make_cursor(rows[-1][0], rows[-1][1]) if more else None
        return Page([job for job in jobs if job and job.state is state], rest)

    async def dead_groups(self, queue: str) -> ErrorGroups:
        """The dead jobs of *queue*, grouped by error. They are counted when they die: this reads no
        job.

        An error is the first line of a reason, with numbers and ids masked. A queue has about a
        hundred groups; further errors are in the group `other`. One round trip.
        """
        rows, dead = await self._store.read("groups", queue_name(queue))
        found = [
            ErrorGroup(
                group.decode(errors="replace"),
                error.decode(errors="ignore"),
                count,
                instant(int(first)),
                instant(int(last)),
            )
            for group, error, count, first, last in rows
        ]
        found.sort(key=lambda group: (-group.count, group.error))
        return ErrorGroups(found, max(0, dead - sum(group.count for group in found)))

    async def search_dead(self, queue: str, text: str, *, looked: int = 0) -> SearchStep:
        """Dead jobs whose reason contains *text*, newest first. The case of ASCII letters does not
        matter.

        Covers the newest 10,000 dead jobs of the queue, 1,000 per step: pass *looked* to continue,
        until `is_over`. If jobs die meanwhile, some may be found twice. Payloads are left out.
        """
        name, wanted = queue_name(queue), text_name("text", text, longest=200)
        looked = integer("looked", looked, 0, SEARCHED_MOST)
        count = min(_SEARCHED_AT_ONCE, SEARCHED_MOST - looked)
        if not count:
            return SearchStep([], looked, is_over=True)
        rows, seen, now = await self._store.read(
            "search", name, _lower_ascii(wanted), looked, count
        )
        jobs = [_decode_row(name, row, now) for row in rows]
        over = seen == 0 or looked + seen >= SEARCHED_MOST
        return SearchStep([job for job in jobs if job], looked + seen, is_over=over)

    async def counts(self, queue: str) -> Counts:
        """How many jobs the queue has in each state. O(1), and one look per priority in use."""
        return _decode_counts(await self._store.read("counts", queue_name(queue)))

    async def counts_of(self, queues: Iterable[str]) -> dict[str, Counts]:
        """The counts of several queues, by name. One round trip for fifty queues of one server.

        A queue whose data cannot be read is left out: `counts` raises why. It hides no other.
        """
        names = list(dict.fromkeys(map(queue_name, queues)))
        answers = await self._store.read_each("counts", names)
        return {name: _decode_counts(answer) for name, answer in _skip_unreadable(names, answers)}

    async def history(self, queue: str, *, last: Duration = _LAST_HOUR) -> History:
        """The counts of *queue* over the *last* time: by minute up to 24 hours, by hour up to 30
        days. They are 0 before the first change. One round trip.
        """
        name, asked = queue_name(queue), window(last)
        answer = await self._store.read("history", name, asked.kind, asked.field_ms, asked.fields)
        return columns(asked, *answer)

    async def histories(
        self, queues: Iterable[str], *, last: Duration = _LAST_HOUR
    ) -> dict[str, History]:
        """The history of several queues, by name. One round trip for fifty queues of one server.

        A queue whose data cannot be read is left out.
        """
        asked, names = window(last), list(dict.fromkeys(map(queue_name, queues)))
        answers = await self._store.read_each(
            "history", names, asked.kind, asked.field_ms, asked.fields
        )
        return {name: columns(asked, *answer) for name, answer in _skip_unreadable(names, answers)}

    async def _look(self, ref: JobRef) -> tuple[StoredJob, bytes, bytes, dict[str, Any]]:
        answer = await self._store.read("job_facts", ref.queue, ref.id)
        if not answer:
            raise JobNotFound(ref)
        text, payload, result, facts = answer
        return decode(text), payload, result, pairs(facts)


def _skip_unreadable(
    names: Iterable[QueueName], answers: Iterable[Any]
) -> Iterator[tuple[QueueName, Any]]:
    """Each queue with its answer, without the queues that Redis refused to read."""
    for name, answer in zip(names, answers, strict=True):
        if not isinstance(answer, ServerError):
            yield name, answer


def _decode_counts(answer: Any) -> Counts:
    facts = pairs(answer)
    oldest_at, paused = facts["oldest_at"], facts["paused"] > 0
    idle = not facts["lasting"] and facts["ready"] + facts["leased"] > 0
    asked = max(facts["asked_at"], int(facts["asked_for"]))
    return Counts(
        ready=facts["ready"],
        delayed=facts["delayed"],
        waiting=facts["waiting"],
        leased=facts["leased"],
        dead=facts["dead"],
        kept=facts["kept"],
        lanes=facts["lanes"],
        remembered=facts["seen"],
        paused=paused,
        no_worker=idle and not paused and facts["now"] - asked > SILENT_MS,
        oldest=milliseconds(facts["now"] - oldest_at) if oldest_at else None,
        totals={name: facts[name] for name in _TOTALS},
    )


def ended_job(ref: JobRef, record: bytes, payload: bytes, result: bytes) -> JobInfo:
    """A job that has ended, from the answer of `ended.lua`."""
    return _make_info(ref, decode(record), {}, payload=payload, result=result)


def _make_info(
    ref: JobRef,
    record: StoredJob,
    facts: dict[str, Any],
    *,
    payload: bytes = b"",
    result: bytes = b"",
    is_listed: bool = False,
) -> JobInfo:
    more = record.more
    return JobInfo(
        ref=ref,
        state=record.state,
        payload=payload,
        attempts=record.attempts,
        deaths=int(more.get("deaths", 0)),
        submitted_at=instant(record.submitted_ms),
        due_at=_instant(record.due_ms),
        next_try_at=_instant(record.next_try_ms),
        claimed_at=_instant(record.claimed_ms),
        expires_at=_instant(int(facts["expires"])) if "expires" in facts else None,
        ended_at=_instant(more.get(STORED["ended_at"])),
        worker=record.worker if record.state is State.LEASED else None,
        token=Token(record.token) if record.token else None,
        cancel_requested=STORED["cancel_requested"] in more,
        reason=more["reason"].decode(errors="replace") if "reason" in more else None,
        failures=_decode_failures(more, with_tracebacks=not is_listed),
        unhandled_since=_instant(more.get("unhandled_since")),
        unhandled=more["unhandled"].decode(errors="replace") if "unhandled" in more else None,
        progress=more.get("progress"),
        result=result or None,
        record=JobId(more["record"].decode(errors="replace")) if "record" in more else None,
        **read_attributes(more),
    )


def _decode_failures(more: Mapping[str, Any], *, with_tracebacks: bool) -> tuple[Failure, ...]:
    """The failed attempts of a job. Pages leave out the tracebacks, which would make them large."""
    tracebacks = list(more.get("tracebacks", ())) if with_tracebacks else []
    failures: list[Failure] = []
    for at, worker, reason in reversed(more.get("failures", ())):
        has_traceback = bool(tracebacks) and tracebacks[-1][0] == at
        traceback = tracebacks.pop()[1] if has_traceback else b""
        failures.append(
            Failure(
                instant(int(at)),
                worker.decode(errors="replace"),
                reason.decode(errors="ignore"),
                traceback.decode(errors="replace"),
            )
        )
    return tuple(reversed(failures))


def _decode_row(queue: QueueName, row: list[Any], now: int) -> JobInfo | None:
    """The job of one row; None if it is gone, or no longer kept."""
    id, score, text = row
    record = readable(text)
    if record is None or record.more.get("gone_at", now + 1) <= now:
        return None
    leased = {"expires": score} if record.state is State.LEASED else {}
    return _make_info(
        JobRef(queue, JobId(id.decode(errors="replace"))), record, leased, is_listed=True
    )


def _lower_ascii(text: str) -> bytes:
    """*text* in lower case as Lua makes it: only ASCII letters change."""
    return text.encode().lower()


def _instant(ms: float | None) -> datetime | None:
    return instant(int(ms)) if ms else None


def _make_cursor(id: bytes, score: bytes) -> str:
    return base64.urlsafe_b64encode(score + b" " + id).decode()


def cursor_at(due: datetime) -> str:
    """The `after` of a list of delayed jobs that begins with those that are due then or later."""
    # No job has this id, so the list begins at the score.
    return _make_cursor(b"\0", str(instant_ms("due", due)).encode())


_SCORE = re.compile(rb"[0-9]{1,17}")


def _parse_cursor(after: str | None) -> tuple[bytes, bytes]:
    if after is None:
        return b"", b""
    try:
        score, _, id = base64.urlsafe_b64decode(after.encode()).partition(b" ")
    except (ValueError, AttributeError) as error:
        raise InvalidOption(
            "after", after, rule="must be the `after` value returned with the previous page"
        ) from error
    if not id or not _SCORE.fullmatch(score):
        raise InvalidOption(
            "after", after, rule="must be the `after` value returned with the previous page"
        )
    return id, score
