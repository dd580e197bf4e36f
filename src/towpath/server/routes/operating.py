"""Operating: the checks of `doctor`, workers, API keys, the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BeforeValidator, Field

from towpath.clock import seconds
from towpath.engine.diagnosis import examine
from towpath.engine.engine import Engine
from towpath.engine.findings import findings, of_queues, of_records
from towpath.engine.worker_registry import BlockedLoop, HandlerReport
from towpath.errors import ServerError
from towpath.ledger.audit import ActionPage, AuditEntry
from towpath.ledger.errors import KeyEnded, KeyNotFound
from towpath.ledger.keys.findings import of_keys
from towpath.ledger.keys.key import KeyInfo, NewKey, Scope
from towpath.ledger.keys.keys import OVERLAP
from towpath.ledger.ledger import Ledger
from towpath.web.audit import audited
from towpath.web.auth import CanAdmin, CanRead, require_all_queues
from towpath.web.bodies import BodyRoute
from towpath.web.dependencies import TheEngine
from towpath.web.fields import Answer, Body, Instant, answer_from, example
from towpath.web.problems import Refused, documented

router = APIRouter(prefix="/api/v1", tags=["operating"], route_class=BodyRoute)
_WITHIN = seconds(2)


class FindingOut(Answer):
    """The result of one check."""

    model_config = example(
        check="durability",
        verdict="warn",
        found="memory: all data is lost when Redis ends",
        do="Set `appendonly yes`; add `appendfsync always` if not even a second may be lost.",
    )

    check: str
    """What was checked."""
    verdict: str
    """ok, warn or bad."""
    found: str
    """What the check found."""
    do: str | None = None
    """What to do about it; null if all is well."""
    server: str | None = None
    """The Redis server that it is about, if there are several."""


class FindingsOut(Answer):
    """The results of all checks."""

    durability: str | None = None
    """What survives a crash of Redis: memory, second or disk. Null if Redis does not report it, or
    may evict jobs."""
    findings: list[FindingOut]


@router.get("/doctor", response_model=FindingsOut, responses=documented())
async def doctor(request: Request, engine: TheEngine, key: CanRead) -> FindingsOut:
    """Check Redis and say what to fix, like `towpath doctor`.

    Needs a key for all queues.
    """
    require_all_queues(key)
    checkup = await examine(engine.url, within=_WITHIN)
    found = findings(checkup, engine.url, engine.facts.durability)
    found += await of_queues(engine)
    found += of_records(await request.app.state.elsewhere.find())
    ledger: Ledger = request.app.state.ledger
    found += of_keys(await ledger.keys.list_without_owner(), request.app.state.raw)
    return FindingsOut(
        durability=await _durability(engine),
        findings=[
            FindingOut(
                check=finding.check,
                verdict=finding.verdict.name.lower(),
                found=finding.found,
                do=finding.do or None,
                server=finding.server or None,
            )
            for finding in found
        ],
    )


async def _durability(engine: Engine) -> str | None:
    """The durability of Redis now; None if it does not report it, or may evict jobs."""
    try:
        return str((await engine.current_facts()).durability)
    except ServerError:
        return None


class RunningOut(Answer):
    """A job that a worker runs."""

    queue: str
    id: str
    since: datetime
    """When it started to run the job."""


class BlockedOut(Answer):
    """An event loop that is blocked."""

    seconds: float
    """For how long, when the worker last reported; it reports every second meanwhile."""
    handler: str | None
    """The handler that blocks it. Null if something else does, if it is not known, or if the key
    does not cover its queue; so are `queue` and `id`."""
    queue: str | None
    id: str | None


class HandlerOut(Answer):
    """A handler of a worker."""

    queue: str
    name: str | None
    """Null for the handler of the queue that has no name."""
    digest: str
    """A short hash of the type of its payload; empty if it takes any payload."""


class WorkerOut(Answer):
    """A worker that reported within the last 25 seconds."""

    name: str
    host: str
    pid: int
    since: datetime
    """When its process began."""
    queues: list[str]
    """Queues that it serves: of the first 50 by name, those that the key covers."""
    serving: int
    """Number of all queues that it serves."""
    slots: int
    """Number of jobs that it can run at once."""
    running: int
    """Number of jobs that it runs now."""
    jobs: list[RunningOut]
    """Of its 20 longest-running jobs, those of queues that the key covers."""
    blocked: BlockedOut | None
    """Set while a handler blocks the worker's event loop: it renews its leases, but runs and claims
    nothing."""
    release: str | None
    """Its version of Towpath. Null for an older release, which does not report it."""
    handlers: list[HandlerOut] | None
    """Of its first 100 handlers by queue and name, those of queues that the key covers. Null for an
    older release, which does not report them."""
    handling: int
    """Number of all its handlers."""


class WorkersOut(Answer):
    """The live workers."""

    workers: list[WorkerOut]


@router.get("/workers", response_model=WorkersOut, responses=documented())
async def workers(engine: TheEngine, key: CanRead) -> WorkersOut:
    """List the live workers, their hosts and their jobs, like `towpath workers`. At most 1,000
    that serve a queue the key covers.
    """
    found: list[WorkerOut] = []
    for name, since, report in await engine.workers.list():
        queues = [queue for queue in report.queues if key.covers(queue)]
        jobs = [
            RunningOut(queue=one.job.queue, id=one.job.id, since=one.since)
            for one in report.jobs
            if key.covers(one.job.queue)
        ]
        if queues:
            found.append(
                WorkerOut(
                    name=name, host=report.host, pid=report.pid, since=since, queues=queues,
                    serving=report.serving, slots=report.slots, running=report.running, jobs=jobs,
                    blocked=_blocked_out(report.blocked, key), release=report.release or None,
                    handlers=_handlers_out(report.handlers, key), handling=report.handling,
                )
            )  # fmt: skip
    return WorkersOut(workers=found)


def _handlers_out(
    handlers: Sequence[HandlerReport] | None, key: KeyInfo
) -> list[HandlerOut] | None:
    if handlers is None:
        return None
    return [
        HandlerOut(queue=one.queue, name=one.name, digest=one.digest)
        for one in handlers
        if key.covers(one.queue)
    ]


def _blocked_out(blocked: BlockedLoop | None, key: KeyInfo) -> BlockedOut | None:
    if blocked is None:
        return None
    job = blocked.job if blocked.job and key.covers(blocked.job.queue) else None
    return BlockedOut(
        seconds=blocked.seconds,
        handler=blocked.handler if job else None,
        queue=job.queue if job else None,
        id=job.id if job else None,
    )


# ── keys ─────────────────────────────────────────────────────────────────────────────────


class KeyIn(Body):
    """A key to create."""

    model_config = example(name="reports", scopes=["read"], queues=["reports-*"])

    name: Annotated[str, Field(min_length=1, max_length=100)]
    """Who the key is for."""
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=6)]
    """What the key may do."""
    queues: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=64)]], Field(max_length=100)
    ] = Field(default=["*"])
    """Patterns of queue names; `*` stands for any characters, `?` for one."""
    owner: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """Who owns what the key makes. Keys with the same owner share it; null = the key's own id."""
    expires_at: Instant | None = None
    """When the key expires; null = never."""


