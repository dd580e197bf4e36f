"""A queue with everything in it, and for each writing script a call that meets much of it.

Some jobs have ids that no caller chose (not `named`), the same each time: runs are compared.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from towpath.clock import ZERO, ManualClock, hours, minutes
from towpath.engine.engine import Engine
from towpath.engine.keys import keys_of
from towpath.engine.model import (
    Complete,
    Fail,
    JobRef,
    Lease,
    NewJob,
    Release,
    Renew,
    job_ref,
    new_job,
)
from towpath.engine.options import LanePolicy, QueueOptions
from towpath.engine.retry import Fixed
from towpath.engine.script import Scripts
from towpath.ids import job_id, queue_name

QUEUE = "filled"
TAG = f"{{{QUEUE}}}:".encode()
WORKER = "w1"
SELECTORS = ("octo/cat|dev", "octo/cat|review")
RECURRING, KEPT = "nightly", "hourly"
FIRST_SEEN = ManualClock().now
"""The recurring work's last firing, and when the queue is filled."""


@dataclass
class FilledQueue:
    """One queue: leases that are held, leases that have ended, jobs in every state."""

    engine: Engine
    queue: str = QUEUE
    held: dict[str, Lease] = field(default_factory=dict[str, Lease])
    """Live leases by id."""

    def ref(self, id: str) -> JobRef:
        return job_ref(self.queue, id)


def options(policy: LanePolicy) -> QueueOptions:
    """Ids are remembered for so short that `done-over` can be submitted anew."""
    return QueueOptions(
        max_attempts=3,
        lanes=policy,
        keep=hours(9),
        retry=Fixed(minutes(5)),
        remember=minutes(15),
    )


@asynccontextmanager
async def filled_queue_on(
    url: str, policy: LanePolicy | None, scripts: Scripts | None = None
) -> AsyncGenerator[FilledQueue]:
    """A filled queue on an empty server, with an engine whose clock stands still."""
    clock = ManualClock()
    async with Engine(url, clock=clock, scripts=scripts) as engine:
        filled = FilledQueue(engine)
        await prepare(filled, policy)
        clock.advance(MEANWHILE)
        yield filled


MEANWHILE = hours(1)
"""What passes before the calls begin: some leases, delays and retentions end in it."""


async def prepare(filled: FilledQueue, policy: LanePolicy | None) -> None:
    await (_prepare_all_kinds(filled, policy) if policy else _prepare_plain(filled))
    # As if somebody had claimed when the calls begin: otherwise a claim would trim first; and the
    # first call of a minute looks at more keys than its work needs, which tests/spec has.
    begins = str(int((FIRST_SEEN + MEANWHILE).timestamp() * 1000))
    noted = ("minute", begins, *(() if policy else ("trimmed_at", begins)))
    meta = keys_of(queue_name(filled.queue)).meta
    await filled.engine._store.command("HSET", meta, *noted)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- no verb does just that


async def _prepare_all_kinds(filled: FilledQueue, policy: LanePolicy) -> None:
    await filled.engine.queues.configure(filled.queue, options(policy))
    await _hold(filled)
    await _leave_to_be_reaped(filled)
    await _end_some(filled)
    await _let_some_wait(filled)
    await _select(filled)
    await filled.engine.schedules.fire_due(filled.queue, RECURRING, [], after=None, upto=FIRST_SEEN)
    await _schedule(filled, KEPT, "", "v1")


async def _prepare_plain(filled: FilledQueue) -> None:
    """Nothing but plain jobs, and nothing due: scripts go the short way."""
    await _submit(filled, *(NewJob(job_id(f"plain-{i}"), b"plain") for i in range(4)))
    leases = await filled.engine.claim(filled.queue, worker=WORKER, lease=hours(5), count=2)
    filled.held = {it.id: it for it in leases}


async def _submit(filled: FilledQueue, *jobs: NewJob) -> None:
    await filled.engine.submit_many(filled.queue, jobs)


async def _claim(filled: FilledQueue, count: int) -> list[Lease]:
    leases = await filled.engine.claim(filled.queue, worker=WORKER, lease=minutes(30), count=count)
    assert len(leases) == count
    return leases


async def _hold(filled: FilledQueue) -> None:
    """Leases that are still held when the calls begin, of every kind of job."""
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
    # With `park` the lane waits for its dead head, otherwise it has gone on.
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
    """Jobs with selectors: held under a limit, silent under one, ready, and due."""
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
    filled.held["held-selected"] = next(it for it in leases if it.id == "held-selected")


# ── the calls ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Case:
    """A call of one script; *policy* is the queue's for its lanes, None = only plain jobs."""

    name: str
    script: str
    call: Callable[[FilledQueue], Awaitable[object]]
    policy: LanePolicy | None = LanePolicy.BLOCK

    def __str__(self) -> str:
        return self.name


