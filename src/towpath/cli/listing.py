"""Output of jobs, as text and as JSON: pages over queues and states, and single jobs."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from towpath.clock import readable, trim_timestamps
from towpath.console.arguments import chosen_queues
from towpath.console.output import Output
from towpath.engine.explain import Explanation, Position
from towpath.engine.model import JobAttributes, JobInfo
from towpath.engine.spelling import written
from towpath.engine.states import State
from towpath.errors import InvalidOption

if TYPE_CHECKING:
    from towpath.app.jobs import AllJobs
    from towpath.engine.engine import Engine
    from towpath.engine.inspect import Page

STATES = (
    State.LEASED, State.READY, State.DELAYED, State.WAITING,
    State.DEAD, State.DONE, State.CANCELLED,
)  # fmt: skip
COLUMNS = ("JOB", "STATE", ">PRIORITY", "LANE", ">ATTEMPTS", "SUBMITTED", "ABOUT")
_LARGEST_PAGE = 1000

Place = tuple[str, State]
"""Jobs of one queue in one state."""


class PageQuery(NamedTuple):
    """A page of jobs: its places, its lane, its size, and the cursor."""

    places: list[Place]
    lane: str | None
    limit: int
    after: str | None


async def places_of(engine: Engine, queue: str | None, states: Sequence[str]) -> list[Place]:
    """The places to list. Raises InvalidOption for an unknown state."""
    for state in states:
        if state not in set(STATES):
            raise InvalidOption("state", state, rule=f"must be one of {', '.join(STATES)}")
    chosen = [state for state in STATES if not states or state in states]
    queues = await chosen_queues(engine, [queue] if queue else [])
    return [(name, state) for name in queues for state in chosen]


async def show_pages(
    out: Output, jobs: AllJobs, wanted: PageQuery, *, every: bool, command: str
) -> None:
    """Print the page *wanted*; with *every*, also all pages after it."""
    while True:
        page = await find_page(jobs, wanted)
        out.answers(COLUMNS, page.jobs, _row, brief, none="no such jobs")
        if page.after is None:
            return
        if not every:
            out.more(page.after, command)
            return
        wanted = wanted._replace(after=page.after)


async def find_page(every: AllJobs, wanted: PageQuery) -> Page:
    """Up to `limit` jobs from the first places that have some."""
    from towpath.engine.inspect import Page  # noqa: PLC0415 -- slow to import

    at, cursor = _start(wanted)
    jobs: list[JobInfo] = []
    while at < len(wanted.places) and len(jobs) < wanted.limit:
        queue, state = wanted.places[at]
        # Only waiting jobs have an index by lane; a lane has at most one or two others.
        filtered = wanted.lane is not None and state is not State.WAITING
        size = _LARGEST_PAGE if filtered else wanted.limit - len(jobs)
        lane = None if filtered else wanted.lane
        page = await every.list(queue, state, lane=lane, after=cursor, size=size)
        jobs += [job for job in page.jobs if wanted.lane in {None, job.lane}]
        cursor = page.after
        at += cursor is None
    if at == len(wanted.places):
        return Page(jobs, None)
    queue, state = wanted.places[at]
    return Page(jobs, f"{queue}/{state}/{cursor or ''}")


def _start(wanted: PageQuery) -> tuple[int, str | None]:
    """The place and the cursor where the page begins. Raises InvalidOption."""
    if wanted.after is None:
        return 0, None
    queue, _, rest = wanted.after.partition("/")
    state, _, cursor = rest.partition("/")
    for at, place in enumerate(wanted.places):
        if place == (queue, state):
            return at, cursor or None
    raise InvalidOption(
        "after",
        wanted.after,
        rule="must be the `after` value returned with the previous page of this list",
    )


# ── one job ──────────────────────────────────────────────────────────────────────────────


def _row(job: JobInfo) -> list[object]:
    return [
        job.ref, job.state, job.priority, job.lane, job.attempts, job.submitted_at, _about(job),
    ]  # fmt: skip


def _about(job: JobInfo) -> str:
    match job.state:
        case State.LEASED:
            return f"by {job.worker} until {job.expires_at:%H:%M:%S}Z"
        case State.DELAYED:
            what = "due" if job.next_try_at is None else "next try"
            at = job.next_try_at or job.due_at
            when = f"{what} {at:%Y-%m-%d %H:%M:%S}Z"
            return f"{when}: {job.reason}" if job.reason else when
        case _:
            return job.reason or " "


def brief(job: JobInfo) -> dict[str, Any]:
    """A job as JSON, without its payload. Leaves out empty fields."""
    facts = {
        "queue": job.ref.queue,
        "id": job.id,
        "record": job.record,
        "redis_id": job.redis_id,
        "state": job.state,
        "attempts": job.attempts,
        "deaths": job.deaths or None,
        "submitted_at": job.submitted_at,
        "due_at": job.due_at,
        "next_try_at": job.next_try_at,
        "claimed_at": job.claimed_at,
        "expires_at": job.expires_at,
        "ended_at": job.ended_at,
        "worker": job.worker,
        "token": job.token,
        "cancel_requested": job.cancel_requested or None,
        "reason": job.reason,
        "unhandled_since": job.unhandled_since,
        "unhandled": job.unhandled,
        "failures": [msgspec.structs.asdict(failure) for failure in job.failures] or None,
        **{name: _as_option(getattr(job, name)) for name in JobAttributes.__struct_fields__},
    }
    return {name: value for name, value in facts.items() if value is not None}


def _as_option(value: Any) -> Any:
    """An attribute of a job, as its option is written: `fixed:30s`."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, str]", value)) or None
    return value if value is None or isinstance(value, str) else written(value)


