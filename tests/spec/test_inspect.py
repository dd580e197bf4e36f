"""Questions about jobs and queues: state, job, position, estimate, explain, queues."""

import asyncio
import re
from itertools import pairwise
from typing import Any

import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import (
    LEASE,
    REVIEWS,
    buried,
    claim,
    leased,
    submit_ids,
)
from towpath.clock import ManualClock, hours, minutes, seconds
from towpath.engine.engine import Engine
from towpath.engine.explain import Position, Why
from towpath.engine.model import job_ref
from towpath.engine.options import LanePolicy, QueueOptions
from towpath.engine.states import State
from towpath.errors import JobNotFound
from towpath.ids import QueueName

NOBODY = job_ref(REVIEWS, "nobody")


class TestAJobThatDoesNotExist:
    async def test_has_the_state_gone(self, engine: Engine) -> None:
        assert await engine.inspect.state(NOBODY) is State.GONE

    async def test_cannot_be_looked_at(self, engine: Engine) -> None:
        for question in (engine.inspect.job, engine.inspect.position, engine.inspect.explain):
            with pytest.raises(JobNotFound) as refusal:
                await question(NOBODY)
            assert refusal.value.job == NOBODY


class TestAnInspection:
    async def test_changes_nothing(self, engine: Engine, deployment: Deployment) -> None:
        [ref] = await submit_ids(engine, "a")
        before = deployment.dump()
        await engine.inspect.job(ref)
        await engine.inspect.position(ref)
        await engine.inspect.explain(ref)
        await engine.inspect.counts(REVIEWS)
        await engine.inspect.list(REVIEWS, State.READY)
        await engine.queues.list()
        assert deployment.dump() == before

    async def test_of_a_new_queue_does_not_create_it(self, engine: Engine) -> None:
        assert (await engine.inspect.counts("new")).ready == 0
        assert (await engine.inspect.list("new", State.READY)).jobs == []
        assert await engine.queues.list() == {}


class TestACancelledInspection:
    async def test_leaves_its_reply_to_no_other_call(self, engine: Engine) -> None:
        """A reply that comes too late must not be taken for the reply to the next call."""
        refs = await submit_ids(engine, *(f"{n}" for n in range(20)))
        for gone, ref in pairwise(refs):
            question = asyncio.create_task(engine.inspect.job(gone))
            for _ in range(3):
                await asyncio.sleep(0)
            question.cancel()
            assert (await engine.inspect.job(ref)).ref == ref


class TestThePositionOfAJob:
    async def test_counts_the_ready_jobs_before_it(self, engine: Engine) -> None:
        refs = await submit_ids(engine, "a", "b", "c")
        positions = [await engine.inspect.position(ref) for ref in refs]
        assert positions == [Position(n, False, None) for n in range(3)]

    async def test_counts_jobs_of_a_higher_priority_that_came_later(self, engine: Engine) -> None:
        [ref] = await submit_ids(engine, "normal")
        await engine.submit(REVIEWS, b"", priority=90)
        position = await engine.inspect.position(ref)
        assert position is not None
        assert position.ahead == 1

    async def test_of_a_waiting_job_counts_those_before_it_in_its_lane(
        self, engine: Engine
    ) -> None:
        await submit_ids(engine, "other1", "other2", "other3")
        refs = await submit_ids(engine, "a", "b", "c", lane="octo")
        assert await engine.inspect.position(refs[1]) == Position(1, True, None)
        assert await engine.inspect.position(refs[2]) == Position(2, True, None)

    async def test_is_none_for_a_job_that_is_neither_ready_nor_waiting(
        self, engine: Engine
    ) -> None:
        running = await leased(engine, "leased")
        later = await engine.submit(REVIEWS, b"", delay=hours(1))
        dead = await buried(engine, "dead")
        for ref in (running.job, later.job, dead):
            assert await engine.inspect.position(ref) is None