def _all_kinds() -> list[NewJob]:
    return [
        NewJob(job_id("unnamed"), b"plain"),
        NewJob(job_id("unnamed-lane"), b"behind", {"lane": "ready", "priority": 99}),
        new_job(b"named", id="new"),
        new_job(b"named", id="new"),
        new_job(b"9", id="held-gone"),
        new_job(b"2", id="done-over", lane="fresh", keep=hours(1)),
        new_job(b"head", id="new-head", lane="new", max_attempts=1, retry=Fixed()),
        NewJob(job_id("unnamed-later"), b"later", {"lane": "new", "delay": 60_000}),
        new_job(b"later", id="new-later", delay=minutes(1), lease=minutes(1)),
        new_job(b"selected", id="new-selected", selector="octo/dog|dev"),
    ]


def _replacements() -> list[NewJob]:
    """For jobs in every state but leased, in their lanes and out of them; one of them twice."""
    return [
        new_job(b"head", id="ready-lane", lane="ready"),
        new_job(b"elsewhere", id="ready-lane-next", lane="held", delay=hours(1)),
        new_job(b"free", id="ready-lane-third"),
        new_job(b"later", id="ready", delay=minutes(1), headers={"trace": "1"}),
        new_job(b"now", id="later"),
        new_job(b"anew", id="done-kept", priority=90),
        new_job(b"anew", id="dead-plain", lane="ready"),
        new_job(b"twice", id="later", lane="ready"),
        new_job(b"elsewhere", id="ready-selected", selector=SELECTORS[1]),
    ]


_MOVES = {
    "ready": minutes(1), "ready-lane": hours(1), "ready-lane-next": minutes(1), "due": hours(1),
    "later": ZERO, "due-lane": ZERO,
}  # fmt: skip


async def _set(filled: FilledQueue, id: str) -> None:
    await filled.engine.set(filled.queue, b"anew", id=id)


async def _submit_all_kinds(filled: FilledQueue) -> None:
    await filled.engine.submit_many(filled.queue, _all_kinds())


async def _fire(filled: FilledQueue, jobs: list[NewJob]) -> None:
    """A repeat of the firing is refused, so each call on a filled queue is its first."""
    fire, upto = filled.engine.schedules.fire_due, FIRST_SEEN + minutes(30)
    await fire(filled.queue, RECURRING, jobs, after=FIRST_SEEN, upto=upto)


async def _fire_kept(filled: FilledQueue) -> None:
    fire, jobs = filled.engine.schedules.fire_due, [new_job(b"", id="of-a-schedule")]
    upto = FIRST_SEEN + minutes(30)
    await fire(filled.queue, KEPT, jobs, after=FIRST_SEEN, upto=upto, version="v1")


async def _schedule(filled: FilledQueue, name: str, over: str, version: str) -> None:
    """As `engine.schedules.set` does, but that versions are the same each time."""
    plan, anew = '{"every":3600000}', int(bool(over))
    item = [name, over, version, "every 1:00:00", plan, b"payload", anew, 1000]
    await _write(filled, "schedule", item)


async def _write(filled: FilledQueue, verb: str, item: list[Any]) -> None:
    store = filled.engine._store  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- the script alone
    answer = await store.write(verb, queue_name(filled.queue), lambda _: item)
    assert answer[0] in {b"made", b"replaced", b"removed"}, answer


async def _exchange(filled: FilledQueue) -> None:
    held = filled.held
    settlements = [
        Complete(held["held-lane"], b"result"),
        Complete(held["held-gone"]),
        Fail(held["held-last"], "no attempt left"),
        Fail(held["held-plain"], "again"),
        Release(held["held-stop"]),
        Renew(held["held-free"], minutes(30)),
        Complete(held["held-selected"]),
    ]
    await filled.engine.exchange(
        filled.queue, settlements, worker="w2", lease=minutes(30), count=50
    )


def _case(
    name: str,
    call: Callable[[FilledQueue], Awaitable[object]],
    policy: LanePolicy | None = LanePolicy.BLOCK,
) -> Case:
    return Case(name, name.partition(" ")[0], call, policy)


async def _exchange_plain(filled: FilledQueue) -> None:
    settlements = [Complete(it) for it in filled.held.values()]
    await filled.engine.exchange(filled.queue, settlements, worker="w2", lease=minutes(30), count=1)


async def _claim_selected(filled: FilledQueue) -> None:
    """As the worker whose lease has ended meanwhile: that one counts no longer."""
    await filled.engine.claim(
        filled.queue, worker=WORKER, lease=minutes(30), count=9, selectors=SELECTORS, max_held=3
    )


def _plain_jobs() -> list[NewJob]:
    return [NewJob(job_id(f"new-{i}"), b"plain") for i in range(2)]


SKIP, PARK, PLAIN = LanePolicy.SKIP, LanePolicy.PARK, None

