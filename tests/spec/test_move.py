"""move: change the due time of a job that is not leased."""

from datetime import datetime
from typing import Any

import pytest

from tests.model.mutants import Mutant
from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import (
    LEASE,
    REVIEWS,
    buried,
    claim,
    claim_one,
    ids_of,
    leased,
    submit_ids,
)
from tests.spec.test_waiting import blocked, ids_within_moments, waiting_claim
from tests.waiting import eventually_async
from towpath.clock import ZERO, ManualClock, days, hours, milliseconds, minutes, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import LARGEST_BATCH, Engine
from towpath.engine.model import HIGH, LOW, Call, job_ref, new_job
from towpath.engine.options import LanePolicy, QueueOptions
from towpath.engine.states import State
from towpath.errors import InvalidOption, JobNotFound, JobNotWaiting

KEEPING = QueueOptions(keep=hours(1))


class TestMovingADelayedJob:
    async def test_to_a_later_time_delays_it_until_then(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        job = (await engine.submit(REVIEWS, b"", delay=seconds(5))).job
        clock.advance(seconds(4))
        assert await engine.move(job, delay=seconds(10)) is State.DELAYED
        clock.advance(seconds(10) - milliseconds(1))
        assert await claim(engine) == []
        clock.advance(milliseconds(1))
        assert ids_of(await claim(engine)) == [job.id]

    async def test_to_an_earlier_time_makes_it_due_then(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        job = (await engine.submit(REVIEWS, b"", delay=hours(5))).job
        due = clock.now + seconds(3)
        assert await engine.move(job, due=due) is State.DELAYED
        assert (await engine.inspect.job(job)).due_at == due
        clock.advance(seconds(3))
        lease = await claim_one(engine)
        assert (lease.id, lease.due_at) == (job.id, due)

    @pytest.mark.parametrize("past", [ZERO, days(3)])
    async def test_to_the_past_makes_it_ready_behind_ready_jobs(
        self, engine: Engine, clock: ManualClock, past: Any
    ) -> None:
        job = (await engine.submit(REVIEWS, b"", id="late", delay=hours(5))).job
        await submit_ids(engine, "a", "b")
        assert await engine.move(job, due=clock.now - past) is State.READY
        await submit_ids(engine, "c")
        leases = await claim(engine, 9)
        assert ids_of(leases) == ["a", "b", "late", "c"]
        assert leases[2].due_at == clock.now, "how late it runs is counted from the move"

    async def test_keeps_its_options(self, engine: Engine, clock: ManualClock) -> None:
        said: Any = {"priority": 70, "headers": {"trace": "1"}, "max_attempts": 2}
        job = (await engine.submit(REVIEWS, b"payload", delay=hours(1), **said)).job
        before = await engine.inspect.job(job)
        clock.advance(minutes(1))
        await engine.move(job, delay=ZERO)
        lease = await claim_one(engine)
        assert (lease.payload, lease.submitted_at) == (b"payload", before.submitted_at)
        assert {name: getattr(lease, name) for name in said} == said

    async def test_that_waits_for_its_next_attempt_counts_no_attempt(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        lease = await leased(engine, "a")
        await engine.fail(lease, "503", delay=hours(1))
        assert await engine.move(lease.job, delay=seconds(1)) is State.DELAYED
        clock.advance(seconds(1))
        again = await claim_one(engine)
        assert (again.id, again.attempt, again.reason) == ("a", 2, "503")


class TestMovingAReadyJob:
    async def test_makes_it_delayed(self, engine: Engine, clock: ManualClock) -> None:
        a, _ = await submit_ids(engine, "a", "b")
        assert await engine.move(a, delay=seconds(5)) is State.DELAYED
        assert ids_of(await claim(engine, 9)) == ["b"]
        clock.advance(seconds(5))
        assert ids_of(await claim(engine, 9)) == ["a"]

    async def test_keeps_its_priority(self, engine: Engine, clock: ManualClock) -> None:
        high = (await engine.submit(REVIEWS, b"", id="high", priority=HIGH)).job
        await engine.move(high, delay=seconds(5))
        await engine.submit(REVIEWS, b"", id="low", priority=LOW)
        clock.advance(seconds(5))
        await engine.submit(REVIEWS, b"", id="normal")
        assert ids_of(await claim(engine, 9)) == ["high", "normal", "low"]

    async def test_to_the_past_keeps_its_place(
        self, engine: Engine, clock: ManualClock, deployment: Deployment
    ) -> None:
        a, _ = await submit_ids(engine, "a", "b")
        before = await engine.events.list(REVIEWS)
        assert await engine.move(a, due=clock.now) is State.READY
        assert await engine.events.list(REVIEWS) == before
        assert ids_of(await claim(engine, 9)) == ["a", "b"]

    async def test_delays_it_in_the_millisecond_in_which_it_falls_due(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """The first one wins: the claim has the job, or the move has delayed it."""
        job = (await engine.submit(REVIEWS, b"", delay=seconds(5))).job
        clock.advance(seconds(5))
        assert await engine.move(job, delay=seconds(1)) is State.DELAYED
        assert await claim(engine) == []
        clock.advance(seconds(1))
        assert ids_of(await claim(engine)) == [job.id]


class TestMovingAJobOfALane:
    async def test_at_the_head_holds_the_lane_until_then(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        head, _ = await submit_ids(engine, "a", "b", lane="octo")
        assert await engine.move(head, delay=seconds(5)) is State.DELAYED
        assert await claim(engine, 9) == []
        clock.advance(seconds(5))
        assert ids_of(await claim(engine, 9)) == ["a"]

    async def test_behind_the_head_takes_effect_when_it_becomes_the_head(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        _, second, _ = await submit_ids(engine, "a", "b", "c", lane="octo")
        assert await engine.move(second, delay=seconds(5)) is State.WAITING
        assert (await engine.inspect.job(second)).due_at == clock.now + seconds(5)
        await engine.complete(await claim_one(engine))
        assert await engine.inspect.state(second) is State.DELAYED
        assert await claim(engine, 9) == []
        clock.advance(seconds(5))
        assert ids_of(await claim(engine, 9)) == ["b"]

    async def test_is_ready_too_early_if_the_script_ignores_the_lane(
        self, server: EmbeddedServer
    ) -> None:
        """A planted fault that random programs find too rarely: the script does not check the
        lane.
        """
        fault = Mutant("no lane", ("move", "elseif take_lane(job) then", "else"))
        async with Engine(server.url, scripts=fault.scripts()) as engine:
            await engine.queues.configure(REVIEWS, QueueOptions(lanes=LanePolicy.SKIP))
            await submit_ids(engine, "a", "b", lane="octo")
            first = await claim_one(engine)
            await engine.fail(first, "no", delay=hours(1))
            assert await engine.move(first.job, delay=ZERO) is State.READY

    async def test_behind_the_head_to_the_past_removes_its_due_time(self, engine: Engine) -> None:
        await submit_ids(engine, "a", lane="octo")
        later = (await engine.submit(REVIEWS, b"", id="b", lane="octo", delay=hours(9))).job
        assert await engine.move(later, delay=ZERO) is State.WAITING
        await engine.complete(await claim_one(engine))
        assert ids_of(await claim(engine)) == ["b"]

    async def test_that_was_skipped_lets_it_wait_in_the_lane(self, engine: Engine) -> None:
        """With `skip`, it failed and comes back at its old place."""
        await engine.queues.configure(REVIEWS, QueueOptions(lanes=LanePolicy.SKIP))
        failed, *_ = await submit_ids(engine, "a", "b", "c", lane="octo")
        await engine.fail(await claim_one(engine), "503", delay=hours(1))
        head = await claim_one(engine)
        assert await engine.move(failed, delay=ZERO) is State.WAITING
        await engine.complete(head)
        assert ids_of(await claim(engine, 9)) == ["a"]


class TestMoving:
    async def test_wakes_a_waiting_claim(self, engine: Engine, deployment: Deployment) -> None:
        job = (await engine.submit(REVIEWS, b"", id="a", delay=hours(9))).job
        async with waiting_claim(engine, deployment) as waiting:
            await engine.move(job, delay=ZERO)
            assert await ids_within_moments(waiting) == ["a"]

    async def test_to_a_time_before_the_next_poll_wakes_waiting_claims(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        job = (await engine.submit(REVIEWS, b"", id="a", delay=hours(9))).job
        async with waiting_claim(engine, deployment) as waiting:
            before = deployment.calls("evalsha")
            await engine.move(job, delay=seconds(2))

            async def looked() -> bool:
                return deployment.calls("evalsha") - before >= 2

            await eventually_async(looked)
            await blocked(deployment)
            clock.advance(seconds(2))
            assert await ids_within_moments(waiting) == ["a"]

    async def test_writes_an_event(self, engine: Engine) -> None:
        [ref] = await submit_ids(engine, "a")
        await engine.move(ref, delay=seconds(5))
        assert [(event.verb, event.job) for event in await engine.events.list(REVIEWS)][1:] == [
            ("move", ref)
        ]
        assert (await engine.inspect.counts(REVIEWS)).totals["moved"] == 1

    async def test_goes_on_while_the_queue_is_paused_or_full(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_length=1))
        [ref] = await submit_ids(engine, "a")
        await engine.queues.pause(REVIEWS)
        assert await engine.move(ref, delay=seconds(5)) is State.DELAYED
        assert await engine.move(ref, delay=ZERO) is State.READY


class TestMovingMany:
    async def test_answers_for_each_job_in_order(self, engine: Engine, clock: ManualClock) -> None:
        await submit_ids(engine, "a", "b", "c")
        await leased(engine, "d")  # it comes last, so "a" is the one that is leased
        moves = {"c": clock.now + seconds(1), "a": seconds(1), "nobody": seconds(1), "b": ZERO}
        c, a, nobody, b = await engine.move_many(REVIEWS, moves)
        assert (c, b) == (State.DELAYED, State.READY)
        assert isinstance(a, JobNotWaiting)
        assert isinstance(nobody, JobNotFound)

    async def test_takes_more_jobs_than_one_step_holds(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        ids = [f"job-{n}" for n in range(LARGEST_BATCH + 1)]
        await submit_ids(engine, *ids)
        moves: dict[str, Any] = dict.fromkeys(ids, seconds(1))
        assert set(await engine.move_many(REVIEWS, moves)) == {State.DELAYED}
        assert (await engine.inspect.counts(REVIEWS)).delayed == len(ids)
        with pytest.raises(InvalidOption, match="call"):
            await engine.move_many(REVIEWS, moves, call=Call("me", 1))

    async def test_takes_the_head_of_a_lane_and_jobs_behind_it_in_one_step(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit_ids(engine, "a", "b", "c", lane="octo")
        moves = {"b": seconds(1), "a": seconds(2), "c": seconds(3)}
        states = await engine.move_many(REVIEWS, moves)
        assert states == [State.WAITING, State.DELAYED, State.WAITING]
        clock.advance(seconds(2))
        await engine.complete(await claim_one(engine))
        assert ids_of(await claim(engine)) == ["b"]

    async def test_of_none_does_nothing(self, engine: Engine) -> None:
        assert await engine.move_many(REVIEWS, {}) == []


class TestMovingIsRefused:
    async def test_for_a_job_that_does_not_exist(self, engine: Engine) -> None:
        with pytest.raises(JobNotFound):
            await engine.move(job_ref(REVIEWS, "nobody"), delay=seconds(1))

    async def test_for_a_job_that_is_gone(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.complete(lease)
        with pytest.raises(JobNotFound):
            await engine.move(lease.job, delay=seconds(1))

    async def test_for_a_leased_job(self, engine: Engine) -> None:
        lease = await leased(engine)
        with pytest.raises(JobNotWaiting) as refusal:
            await engine.move(lease.job, delay=seconds(1))
        assert refusal.value.state == "leased"
        await engine.complete(lease)

    async def test_for_a_job_that_was_asked_to_stop(self, engine: Engine) -> None:
        """It is leased until its worker settles it; then it is cancelled, whatever was moved."""
        await engine.queues.configure(REVIEWS, KEEPING)
        lease = await leased(engine)
        await engine.cancel(lease.job)
        with pytest.raises(JobNotWaiting) as refusal:
            await engine.move(lease.job, delay=seconds(1))
        assert refusal.value.state == "leased"
        await engine.release(lease)
        with pytest.raises(JobNotWaiting) as refusal:
            await engine.move(lease.job, delay=seconds(1))
        assert refusal.value.state == "cancelled"

    async def test_for_a_done_or_dead_job(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, KEEPING)
        done = await leased(engine, "done")
        await engine.complete(done)
        for state, ref in (("done", done.job), ("dead", await buried(engine, "dead"))):
            with pytest.raises(JobNotWaiting) as refusal:
                await engine.move(ref, delay=seconds(1))
            assert refusal.value.state == state

    @pytest.mark.parametrize(
        "when",
        [
            {},
            {"delay": seconds(1), "due": ManualClock().now},
            {"delay": -seconds(1)},
            {"delay": days(36_526)},
            {"delay": "5"},
            {"due": datetime(2026, 1, 1)},  # noqa: DTZ001 -- a time without a zone
            {"due": "2026-01-01"},
        ],
        ids=str,
    )
    async def test_for_an_invalid_time(self, engine: Engine, when: Any) -> None:
        with pytest.raises(InvalidOption):
            await engine.move(job_ref(REVIEWS, "a"), **when)


async def test_a_moved_job_is_claimed_once_and_ends(engine: Engine, clock: ManualClock) -> None:
    [ref] = await submit_ids(engine, "a")
    for delay in (seconds(9), ZERO, seconds(3), seconds(1)):
        await engine.move(ref, delay=delay)
    clock.advance(seconds(9))
    [lease] = await engine.claim(REVIEWS, worker="anna", lease=LEASE, count=9)
    await engine.complete(lease)
    counts = await engine.inspect.counts(REVIEWS)
    assert (counts.ready, counts.delayed, counts.leased) == (0, 0, 0)
    assert (await engine.submit_many(REVIEWS, [new_job(b"", id="a")]))[0]
