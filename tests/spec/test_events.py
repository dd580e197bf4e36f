"""Events: a capped stream per queue, following it live, and waiting for a job's end."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.amounts import deployments
from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import LEASE, REVIEWS, buried, claim_one, leased, submit_ids
from tests.waiting import HANGS, eventually_async
from towpath.clock import ManualClock, hours, milliseconds, seconds
from towpath.engine.engine import Engine
from towpath.engine.events import Event, FellBehind
from towpath.engine.keys import keys_of
from towpath.engine.model import new_job
from towpath.engine.options import EventPolicy, LanePolicy, QueueOptions
from towpath.engine.states import State
from towpath.errors import InvalidOption, JobNotFound, QueueHasNoEvents, StillOpen
from towpath.ids import QueueName

pytestmark = deployments

KEEPING = QueueOptions(keep=hours(1))
BURST = "for _ = 1, 25 do redis.call('XADD', KEYS[1], '*', 'submit', ARGV[1]) end"
"""As many entries as come while a process is busy, seen by one read."""


async def told(engine: Engine) -> list[tuple[str, str]]:
    return [(event.verb, event.job.id) for event in await engine.events.list(REVIEWS, size=1000)]


async def next_of(events: AsyncIterator[Event]) -> tuple[str, str]:
    async with asyncio.timeout(HANGS):
        event = await anext(events)
    return event.verb, event.job.id


async def read_up_to(events: AsyncIterator[Event], id: str) -> None:
    while (await next_of(events))[1] != id:
        pass


class TestTheEvents:
    async def test_describe_a_jobs_life_in_order(self, engine: Engine, clock: ManualClock) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(events=EventPolicy.ALL))
        await engine.submit(REVIEWS, b"", id="a", delay=seconds(5))
        clock.advance(seconds(5))
        lease = await claim_one(engine)
        await engine.progress(lease, b"50 %")
        await engine.release(lease)
        await engine.complete(await claim_one(engine))
        verbs = ["submit", "promote", "claim", "progress", "release", "claim", "complete"]
        assert await told(engine) == [(verb, "a") for verb in verbs]

    async def test_include_a_death_beside_its_cause(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_attempts=1, events=EventPolicy.ALL))
        await buried(engine, "a")
        await leased(engine, "b")
        clock.advance(LEASE)
        await engine.queues.reap(REVIEWS)
        assert [event for event in await told(engine) if event[0] not in {"submit", "claim"}] == [
            ("fail", "a"),
            ("dead", "a"),
            ("reap", "b"),
            ("dead", "b"),
        ]

    async def test_include_cancels_retries_and_deletes(self, engine: Engine) -> None:
        ref = await buried(engine, "a")
        await engine.retry(ref)
        await engine.cancel(ref)
        await engine.delete(await buried(engine, "b"))
        lease = await leased(engine, "c")
        await engine.cancel(lease.job)
        await engine.release(lease)
        unusual = [event for event in await told(engine) if event[0] not in {"submit", "claim"}]
        assert unusual == [
            ("fail", "a"), ("dead", "a"), ("retry", "a"), ("cancel", "a"),
            ("fail", "b"), ("dead", "b"), ("delete", "b"),
            ("cancel_requested", "c"), ("release", "c"), ("cancel", "c"),
        ]  # fmt: skip

    async def test_include_a_lane_that_was_dropped(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(lanes=LanePolicy.PARK))
        await buried(engine, "a", lane="octo")
        await engine.drop(REVIEWS, "octo")
        assert (await told(engine))[-1] == ("drop", "a")

    async def test_are_one_entry_per_call(self, engine: Engine, deployment: Deployment) -> None:
        await submit_ids(engine, "a", "b", "c")
        assert [id for _, id in await told(engine)] == ["a", "b", "c"]
        assert deployment.ask("XLEN", keys_of(QueueName(REVIEWS)).events) == 1

    async def test_are_read_from_a_cursor_on(self, engine: Engine) -> None:
        for id in ("a", "b", "c"):
            await submit_ids(engine, id)
        [first] = await engine.events.list(REVIEWS, size=1)
        rest = await engine.events.list(REVIEWS, after=first.cursor)
        assert [event.job.id for event in rest] == ["b", "c"]
        assert await engine.events.list(REVIEWS, after=rest[-1].cursor) == []

    async def test_are_capped(self, engine: Engine, deployment: Deployment) -> None:
        """The cap is approximate: Redis drops entries a hundred at a time."""
        await engine.queues.configure(REVIEWS, QueueOptions(events_most=10))
        lease = await leased(engine)
        for _ in range(300):
            await engine.progress(lease, b"")
        length = deployment.ask("XLEN", keys_of(QueueName(REVIEWS)).events)
        assert isinstance(length, int)
        assert 10 <= length <= 210

    async def test_are_not_written_for_a_queue_with_the_policy_none(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(events=EventPolicy.NONE))
        await engine.complete(await leased(engine))
        assert await engine.events.list(REVIEWS) == []
        assert deployment.ask("EXISTS", keys_of(QueueName(REVIEWS)).events) == 0

    async def test_of_an_unused_queue_are_empty(self, engine: Engine) -> None:
        assert await engine.events.list("new") == []

    @pytest.mark.parametrize(
        "cursor",
        ["", "a", "1", "1-", "-1", "1-2-3", "\N{ARABIC-INDIC DIGIT ONE}-0", f"{2**64}-0", 7],
    )
    async def test_after_an_invalid_cursor_are_refused(self, engine: Engine, cursor: Any) -> None:
        with pytest.raises(InvalidOption, match="after"):
            await engine.events.list(REVIEWS, after=cursor)


class TestFollowing:
    async def test_yields_what_happens_from_now_on(self, engine: Engine) -> None:
        await submit_ids(engine, "before")
        async with engine.events.follow(REVIEWS) as events:
            await submit_ids(engine, "a")
            assert await next_of(events) == ("submit", "a")
            await claim_one(engine)
            assert await next_of(events) == ("claim", "before")

    async def test_begins_with_the_first_event_of_a_new_queue(self, engine: Engine) -> None:
        async with engine.events.follow(REVIEWS) as events:
            await submit_ids(engine, "a", "b")
            assert await next_of(events) == ("submit", "a")
            assert await next_of(events) == ("submit", "b")

    async def test_sees_what_other_processes_do(self, engine: Engine, other_engine: Engine) -> None:
        async with engine.events.follow(REVIEWS) as events:
            await submit_ids(other_engine, "a")
            assert await next_of(events) == ("submit", "a")

    async def test_by_many_followers_is_one_blocking_read(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        async with engine.events.follow(REVIEWS) as one, engine.events.follow(REVIEWS) as two:
            await submit_ids(engine, "a")
            assert await next_of(one) == await next_of(two) == ("submit", "a")
            assert deployment.blocked() <= 1

    async def test_can_be_started_again(self, engine: Engine) -> None:
        for id in ("a", "b"):
            async with engine.events.follow(REVIEWS) as events:
                await submit_ids(engine, id)
                assert await next_of(events) == ("submit", id)

    async def test_leaves_no_blocking_read_behind(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        async with engine.events.follow(REVIEWS):
            pass

        async def nobody_waits() -> bool:
            return deployment.blocked() == 0

        await eventually_async(nobody_waits)

    async def test_is_refused_for_a_queue_without_events(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(events=EventPolicy.NONE))
        with pytest.raises(QueueHasNoEvents):
            async with engine.events.follow(REVIEWS):
                pass

    async def test_slowly_raises_fell_behind_and_goes_on(self, engine: Engine) -> None:
        async with engine.events.follow(REVIEWS) as slow, engine.events.follow(REVIEWS) as quick:
            for _ in range(21):
                await engine.submit_many(REVIEWS, [new_job(b"") for _ in range(500)])
                for _ in range(500):
                    await next_of(quick)
            with pytest.raises(FellBehind):
                await read_up_to(slow, "more than it can hold")
            await submit_ids(engine, "last")
            await read_up_to(slow, "last")

    async def test_raises_fell_behind_when_too_many_events_come_at_once(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        async with engine.events.follow(REVIEWS) as events:
            waiting = asyncio.create_task(next_of(events))
            await asyncio.sleep(0)
            ids = "\n".join(f"{n}" for n in range(500))
            deployment.ask("EVAL", BURST, 1, keys_of(QueueName(REVIEWS)).events, ids)
            with pytest.raises(FellBehind):
                await waiting
            await submit_ids(engine, "last")
            await read_up_to(events, "last")


class TestWaitingForAJobsEnd:
    async def test_returns_its_result(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, KEEPING)
        lease = await leased(engine)
        ended = asyncio.create_task(engine.events.ended(lease.job, within=seconds(HANGS)))
        await engine.progress(lease, b"50 %")
        await engine.complete(lease, b"result")
        job = await ended
        assert (job.state, job.result) == (State.DONE, b"result")

    async def test_returns_at_once_for_an_ended_job(self, engine: Engine) -> None:
        ref = await buried(engine)
        job = await engine.events.ended(ref, within=seconds(HANGS))
        assert (job.state, job.reason) == (State.DEAD, "broken")

    async def test_returns_a_cancelled_job(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, KEEPING)
        [ref] = await submit_ids(engine, "a")
        ended = asyncio.create_task(engine.events.ended(ref, within=seconds(HANGS)))
        await engine.cancel(ref)
        assert (await ended).state is State.CANCELLED

    async def test_ends_when_its_time_is_over(self, engine: Engine) -> None:
        [ref] = await submit_ids(engine, "a")
        with pytest.raises(StillOpen) as refusal:
            await engine.events.ended(ref, within=milliseconds(20))
        assert refusal.value.job == ref
        assert await engine.inspect.state(ref) is State.READY

    async def test_is_refused_for_a_job_that_is_gone(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.complete(lease)
        with pytest.raises(JobNotFound):
            await engine.events.ended(lease.job, within=seconds(HANGS))

    async def test_does_not_poll(self, engine: Engine, deployment: Deployment) -> None:
        """It reads the job when it begins, when following has begun, and when the time is over; and
        tells Redis once that it waits.
        """
        [ref] = await submit_ids(engine, "a")
        await engine.inspect.state(ref)
        before = deployment.calls("evalsha", "eval")
        with pytest.raises(StillOpen):
            await engine.events.ended(ref, within=milliseconds(50))
        assert deployment.calls("evalsha", "eval") - before <= 4

    async def test_is_refused_for_a_queue_without_events(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(events=EventPolicy.NONE))
        [ref] = await submit_ids(engine, "a")
        with pytest.raises(QueueHasNoEvents):
            await engine.events.ended(ref, within=seconds(HANGS))
