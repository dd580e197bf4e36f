"""Fills the kept database: API keys, records in every state, events that were not sent yet."""

from contextlib import suppress
from typing import Unpack

from tests.ledger.memory_sinks import MemorySink
from tests.ledger.numbered_events import QUICK, an_event, put
from tests.waiting import eventually_async
from towpath import Listed, Towpath, days, hours, minutes, seconds
from towpath.apps.reviews.model import (
    Comment,
    Forge,
    Review,
    ReviewKind,
    ReviewTask,
    Severity,
    Verdict,
)
from towpath.apps.reviews.service import Reviews
from towpath.clock import instant, wall_ms
from towpath.engine.model import Bury, Complete, Fail, Lease, Settlement, job_ref
from towpath.engine.states import State
from towpath.errors import JobNotFound
from towpath.ledger.ledger import Ledger
from towpath.ledger.outbox.courier import Courier
from towpath.ledger.outbox.event import Refusal
from towpath.ledger.records.record import RecordOptions

ORDERS, REVIEWS = "orders", "reviews"
SINKS = ("audit", "events")
KEYS = {name: f"made-up-for-the-tests-{name}" for name in ("admin", "submit", "revoked")}
"""The secrets of the keys, by name: of no use anywhere else."""
HEAD = f"{7:040x}"


async def write_keys(ledger: Ledger) -> None:
    await ledger.keys.ensure(KEYS["admin"], name="admin")
    await ledger.keys.ensure(KEYS["submit"], name="submit", scopes=["submit"], queues=["mails-*"])
    revoked = await ledger.keys.ensure(KEYS["revoked"], name="revoked")
    await ledger.keys.revoke(revoked.id)
    until = instant(wall_ms()) + days(1)
    await ledger.keys.create("until tomorrow", scopes=["read", "work"], expires_at=until)


async def write_records(app: Towpath) -> None:
    """*app* has the ledger; it is entered, so its relay enqueues the records in Redis."""
    await app.engine.queues.change_options(ORDERS, lambda options: options)
    await _ended(app)
    await _about_one_subject(app)
    await _begun(app)
    await _reviews(app)
    await _waiting(app)


async def write_outbox(ledger: Ledger) -> None:
    """One sink has refused an event; both sinks have more to send."""
    await put(ledger, an_event("aside", 1), an_event("taken", 1))
    sink = MemorySink("audit", {"aside/1": Refusal("it is malformed")})
    async with Courier(ledger, [sink], options=QUICK):
        await eventually_async(lambda: _settled(ledger))
    await put(ledger, an_event("k", 1), an_event("k", 2))


async def _settled(ledger: Ledger) -> bool:
    audit = (await ledger.outbox.counts())["audit"]
    return (audit.pending, audit.refused) == (0, 1)


async def begun(app: Towpath, name: str, **options: Unpack[RecordOptions]) -> Lease:
    """A record whose attempt has begun."""
    options = {"priority": 100, "id": name, **options}
    await app.ledger.jobs.submit(ORDERS, f'"{name}"'.encode(), **options)
    return await _begin(app, ORDERS, name)


async def _claimed(app: Towpath, queue: str, id: str) -> Lease:
    """Claims the job as soon as the relay has enqueued it: otherwise other jobs would come
    first.
    """

    async def is_there() -> bool:
        with suppress(JobNotFound):
            return (await app.engine.inspect.job(job_ref(queue, id))).state is State.READY
        return False

    await eventually_async(is_there)
    [lease] = await app.engine.claim(queue, worker="anna", lease=hours(1))
    assert lease.job.id == id
    return lease


async def _begin(app: Towpath, queue: str, id: str) -> Lease:
    begun = await app.recorder.begin(await _claimed(app, queue, id))
    assert isinstance(begun, Lease)
    return begun


async def end(app: Towpath, settlement: Settlement) -> None:
    """Ends the attempt as a worker does: first in the row, then in Redis."""
    told = await app.recorder.end(settlement.lease, settlement, cancelled=False)
    assert told is not None
    await app.engine.settle([told])


async def _ended(app: Towpath) -> None:
    jobs = app.ledger.jobs
    await end(app, Complete(await begun(app, "completed"), b'"a result"'))
    await end(app, Bury(await begun(app, "dead"), "ValueError: no"))
    await jobs.submit(ORDERS, b'"cancelled"', id="cancelled")
    await jobs.cancel(ORDERS, "cancelled")
    await end(app, Bury(await begun(app, "retried"), "it was worth another try"))
    retried = await jobs.retry(ORDERS, "retried")
    # Otherwise it would be the next job to be claimed.
    await app.engine.release(await _claimed(app, ORDERS, retried.job), delay=minutes(1))


async def _about_one_subject(app: Towpath) -> None:
    for version, revision in enumerate(("r1", "r2", "r3"), 1):
        await app.ledger.jobs.submit(
            ORDERS,
            f'"{revision}"'.encode(),
            id=f"subject-{revision}",
            subject="order#7",
            version=version,
            revision=revision,
            follows=f"r{version - 1}" if version > 1 else None,
            delay=minutes(2),
        )


async def _begun(app: Towpath) -> None:
    failed = await begun(app, "failed", retry=Listed((minutes(3), hours(1))), max_attempts=3)
    await end(app, Fail(failed, "TimeoutError: slow", minutes(3)))
    await begun(app, "running", headers={"handler": "bill", "tenant": "seven"})
    await begun(app, "running-cancelled")
    await app.ledger.jobs.cancel(ORDERS, "running-cancelled")
    await begun(app, "lane-a", lane="u1")
    for id in ("lane-b", "lane-c"):
        await app.ledger.jobs.submit(ORDERS, f'"{id}"'.encode(), id=id, lane="u1")


async def _reviews(app: Towpath) -> None:
    reviews = Reviews(app.ledger.jobs)
    task = ReviewTask(
        forge=Forge("github"),
        kind=ReviewKind.PULL,
        repository="a/b",
        head=HEAD,
        number=1,
        title="Ü",
    )
    await reviews.submit(task, id="done", priority=100)
    comment = Comment(path="a.py", line=3, body="why?", severity=Severity.WARNING)
    review = Review(verdict=Verdict.COMMENT, summary="a few remarks", comments=(comment,))
    await end(app, Complete(await _begin(app, REVIEWS, "api-done"), review.packed()))
    push = ReviewTask(
        forge=Forge("gitlab"), kind=ReviewKind.PUSH, repository="a/b", head=HEAD, ref="main"
    )
    await reviews.submit(push, id="waits")


async def _waiting(app: Towpath) -> None:
    jobs = app.ledger.jobs
    await jobs.submit(ORDERS, b'"pending"', id="pending", keep=seconds(60), lease=minutes(2))
    await jobs.submit(ORDERS, b'"delayed"', id="delayed", delay=minutes(30), priority=100)
