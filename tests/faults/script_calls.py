"""For each writing script, a call on a filled queue that touches much of its contents."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.faults.filled_queue import (
    DECLARED,
    FIRST_SEEN,
    KEPT,
    SELECTORS,
    WORKER,
    FilledQueue,
    Plain,
    options,
    schedule,
    write,
)
from towpath.clock import ZERO, hours, minutes
from towpath.engine.model import Complete, Fail, NewJob, Release, Renew, new_job
from towpath.engine.options import LanePolicy
from towpath.engine.retry import Fixed
from towpath.ids import job_id


@dataclass(frozen=True)
class Case:
    """A call of one script; *policy* is the queue's for lanes; Plain = plain jobs only."""

    name: str
    script: str
    call: Callable[[FilledQueue], Awaitable[object]]
    policy: LanePolicy | Plain = LanePolicy.BLOCK

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
    """Replaces jobs in every state but leased, inside and outside of lanes; one of them twice."""
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
    """Fires a schedule. A repeat of the firing is refused, so each call on a filled queue is its
    first.
    """
    fire, upto = filled.engine.schedules.fire_due, FIRST_SEEN + minutes(30)
    await fire(filled.queue, DECLARED, jobs, after=FIRST_SEEN, upto=upto)


async def _fire_kept(filled: FilledQueue) -> None:
    fire, jobs = filled.engine.schedules.fire_due, [new_job(b"", id="of-a-schedule")]
    upto = FIRST_SEEN + minutes(30)
    await fire(filled.queue, KEPT, jobs, after=FIRST_SEEN, upto=upto, version="v1")


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
    policy: LanePolicy | Plain = LanePolicy.BLOCK,
) -> Case:
    return Case(name, name.partition(" ")[0], call, policy)


async def _exchange_plain(filled: FilledQueue) -> None:
    results = (b"", b"result")
    settlements = [
        Complete(lease, result) for lease, result in zip(filled.held.values(), results, strict=True)
    ]
    await filled.engine.exchange(filled.queue, settlements, worker="w2", lease=minutes(30), count=1)


async def _claim_selected(filled: FilledQueue) -> None:
    """Claims as the worker whose lease has ended meanwhile; that lease no longer counts."""
    await filled.engine.claim(
        filled.queue, worker=WORKER, lease=minutes(30), count=9, selectors=SELECTORS, max_held=3
    )


def _plain_jobs() -> list[NewJob]:
    return [NewJob(job_id(f"new-{i}"), b"plain") for i in range(2)]


async def _submit_large(filled: FilledQueue) -> None:
    await filled.engine.submit_many(filled.queue, [NewJob(job_id("large"), b"x" * 1000)])


SKIP, PARK, PLAIN, KEPT_PLAIN = LanePolicy.SKIP, LanePolicy.PARK, Plain.GONE, Plain.KEPT