class KeyOut(answer_from(KeyInfo)):
    """A key, without its secret."""

    scopes: Annotated[list[str], BeforeValidator(sorted)]


class NewKeyOut(KeyOut):
    """A new key with its secret."""

    secret: str
    """The secret; it is shown only once."""

    @classmethod
    def of_new(cls, made: NewKey) -> NewKeyOut:
        info = KeyOut.model_validate(made.info).model_dump()
        return cls(**info, secret=made.secret.get_secret_value())


class KeysOut(Answer):
    """All keys, oldest first."""

    keys: list[KeyOut]


@router.get("/keys", response_model=KeysOut, responses=documented())
async def keys(request: Request, key: CanAdmin) -> KeysOut:
    """List all keys, ended ones included. Needs an admin key for all queues."""
    require_all_queues(key)
    ledger: Ledger = request.app.state.ledger
    return KeysOut(keys=[KeyOut.model_validate(info) for info in await ledger.keys.list()])


@router.post("/keys", status_code=201, response_model=NewKeyOut, responses=documented())
@audited("name", "scopes", "queues", "owner", "expires_at", answer=("id",))
async def make_key(body: KeyIn, request: Request, key: CanAdmin) -> NewKeyOut:
    """Create a key. Only this response has its secret.

    Needs an admin key for all queues.
    """
    require_all_queues(key)
    ledger: Ledger = request.app.state.ledger
    made = await ledger.keys.create(
        body.name,
        scopes=body.scopes,
        queues=body.queues,
        owner=body.owner,
        expires_at=body.expires_at,
    )
    return NewKeyOut.of_new(made)


