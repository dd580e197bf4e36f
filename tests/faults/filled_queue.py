"""A queue with jobs in every state, inside and outside of lanes, on which `script_calls` are made.

Some jobs have generated ids (they are not `named`); the ids are the same in each run, so that runs
can be compared.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tests.queue_numbers import changed
from towpath.clock import ManualClock, hours, minutes
from towpath.engine.engine import Engine
from towpath.engine.keys import keys_of
from towpath.engine.model import JobRef, Lease, NewJob, job_ref, new_job
from towpath.engine.numbers import FIELD_OF
from towpath.engine.options import LanePolicy, QueueOptions
from towpath.engine.retry import Fixed
from towpath.engine.script import Scripts
from towpath.ids import job_id, queue_name

QUEUE = "filled"
TAG = f"{{{QUEUE}}}:".encode()
WORKER = "w1"
SELECTORS = ("octo/cat|dev", "octo/cat|review")
DECLARED, KEPT = "nightly", "hourly"
FIRST_SEEN = ManualClock().now
"""The declared schedule's last firing, and when the queue is filled."""


class Plain(Enum):
    """A queue with plain jobs only, and whether they are kept when they are done."""

    GONE = "gone"
    KEPT = "kept"
    UNSEEN = "unseen"
    """As GONE, and nobody follows the queue."""


@dataclass
class FilledQueue:
    """One queue with leases that are held, leases that have ended, and jobs in every state."""

    engine: Engine
    queue: str = QUEUE
    held: dict[str, Lease] = field(default_factory=dict[str, Lease])
    """Live leases by id."""

    def ref(self, id: str) -> JobRef:
        return job_ref(self.queue, id)


def options(policy: LanePolicy) -> QueueOptions:
    """Ids are remembered so briefly that `done-over` can be submitted anew."""
    return QueueOptions(
        max_attempts=3,
        lanes=policy,
        keep=hours(9),
        retry=Fixed(minutes(5)),
        remember=minutes(15),
    )


@asynccontextmanager
async def filled_queue_on(
    url: str, policy: LanePolicy | Plain, scripts: Scripts | None = None
) -> AsyncGenerator[FilledQueue]:
    """A filled queue on an empty Redis, with an engine whose clock stands still."""
    clock = ManualClock()
    async with Engine(url, clock=clock, scripts=scripts) as engine:
        filled = FilledQueue(engine)
        await prepare(filled, policy)
        clock.advance(MEANWHILE)
        yield filled


MEANWHILE = hours(1)
"""What passes before the calls begin: some leases, delays and retentions end in it."""


async def prepare(filled: FilledQueue, policy: LanePolicy | Plain) -> None:
    if isinstance(policy, Plain):
        await _prepare_plain(filled, policy)
    else:
        await _prepare_all_kinds(filled, policy)
    # As if somebody had claimed when the calls begin: otherwise a claim would trim first, and the
    # first call of a minute would read more keys than its work needs (tests/spec covers that).
    begins = int((FIRST_SEEN + MEANWHILE).timestamp() * 1000)
    trimmed = {"trimmed_at": begins} if isinstance(policy, Plain) else {}
    unseen = {"watched": 0} if policy is Plain.UNSEEN else {}
    meta = keys_of(queue_name(filled.queue)).meta
    command = filled.engine._store.command  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- no verb does just that
    stored = await command("HGET", meta, FIELD_OF["minute"])
    await command("HSET", meta, *changed(stored, minute=begins, **trimmed, **unseen))


async def _prepare_all_kinds(filled: FilledQueue, policy: LanePolicy) -> None:
    await filled.engine.queues.configure(filled.queue, options(policy))
    await _hold(filled)
    await _leave_to_be_reaped(filled)
    await _end_some(filled)
    await _let_some_wait(filled)
    await _select(filled)
    await filled.engine.schedules.fire_due(filled.queue, DECLARED, [], after=None, upto=FIRST_SEEN)
    await schedule(filled, KEPT, "", "v1")


async def _prepare_plain(filled: FilledQueue, policy: Plain) -> None:
    """Fills the queue with plain jobs only, none of them delayed, so scripts go the short way.
    Every second payload is large.
    """
    if policy is Plain.KEPT:
        await filled.engine.queues.configure(filled.queue, QueueOptions(keep=hours(9)))
    payloads = [b"plain", b"plain" * 1000] * 2
    jobs = [NewJob(job_id(f"plain-{i}"), payload) for i, payload in enumerate(payloads)]
    await _submit(filled, *jobs)
    leases = await filled.engine.claim(filled.queue, worker=WORKER, lease=hours(5), count=2)
    filled.held = {lease.id: lease for lease in leases}


async def _submit(filled: FilledQueue, *jobs: NewJob) -> None:
    await filled.engine.submit_many(filled.queue, jobs)


