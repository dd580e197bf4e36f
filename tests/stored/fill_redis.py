"""Fills the kept Redis: jobs in every state, in queues of every kind."""

from datetime import UTC, datetime
from typing import Unpack

import msgspec

from towpath import (
    HIGH,
    LOW,
    Engine,
    EventPolicy,
    Exponential,
    Fixed,
    LanePolicy,
    Listed,
    Never,
    QueueOptions,
    days,
    hours,
    minutes,
    seconds,
)
from towpath.apps.messages.callbacks import submit_delivery, submit_sentry
from towpath.apps.messages.queue import MessageQueue
from towpath.apps.reviews.queue import ReviewQueue
from towpath.clock import ManualClock
from towpath.engine.model import Call, JobOptions, Lease, job_ref, new_job

SHOP, PARKED, SKIPPING, PAUSED, FULL = "shop", "parked", "skipping", "paused", "full"
NIGHTLY = "nightly"
CALL = Call("client-7", 3)
FIRED = datetime(2026, 1, 1, tzinfo=UTC)
STREAM = "told"
ODD_ID = "ä {x}:1"
LONG = hours(1)


async def claimed(engine: Engine, queue: str, name: str, **options: Unpack[JobOptions]) -> Lease:
    """A job that worker anna holds; no other job may be ready at that priority."""
    more: JobOptions = {"priority": HIGH, "id": name, **options}
    await engine.submit(queue, name.encode(), **more)
    [lease] = await engine.claim(queue, worker="anna", lease=LONG, lane=options.get("lane"))
    assert lease.id == name
    return lease


async def write_store(engine: Engine, clock: ManualClock) -> None:
    await _options(engine)
    await _ended(engine, clock)
    await _begun(engine)
    await _lanes(engine)
    await _waiting(engine, clock)
    await _other_queues(engine)
    await _applications(engine)


async def _options(engine: Engine) -> None:
    """One queue is introduced, and an operator changes it later."""
    own = QueueOptions(keep=days(30), max_attempts=3, retry=Fixed(seconds(10)))
    await engine.queues.configure(SHOP, own)
    await engine.queues.change_options(
        SHOP, lambda options: msgspec.structs.replace(options, max_attempts=4, remember=days(2))
    )


async def _ended(engine: Engine, clock: ManualClock) -> None:
    await engine.complete(await claimed(engine, SHOP, "done"), b'{"ok":true}')
    await engine.complete(await claimed(engine, SHOP, "done-own-keep", keep=hours(2)))
    await engine.complete(await claimed(engine, SHOP, "gone", keep=seconds(0)))
    await engine.submit(SHOP, b"x", id="cancelled")
    await engine.cancel(job_ref(SHOP, "cancelled"))
    await engine.bury(await claimed(engine, SHOP, "dead-buried"), "broken for good")
    await engine.fail(await claimed(engine, SHOP, "dead-failed", max_attempts=1), "ValueError: no")
    await engine.fail(await claimed(engine, SHOP, "dead-never", retry=Never()), "once is enough")
    await claimed(engine, SHOP, "dead-silent", max_attempts=1, lease=seconds(1))
    clock.advance(seconds=2)
    await engine.queues.reap(SHOP)


async def _begun(engine: Engine) -> None:
    await engine.fail(await claimed(engine, SHOP, "failed"), "TimeoutError: slow")
    waits = Listed((seconds(1), minutes(5)))
    await engine.fail(await claimed(engine, SHOP, "failed-listed", retry=waits), "again")
    await engine.release(await claimed(engine, SHOP, "released"), delay=minutes(5))
    await claimed(engine, SHOP, "leased")
    await engine.progress(await claimed(engine, SHOP, "leased-noted"), b"half")
    await engine.renew(await claimed(engine, SHOP, "leased-renewed"), hours(2))
    headers = {"handler": "bill", "traceparent": f"00-{1:032x}-{1:016x}-01"}
    await claimed(engine, SHOP, "leased-named", headers=headers, lease=hours(3))
    await claimed(engine, SHOP, "leased-own", retry=Exponential(first=seconds(2)), max_attempts=9)
    lease = await claimed(engine, SHOP, "leased-cancelled")
    await engine.cancel(lease.job)