CASES = [
    _case("submit", _submit_all_kinds),
    _case("submit plain", lambda it: it.engine.submit_many(it.queue, _plain_jobs()), PLAIN),
    _case(
        "claim",
        lambda it: it.engine.claim(it.queue, worker="w2", lease=minutes(30), count=50),
    ),
    _case(
        "claim one lane",
        lambda it: it.engine.claim(it.queue, worker="w2", lease=minutes(30), lane="ready"),
    ),
    _case("claim by selector", _claim_selected),
    _case(
        "claim plain",
        lambda it: it.engine.claim(it.queue, worker="w2", lease=minutes(30), count=1),
        PLAIN,
    ),
    _case("renew", lambda it: it.engine.renew(it.held["held-lane"], hours(9))),
    _case("progress", lambda it: it.engine.progress(it.held["held-lane"], b"half")),
    _case("complete", lambda it: it.engine.complete(it.held["held-lane"], b"result")),
    _case("complete plain", lambda it: it.engine.complete(it.held["plain-0"]), PLAIN),
    _case("complete unkept", lambda it: it.engine.complete(it.held["held-gone"])),
    _case("complete unnamed", lambda it: it.engine.complete(it.held["held-free"])),
    _case("fail", lambda it: it.engine.fail(it.held["held-lane"], "again")),
    _case("fail and skip", lambda it: it.engine.fail(it.held["held-lane"], "again"), SKIP),
    _case("fail at last", lambda it: it.engine.fail(it.held["held-last"], "no more")),
    _case("fail by order", lambda it: it.engine.bury(it.held["held-lane"], "no good"), PARK),
    _case("fail when asked to stop", lambda it: it.engine.fail(it.held["held-stop"], "stopped")),
    _case("release", lambda it: it.engine.release(it.held["held-lane"])),
    _case("release selected", lambda it: it.engine.release(it.held["held-selected"])),
    _case(
        "release for later", lambda it: it.engine.release(it.held["held-lane"], delay=minutes(1))
    ),
    _case("release when asked to stop", lambda it: it.engine.release(it.held["held-stop"])),
    _case("cancel", lambda it: it.engine.cancel(it.ref("ready-lane"))),
    _case("cancel delayed", lambda it: it.engine.cancel(it.ref("later"))),
    _case("cancel waiting", lambda it: it.engine.cancel(it.ref("ready-lane-next"))),
    _case("cancel leased", lambda it: it.engine.cancel(it.ref("held-lane"))),
    _case("move", lambda it: it.engine.move(it.ref("ready-lane"), delay=minutes(1))),
    _case("move to now", lambda it: it.engine.move(it.ref("later"), delay=ZERO)),
    _case("move waiting", lambda it: it.engine.move(it.ref("ready-lane-next"), delay=hours(1))),
    _case("move many", lambda it: it.engine.move_many(it.queue, _MOVES)),
    _case("set", lambda it: it.engine.set_many(it.queue, _all_kinds())),
    _case("set anew", lambda it: it.engine.set_many(it.queue, _replacements())),
    _case("set a parked lane's head", lambda it: _set(it, "dead-lane"), PARK),
    _case("set plain", lambda it: _set(it, "plain-3"), PLAIN),
    _case("exchange", _exchange),
    _case("exchange plain", _exchange_plain, PLAIN),
    _case("exchange and skip", _exchange, SKIP),
    _case("exchange and park", _exchange, PARK),
    _case("promote", lambda it: it.engine.queues.promote(it.queue)),
    _case("reap", lambda it: it.engine.queues.reap(it.queue)),
    _case("trim", lambda it: it.engine.queues.trim(it.queue)),
    _case("retry", lambda it: it.engine.retry(it.ref("dead-plain"))),
    _case("retry a parked lane", lambda it: it.engine.retry(it.ref("dead-lane")), PARK),
    _case("retry behind its lane", lambda it: it.engine.retry(it.ref("dead-lane"))),
    _case("delete", lambda it: it.engine.delete(it.ref("done-kept"))),
    _case("delete a parked lane's head", lambda it: it.engine.delete(it.ref("dead-lane")), PARK),
    _case("drop", lambda it: it.engine.drop(it.queue, "dead"), PARK),
    _case("pause", lambda it: it.engine.queues.pause(it.queue)),
    _case("resume", lambda it: it.engine.queues.resume(it.queue)),
    _case("anchor", lambda it: it.engine.queues.anchor(it.queue, floor=2**52)),
    _case("fire", lambda it: _fire(it, _all_kinds())),
    _case("fire nothing", lambda it: _fire(it, [])),
    _case("fire a kept schedule", _fire_kept),
    _case("schedule", lambda it: _schedule(it, "new", "", "v2")),
    _case("schedule another in its place", lambda it: _schedule(it, KEPT, "v1", "v2")),
    _case("unschedule", lambda it: _write(it, "unschedule", [KEPT, "v1", "v2"])),
    _case("forget", lambda it: it.engine.schedules.delete_declared(it.queue, RECURRING)),
    _case("configure", lambda it: it.engine.queues.reconfigure(it.queue, options(SKIP))),
]
"""At least one call of every writing script; a test sees to that."""