async def _claim(filled: FilledQueue, count: int) -> list[Lease]:
    leases = await filled.engine.claim(filled.queue, worker=WORKER, lease=minutes(30), count=count)
    assert len(leases) == count
    return leases


async def _hold(filled: FilledQueue) -> None:
    """Claims jobs of every kind; their leases are still held when the calls begin."""
    await _submit(
        filled,
        new_job(b"plain", id="held-plain"),
        new_job(b"lane", id="held-lane", lane="held", priority=90, lease=hours(5)),
        new_job(b"next", id="held-lane-next", lane="held"),
        new_job(b"gone", id="held-gone", keep=minutes(0), lease=hours(5)),
        new_job(b"stop", id="held-stop", lane="stop", lease=hours(5)),
        new_job(b"next", id="held-stop-next", lane="stop", priority=10),
        new_job(b"last", id="held-last", max_attempts=1, lease=hours(5)),
        NewJob(job_id("held-free"), b"free", {"lane": "free"}),
    )
    for lease in await _claim(filled, 6):
        filled.held[lease.id] = await filled.engine.renew(lease, hours(5))
    await filled.engine.cancel(filled.ref("held-stop"))


async def _leave_to_be_reaped(filled: FilledQueue) -> None:
    await _submit(
        filled,
        new_job(b"1", id="silent-plain"),
        new_job(b"2", id="silent-lane", lane="silent"),
        new_job(b"3", id="silent-lane-next", lane="silent"),
        new_job(b"4", id="silent-last", max_attempts=1),
        new_job(b"5", id="silent-stop"),
    )
    await _claim(filled, 4)
    await filled.engine.cancel(filled.ref("silent-stop"))


async def _end_some(filled: FilledQueue) -> None:
    await _submit(
        filled,
        new_job(b"1", id="done-kept", keep=hours(9)),
        new_job(b"2", id="done-over", keep=minutes(30)),
        new_job(b"3", id="dead-plain"),
        new_job(b"4", id="dead-lane", lane="dead"),
        new_job(b"5", id="dead-lane-next", lane="dead"),
    )
    for lease in await _claim(filled, 4):
        if lease.id.startswith("done"):
            await filled.engine.complete(lease, b"result")
        else:
            await filled.engine.bury(lease, "no good")
    # With `park` the lane waits for its dead head; with the other policies it has gone on.
    for lease in await filled.engine.claim(
        filled.queue, worker=WORKER, lease=hours(5), lane="dead"
    ):
        filled.held[lease.id] = lease


async def _let_some_wait(filled: FilledQueue) -> None:
    await _submit(
        filled,
        new_job(b"1", id="due", delay=minutes(10)),
        new_job(b"2", id="due-lane", lane="due", delay=minutes(10), priority=70),
        new_job(b"3", id="due-lane-next", lane="due"),
        new_job(b"4", id="later", delay=hours(2)),
        new_job(b"5", id="ready", priority=30),
        NewJob(job_id("unnamed-ready"), b"6"),
        new_job(b"7", id="ready-lane", lane="ready"),
        new_job(b"8", id="ready-lane-next", lane="ready"),
        new_job(b"9", id="ready-lane-third", lane="ready"),
    )


async def _select(filled: FilledQueue) -> None:
    """Submits jobs with selectors: held under a limit, expired under a limit, ready, and
    delayed.
    """
    await _submit(
        filled,
        new_job(b"1", id="held-selected", selector=SELECTORS[0], lease=hours(5)),
        new_job(b"2", id="silent-selected", selector=SELECTORS[0]),
        new_job(b"3", id="ready-selected", selector=SELECTORS[0]),
        new_job(b"4", id="due-selected", selector=SELECTORS[1], delay=minutes(10)),
        new_job(b"5", id="lane-selected", selector=SELECTORS[1], lane="selected"),
    )
    leases = await filled.engine.claim(
        filled.queue, worker=WORKER, lease=minutes(30), count=2, selectors=SELECTORS, max_held=2
    )
    filled.held["held-selected"] = next(lease for lease in leases if lease.id == "held-selected")


async def schedule(filled: FilledQueue, name: str, over: str, version: str) -> None:
    """Does what `engine.schedules.set` does, but with the same versions each time."""
    plan, anew = '{"every":3600000}', int(bool(over))
    item = [name, over, version, "every 1:00:00", plan, b"payload", anew, 1000]
    await write(filled, "schedule", item)


async def write(filled: FilledQueue, verb: str, item: list[Any]) -> None:
    store = filled.engine._store  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- the script alone
    answer = await store.write(verb, queue_name(filled.queue), lambda _: item)
    assert answer[0] in {b"made", b"replaced", b"deleted"}, answer