async def _lanes(engine: Engine) -> None:
    """A lane whose head runs, one whose head is ready, one whose head has failed."""
    await claimed(engine, SHOP, "u1-a", lane="u1")
    await engine.fail(await claimed(engine, SHOP, "u3-a", lane="u3"), "it blocks its lane")
    jobs = {"u1": ["u1-b", "u1-c"], "u2": ["u2-a", "u2-b"], "u3": ["u3-b"]}
    for lane, ids in jobs.items():
        await engine.submit_many(SHOP, [new_job(id.encode(), id=id, lane=lane) for id in ids])


async def _waiting(engine: Engine, clock: ManualClock) -> None:
    await claimed(engine, SHOP, "silent-once", lease=seconds(1))
    clock.advance(seconds=2)
    await engine.queues.reap(SHOP)
    await engine.submit(SHOP, b"later", id="delayed", delay=minutes(30))
    due = datetime(2026, 1, 1, 1, tzinfo=UTC)
    await engine.submit(SHOP, b"at one", id="due", due=due, lane="u4")
    await engine.submit(SHOP, b"low", id="ready-low", priority=LOW)
    await engine.submit(SHOP, bytes(range(256)), id="ready-binary")
    await engine.submit(SHOP, b"odd", id=ODD_ID, lane="{ü}:2")
    await engine.submit(SHOP, b"named", id="ready-named", headers={"handler": "bill"})
    await engine.submit_many(SHOP, [new_job(b"one of a call", id="of-a-call")], call=CALL)


async def _other_queues(engine: Engine) -> None:
    for queue, policy in ((PARKED, LanePolicy.PARK), (SKIPPING, LanePolicy.SKIP)):
        await engine.queues.configure(queue, QueueOptions(lanes=policy, retry=Fixed(minutes(1))))
    await engine.bury(await claimed(engine, PARKED, "p1-a", lane="p1"), "it parks its lane")
    await engine.bury(await claimed(engine, PARKED, "p2-a", lane="p2"), "so does this")
    await engine.fail(await claimed(engine, SKIPPING, "s1-a", lane="s1"), "skipped meanwhile")
    for queue, id in ((PARKED, "p1-b"), (PARKED, "p1-c"), (PARKED, "p2-b"), (SKIPPING, "s1-b")):
        await engine.submit(queue, id.encode(), id=id, lane=id[:2])
    for id in ("first", "second"):
        await engine.submit(PAUSED, id.encode(), id=id)
    await engine.queues.pause(PAUSED)
    await engine.queues.configure(FULL, QueueOptions(max_length=1, events=EventPolicy.NONE))
    await engine.submit(FULL, b"the only one", id="only")
    seen, fired = "seen", "fired"
    for name in (seen, fired):
        await engine.schedules.fire_due(
            NIGHTLY, name, [], after=None, upto=FIRED, about="every second"
        )
    job = new_job(b"null", id="fired-1", headers={"handler": fired})
    upto = FIRED + seconds(1)
    await engine.schedules.fire_due(
        NIGHTLY, fired, [job], after=FIRED, upto=upto, about="every second"
    )
    await engine.publish(STREAM, [{"event": "kept", "n": "1"}], cap=100)


async def _applications(engine: Engine) -> None:
    messages = MessageQueue(engine)
    for user, id in (("ann", "m1"), ("ann", "m2"), ("ann", "m3"), ("bob", "m4"), ("bob", "m5")):
        await messages.enqueue(user, id, f"hello from {id}")
    await messages.dequeue("ann")
    await messages.dequeue("bob")
    await messages.mark_complete("bob", "m4", "an answer")
    await submit_sentry(engine, "m2")
    await submit_delivery(engine, "m4")
    tasks = ReviewQueue(engine)
    tasks.worker = "anna"  # without a name it would be named after the machine
    for task, priority in (("held", 90), ("later", 80), ("normal", 50), ("urgent", 100)):
        await tasks.enqueue(task, priority)
        if task in ("held", "later"):
            await tasks.dequeue()
    await tasks.requeue_with_delay("later", 600)