CASES = [
    _case("submit", _submit_all_kinds),
    _case(
        "submit plain", lambda filled: filled.engine.submit_many(filled.queue, _plain_jobs()), PLAIN
    ),
    _case(
        "submit alone",
        lambda filled: filled.engine.submit_many(filled.queue, _plain_jobs()[:1]),
        Plain.UNSEEN,
    ),
    _case("submit a large one alone", _submit_large, Plain.UNSEEN),
    _case(
        "claim",
        lambda filled: filled.engine.claim(filled.queue, worker="w2", lease=minutes(30), count=50),
    ),
    _case(
        "claim one lane",
        lambda filled: filled.engine.claim(
            filled.queue, worker="w2", lease=minutes(30), lane="ready"
        ),
    ),
    _case("claim by selector", _claim_selected),
    _case(
        "claim plain",
        lambda filled: filled.engine.claim(filled.queue, worker="w2", lease=minutes(30), count=1),
        PLAIN,
    ),
    _case("renew", lambda filled: filled.engine.renew(filled.held["held-lane"], hours(9))),
    _case("progress", lambda filled: filled.engine.progress(filled.held["held-lane"], b"half")),
    _case("complete", lambda filled: filled.engine.complete(filled.held["held-lane"], b"result")),
    _case("complete plain", lambda filled: filled.engine.complete(filled.held["plain-0"]), PLAIN),
    _case(
        "complete kept plain",
        lambda filled: filled.engine.complete(filled.held["plain-1"], b"result"),
        KEPT_PLAIN,
    ),
    _case("complete unkept", lambda filled: filled.engine.complete(filled.held["held-gone"])),
    _case("complete unnamed", lambda filled: filled.engine.complete(filled.held["held-free"])),
    _case("fail", lambda filled: filled.engine.fail(filled.held["held-lane"], "again")),
    _case(
        "fail and skip", lambda filled: filled.engine.fail(filled.held["held-lane"], "again"), SKIP
    ),
    _case("fail at last", lambda filled: filled.engine.fail(filled.held["held-last"], "no more")),
    _case(
        "fail by order",
        lambda filled: filled.engine.bury(filled.held["held-lane"], "no good"),
        PARK,
    ),
    _case(
        "fail when asked to stop",
        lambda filled: filled.engine.fail(filled.held["held-stop"], "stopped"),
    ),
    _case("release", lambda filled: filled.engine.release(filled.held["held-lane"])),
    _case("release selected", lambda filled: filled.engine.release(filled.held["held-selected"])),
    _case(
        "release for later",
        lambda filled: filled.engine.release(filled.held["held-lane"], delay=minutes(1)),
    ),
    _case(
        "release unhandled",
        lambda filled: filled.engine.release(
            filled.held["held-lane"], delay=minutes(1), unhandled="HandlerNotFound"
        ),
    ),
    _case(
        "release when asked to stop", lambda filled: filled.engine.release(filled.held["held-stop"])
    ),
    _case("follow", lambda filled: filled.engine.events.newest(filled.queue)),
    _case("cancel", lambda filled: filled.engine.cancel(filled.ref("ready-lane"))),
    _case("cancel delayed", lambda filled: filled.engine.cancel(filled.ref("later"))),
    _case("cancel waiting", lambda filled: filled.engine.cancel(filled.ref("ready-lane-next"))),
    _case("cancel leased", lambda filled: filled.engine.cancel(filled.ref("held-lane"))),
    _case("move", lambda filled: filled.engine.move(filled.ref("ready-lane"), delay=minutes(1))),
    _case("move to now", lambda filled: filled.engine.move(filled.ref("later"), delay=ZERO)),
    _case(
        "move waiting",
        lambda filled: filled.engine.move(filled.ref("ready-lane-next"), delay=hours(1)),
    ),
    _case("move many", lambda filled: filled.engine.move_many(filled.queue, _MOVES)),
    _case("set", lambda filled: filled.engine.set_many(filled.queue, _all_kinds())),
    _case("set anew", lambda filled: filled.engine.set_many(filled.queue, _replacements())),
    _case("set a parked lane's head", lambda filled: _set(filled, "dead-lane"), PARK),
    _case("set plain", lambda filled: _set(filled, "plain-3"), PLAIN),
    _case("exchange", _exchange),
    _case("exchange plain", _exchange_plain, PLAIN),
    _case("exchange kept plain", _exchange_plain, KEPT_PLAIN),
    _case("exchange and skip", _exchange, SKIP),
    _case("exchange and park", _exchange, PARK),
    _case("promote", lambda filled: filled.engine.queues.promote(filled.queue)),
    _case("reap", lambda filled: filled.engine.queues.reap(filled.queue)),
    _case("trim", lambda filled: filled.engine.queues.trim(filled.queue)),
    _case("retry", lambda filled: filled.engine.retry(filled.ref("dead-plain"))),
    _case("retry a parked lane", lambda filled: filled.engine.retry(filled.ref("dead-lane")), PARK),
    _case("retry behind its lane", lambda filled: filled.engine.retry(filled.ref("dead-lane"))),
    _case("delete", lambda filled: filled.engine.delete(filled.ref("done-kept"))),
    _case(
        "delete a parked lane's head",
        lambda filled: filled.engine.delete(filled.ref("dead-lane")),
        PARK,
    ),
    _case("drop", lambda filled: filled.engine.drop(filled.queue, "dead"), PARK),
    _case("pause", lambda filled: filled.engine.queues.pause(filled.queue)),
    _case("resume", lambda filled: filled.engine.queues.resume(filled.queue)),
    _case(
        "incarnation", lambda filled: filled.engine.queues.incarnation(filled.queue, floor=2**52)
    ),
    _case("fire", lambda filled: _fire(filled, _all_kinds())),
    _case("fire nothing", lambda filled: _fire(filled, [])),
    _case("fire a kept schedule", _fire_kept),
    _case("schedule", lambda filled: schedule(filled, "new", "", "v2")),
    _case("schedule another in its place", lambda filled: schedule(filled, KEPT, "v1", "v2")),
    _case("delete_schedule", lambda filled: write(filled, "delete_schedule", [KEPT, "v1", "v2"])),
    _case(
        "delete_declared",
        lambda filled: filled.engine.schedules.delete_declared(filled.queue, DECLARED),
    ),
    _case(
        "configure", lambda filled: filled.engine.queues.reconfigure(filled.queue, options(SKIP))
    ),
]
"""At least one call of every writing script; a test sees to that."""