class RotateIn(Body):
    """How to replace a key."""

    model_config = example(overlap=3600)

    overlap: Annotated[float, Field(ge=0, le=366 * 86400)] = OVERLAP.total_seconds()
    """Seconds for which the old key stays valid; 0 = not at all."""


@router.post(
    "/keys/{id}/rotate", status_code=201, response_model=NewKeyOut, responses=documented(404, 409)
)
@audited("overlap", answer=("id",))
async def rotate_key(id: str, body: RotateIn, request: Request, key: CanAdmin) -> NewKeyOut:
    """Replace a key by a new one with the same name, scopes, queues and owner. Only this response
    has its secret.

    Needs an admin key for all queues.
    """
    require_all_queues(key)
    ledger: Ledger = request.app.state.ledger
    try:
        made = await ledger.keys.rotate(id[:64], overlap=seconds(body.overlap))
    except KeyNotFound as error:
        raise Refused(404, error.code, str(error), remedy=error.remedy) from error
    except KeyEnded as error:
        raise Refused(409, error.code, str(error), remedy=error.remedy) from error
    return NewKeyOut.of_new(made)


@router.delete("/keys/{id}", response_model=KeyOut, responses=documented(404))
@audited(answer=("name",))
async def revoke_key(id: str, request: Request, key: CanAdmin) -> KeyOut:
    """Revoke a key for good; it takes effect everywhere within five seconds.

    Needs an admin key for all queues.
    """
    require_all_queues(key)
    ledger: Ledger = request.app.state.ledger
    try:
        return KeyOut.model_validate(await ledger.keys.revoke(id[:64]))
    except KeyNotFound as error:
        raise Refused(404, error.code, str(error), remedy=error.remedy) from error


# ── the audit log ────────────────────────────────────────────────────────────────────────


class ActionOut(answer_from(AuditEntry)):
    """A change that somebody asked for."""

    model_config = example(
        seq=812,
        at="2026-01-01T12:00:00Z",
        key_id="h7m2kxq9ab",
        key_name="ann",
        owner="h7m2kxq9ab",
        via="api",
        method="POST",
        path="/api/v1/queues/mails/purge",
        action="purge",
        target={"queue": "mails"},
        changed={"states": ["dead"], "jobs": 12},
        status=200,
        refused=False,
    )

    refused: bool
    """Whether it was refused (4xx), so that nothing was changed."""


class ActionsOut(answer_from(ActionPage)):
    """A page of actions, newest first."""

    actions: list[ActionOut]


@router.get("/audit", response_model=ActionsOut, responses=documented())
async def actions(
    request: Request,
    admin: CanAdmin,
    *,
    key: Annotated[
        str | None, Query(max_length=64, description="Only actions with the key of this id.")
    ] = None,
    since: Annotated[
        Instant | None, Query(description="At this time or later; with a time zone.")
    ] = None,
    until: Annotated[
        Instant | None, Query(description="Before this time; with a time zone.")
    ] = None,
    after: Annotated[
        int | None,
        Query(ge=0, le=2**62, description="The `after` value returned with the previous page."),
    ] = None,
    size: Annotated[int, Query(ge=1, le=1000, description="Entries per page.")] = 100,
) -> ActionsOut:
    """List changes through the dashboard and the API: who did what, and when.

    The data path (submit, claim, settle, chunks of files) is left out unless it was used in the
    dashboard. For each key, the newest 10,000 changes and the newest 100 refusals are kept. Needs
    an admin key for all queues.
    """
    require_all_queues(admin)
    ledger: Ledger = request.app.state.ledger
    page = await ledger.audit.list(after=after, size=size, key=key, since=since, until=until)
    return ActionsOut.model_validate(page)