def described(job: JobInfo, position: Position | None, why: Explanation) -> dict[str, Any]:
    """A job as JSON, with payload, progress and result, and why it is not running."""
    return (
        brief(job)
        | content("payload", job.payload)
        | content("progress", job.progress)
        | content("result", job.result)
        | placed(position)
        | {"why": why.why, "text": why.text}
    )


def placed(position: Position | None) -> dict[str, Any]:
    """How far a job is from running, as JSON."""
    if position is None:
        return {}
    wait = position.wait
    estimate = {} if wait is None else {"wait_seconds": wait.total_seconds()}
    return {"ahead": position.ahead, "in_lane": position.in_lane} | estimate


def job_facts(job: JobInfo, position: Position | None, why: Explanation) -> dict[str, Any]:
    """A job as names and values, for people."""
    bodies = {"payload": job.payload, "progress": job.progress, "result": job.result}
    ahead = None if position is None else in_words(position)
    texts = {name: _text(body) for name, body in bodies.items() if body is not None}
    facts = brief(job)
    if job.failures:
        facts["failures"] = "; ".join(
            f"{failure.at:%Y-%m-%d %H:%M:%S} {failure.worker}: {failure.reason}"
            for failure in job.failures
        )
        if traceback := job.failures[-1].traceback:
            facts["traceback"] = traceback.rstrip()
    if "headers" in facts:
        facts["headers"] = ", ".join(f"{name}={value}" for name, value in job.headers.items())
    return facts | texts | {"position": ahead, "why": trim_timestamps(why.text)}


def in_words(position: Position) -> str:
    """How far a job is from running, for people."""
    wait = "" if position.wait is None else f", about {readable(position.wait)} to wait"
    return f"{position.ahead} ahead{' in its lane' if position.in_lane else ''}{wait}"


def content(name: str, body: bytes | None) -> dict[str, Any]:
    """Bytes as a JSON field: the value if they are JSON, else `…_text`, else `…_base64`."""
    if body is None:
        return {}
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(body).decode()}
    try:
        return {name: msgspec.json.decode(text)}
    except (msgspec.DecodeError, RecursionError):
        return {f"{name}_text": text}


def _text(body: bytes) -> str:
    """Bytes for people: as text, or only their number."""
    try:
        return body.decode() or "(empty)"
    except UnicodeDecodeError:
        return f"({len(body)} bytes that are no text)"