class TestTheEstimateForAJob:
    async def serve(self, engine: Engine, clock: ManualClock, seconds_each: float) -> None:
        lease = await leased(engine, f"served-{clock.now}")
        clock.advance(seconds(seconds_each))
        await engine.complete(lease)

    async def test_is_unknown_while_nothing_was_completed(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        _, ref = await submit_ids(engine, "a", "b")
        assert await engine.inspect.position(ref) == Position(1, False, None)
        await engine.claim(REVIEWS, worker="anna", lease=hours(1))
        clock.advance(minutes(1))  # now all workers are busy
        assert await engine.inspect.position(ref) == Position(0, False, None)

    async def test_is_computed_from_service_times(self, engine: Engine, clock: ManualClock) -> None:
        await self.serve(engine, clock, 10)
        refs = await submit_ids(engine, "a", "b", "c")
        assert await engine.inspect.position(refs[0]) == Position(0, False, seconds(0))
        assert await engine.inspect.position(refs[2]) == Position(2, False, seconds(20))

    async def test_gets_shorter_with_more_workers(self, engine: Engine, clock: ManualClock) -> None:
        await self.serve(engine, clock, 10)
        refs = await submit_ids(engine, "x", "y", "a", "b", "c")
        await claim(engine, 2)
        assert await engine.inspect.position(refs[4]) == Position(2, False, seconds(10))

    async def test_counts_only_leases_that_have_not_ended(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await self.serve(engine, clock, 10)
        refs = await submit_ids(engine, "x", "y", "a", "b", "c")
        await engine.claim(REVIEWS, worker="lost", lease=seconds(1))
        await engine.claim(REVIEWS, worker="anna", lease=hours(1))
        clock.advance(seconds(2))
        assert await engine.inspect.position(refs[4]) == Position(2, False, seconds(20))

    async def test_with_busy_workers_includes_the_end_of_their_jobs(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await self.serve(engine, clock, 10)
        refs = await submit_ids(engine, "x", "y", "a")
        await engine.claim(REVIEWS, worker="anna", lease=hours(1), count=2)
        clock.advance(minutes(1))
        assert await engine.inspect.position(refs[2]) == Position(0, False, seconds(5))

    async def test_is_unknown_while_no_worker_claims(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await self.serve(engine, clock, 1)
        _, ready = await submit_ids(engine, "a", "b")
        _, waiting = await submit_ids(engine, "c", "d", lane="octo")
        await engine.queues.pause(REVIEWS)
        assert await engine.inspect.position(ready) == Position(1, False, None)
        assert await engine.inspect.position(waiting) == Position(1, True, None)
        await engine.queues.resume(REVIEWS)
        clock.advance(minutes(1))
        assert await engine.inspect.position(ready) == Position(1, False, None)

    async def test_of_a_lane_adds_the_jobs_one_after_the_other(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await self.serve(engine, clock, 10)
        await submit_ids(engine, "x", "y")
        refs = await submit_ids(engine, "a", "b", "c", lane="octo")
        await claim(engine, 3)
        assert await engine.inspect.position(refs[2]) == Position(2, True, seconds(20))

    async def test_follows_service_times_as_they_change(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await self.serve(engine, clock, 10)
        for _ in range(100):
            await self.serve(engine, clock, 1)
        _, ref = await submit_ids(engine, "a", "b")
        position = await engine.inspect.position(ref)
        assert position is not None
        assert position.wait is not None
        assert seconds(1) <= position.wait < seconds(1.2)


class TestExplaining:
    async def test_a_leased_job_names_its_worker_and_the_end_of_the_lease(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        lease = await leased(engine)
        explained = await engine.inspect.explain(lease.job)
        assert explained.why is Why.LEASED
        assert "anna" in explained.text
        assert str(clock.now + LEASE) in explained.text

    async def test_a_delayed_job_names_its_due_time(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        submitted = await engine.submit(REVIEWS, b"", delay=minutes(5))
        explained = await engine.inspect.explain(submitted.job)
        assert explained.why is Why.NOT_DUE
        assert str(clock.now + minutes(5)) in explained.text

    async def test_a_waiting_job_names_the_job_before_it(self, engine: Engine) -> None:
        _, _, last = await submit_ids(engine, "head", "b", "c", lane="octo")
        explained = await engine.inspect.explain(last)
        assert explained.why is Why.BEHIND_LANE
        assert "head" in explained.text
        assert "octo" in explained.text
        assert re.search(r"\b2\b", explained.text)

    async def test_a_parked_lane_names_its_dead_head(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(lanes=LanePolicy.PARK))
        await buried(engine, "head", lane="octo")
        [ref] = await submit_ids(engine, "b", lane="octo")
        explained = await engine.inspect.explain(ref)
        assert explained.why is Why.LANE_PARKED
        assert "head" in explained.text
        assert "octo" in explained.text

    async def test_a_paused_queue_says_since_when_it_is_paused(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        [ref] = await submit_ids(engine, "a")
        await engine.queues.pause(REVIEWS)
        explained = await engine.inspect.explain(ref)
        assert explained.why is Why.PAUSED
        assert str(clock.now) in explained.text

    async def test_a_queue_that_no_worker_ever_claimed_from_says_so(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        [ref] = await submit_ids(engine, "a")
        explained = await engine.inspect.explain(ref)
        assert explained.why is Why.NO_WORKER
        assert str(clock.now.year) not in explained.text  # there is no time of a last claim

    async def test_a_queue_that_workers_stopped_claiming_from_names_the_last_claim(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await claim(engine)
        asked = clock.now
        [ref] = await submit_ids(engine, "a")
        clock.advance(seconds(12))
        assert (await engine.inspect.explain(ref)).why is Why.NEXT
        clock.advance(seconds(1))
        explained = await engine.inspect.explain(ref)
        assert explained.why is Why.NO_WORKER
        assert str(asked) in explained.text

    async def test_busy_workers_do_not_count_as_missing(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """A worker without free slots does not claim; the leases that it holds show that it is
        there.
        """
        await leased(engine, "running", lease=hours(1))
        asked = clock.now
        [ref] = await submit_ids(engine, "a")
        clock.advance(minutes(5))
        explained = await engine.inspect.explain(ref)
        assert explained.why is Why.ALL_BUSY
        assert re.search(r"\b1\b", explained.text)
        assert str(asked) in explained.text

    async def test_an_ended_lease_is_not_shown_as_running(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        lease = await leased(engine, "lost")
        [ref] = await submit_ids(engine, "a")
        clock.advance(LEASE + seconds(13))
        assert (await engine.inspect.explain(ref)).why is Why.NO_WORKER
        explained = await engine.inspect.explain(lease.job)
        assert explained.why is Why.NO_WORKER
        assert "anna" in explained.text
        assert str(lease.expires_at) in explained.text

    async def test_an_ended_lease_waits_for_the_next_claim(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        lease = await leased(engine, "lost", lease=seconds(2))
        clock.advance(seconds(2))
        explained = await engine.inspect.explain(lease.job)
        assert explained.why is Why.NEXT
        assert str(clock.now) in explained.text

    async def test_an_overdue_job_says_since_when_and_what_delays_it(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        submitted = await engine.submit(REVIEWS, b"", delay=minutes(5))
        due = clock.now + minutes(5)
        await engine.queues.pause(REVIEWS)
        clock.advance(minutes(5) - seconds(1))
        assert (await engine.inspect.explain(submitted.job)).why is Why.NOT_DUE
        clock.advance(minutes(1))
        explained = await engine.inspect.explain(submitted.job)
        assert explained.why is Why.PAUSED
        assert str(due) in explained.text
        await engine.queues.resume(REVIEWS)
        explained = await engine.inspect.explain(submitted.job)
        assert explained.why is Why.NO_WORKER
        assert str(due) in explained.text

    async def test_a_waiting_job_says_what_delays_the_job_before_it(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        _, last = await submit_ids(engine, "head", "b", lane="octo")
        explained = await engine.inspect.explain(last)
        assert explained.why is Why.BEHIND_LANE
        assert str(clock.now) not in explained.text
        await engine.queues.pause(REVIEWS)
        assert str(clock.now) in (await engine.inspect.explain(last)).text

    async def test_a_ready_job_counts_the_jobs_before_it(self, engine: Engine) -> None:
        await claim(engine)
        _, _, last = await submit_ids(engine, "a", "b", "c")
        explained = await engine.inspect.explain(last)
        assert explained.why is Why.BEHIND_OTHERS
        assert "2" in explained.text

    async def test_the_first_ready_job_is_next(self, engine: Engine) -> None:
        await claim(engine)
        [ref] = await submit_ids(engine, "a")
        assert (await engine.inspect.explain(ref)).why is Why.NEXT

    async def test_an_ended_job_says_how_and_why(self, engine: Engine, clock: ManualClock) -> None:
        ref = await buried(engine)
        explained = await engine.inspect.explain(ref)
        assert explained.why is Why.ENDED
        assert "dead" in explained.text
        assert "broken" in explained.text
        assert str(clock.now) in explained.text

    def test_every_reason_has_a_test(self) -> None:
        assert set(Why) == {
            Why.LEASED, Why.NOT_DUE, Why.BEHIND_LANE, Why.LANE_PARKED, Why.PAUSED,
            Why.NO_WORKER, Why.ALL_BUSY, Why.BEHIND_OTHERS, Why.NEXT, Why.ENDED,
            Why.NO_HANDLER,  # tests/spec/test_unhandled.py
            Why.NOT_QUEUED,  # for jobs with a record only: tests/ledger/test_all_jobs.py
        }  # fmt: skip


class TestTheListOfQueues:
    async def test_has_every_used_queue_with_its_options(self, engine: Engine) -> None:
        options = QueueOptions(max_attempts=3, lanes=LanePolicy.PARK, keep=hours(2))
        await engine.queues.configure("uploads", options)
        await engine.submit(REVIEWS, b"")
        assert await engine.queues.list() == {
            QueueName("uploads"): options,
            QueueName(REVIEWS): QueueOptions(),
        }

    async def test_covers_several_masters_of_a_cluster(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        """Each queue is one slot, so several queues fill a cluster."""
        for n in range(30):
            await engine.submit(f"q{n}", b"")
        sizes: list[Any] = [master.ask("DBSIZE") for master in deployment.masters]
        assert all(size > 0 for size in sizes)
        assert len(await engine.queues.list()) == 30
