"""The kept data of a Redis: every job in it is found, understood and worked on."""

from typing import Any

import pytest

from tests.spec.deployment import Deployment
from tests.stored import facts as asked
from tests.stored.fill_redis import (
    CALL,
    FIRED,
    FULL,
    NIGHTLY,
    ODD_ID,
    PARKED,
    PAUSED,
    SHOP,
    SKIPPING,
    STREAM,
)
from towpath import Engine, State, days, hours, minutes, seconds
from towpath.apps.messages.queue import MessageQueue
from towpath.apps.reviews.queue import ReviewQueue
from towpath.clock import ManualClock
from towpath.embedded.process import items
from towpath.engine.model import Call, Lease, Submitted, job_ref, new_job
from towpath.errors import CallStale, FiringTaken, LeaseLost, QueueFull

LEASE = seconds(30)


async def held(engine: Engine, id: str, queue: str = SHOP) -> Lease:
    """The lease that was given at that time, read from Redis."""
    job = await engine.inspect.job(job_ref(queue, id))
    assert job.state is State.LEASED
    assert job.token is not None
    return Lease(
        job=job.ref,
        payload=job.payload,
        token=job.token,
        attempt=job.attempts,
        worker="anna",
        expires_ms=0,
        submitted_ms=0,
    )


async def run_all(engine: Engine, queue: str = SHOP) -> list[str]:
    """Claims and completes one job at a time; returns the ids in the order they ran."""
    ran: list[str] = []
    while leases := await engine.claim(queue, worker="ben", lease=seconds(30)):
        ran.append(leases[0].id)
        await engine.complete(leases[0])
    return ran


def in_order(ran: list[str], *ids: str) -> bool:
    return [id for id in ran if id in ids] == list(ids)


class TestStoredJobs:
    async def test_are_read_as_they_were(
        self, engine: Engine, loaded: Deployment, facts: dict[str, Any]
    ) -> None:
        """Every field that was written down has the same value today; there may be more fields."""
        refs = asked.jobs_of(sorted(loaded.key_names()))
        assert {str(ref) for ref in refs} == set(facts["store"]["jobs"])
        assert asked.differences(facts["store"], await asked.of_store(engine, refs)) == []

    async def test_are_in_every_state(self, facts: dict[str, Any]) -> None:
        states = {job["state"] for job in facts["store"]["jobs"].values()}
        assert states == set(State) - {State.GONE, State.PENDING}

    async def test_are_all_on_the_pages_of_lists(
        self, engine: Engine, facts: dict[str, Any]
    ) -> None:
        for state in ("ready", "delayed", "leased", "dead"):
            wanted = {key for key, job in facts["store"]["jobs"].items() if job["state"] == state}
            found = [
                str(job.ref)
                for queue in await engine.queues.names()
                for job in (await engine.inspect.list(queue, State(state))).jobs
            ]
            assert sorted(found) == sorted(wanted)

    async def test_have_events_that_continue_after_the_last_one_read(self, engine: Engine) -> None:
        last = (await engine.events.list(SHOP))[-1]
        await engine.submit(SHOP, b"new", id="new")
        [event] = await engine.events.list(SHOP, after=last.cursor)
        assert event.job == job_ref(SHOP, "new")

    async def test_have_an_event_stream_that_goes_on(
        self, engine: Engine, loaded: Deployment
    ) -> None:
        [id] = await engine.publish(STREAM, [{"event": "new"}], cap=100)
        entries = items(loaded.ask("XRANGE", f"towpath:stream:{STREAM}", "-", "+"))
        told = [items(entry)[1] for entry in entries]
        assert told == [[b"event", b"kept", b"n", b"1"], [b"event", b"new"]]
        assert items(entries[-1])[0] == id.encode()


class TestStoredLeases:
    async def test_are_settled_with_the_tokens_of_that_time(self, engine: Engine) -> None:
        await engine.complete(await held(engine, "leased"), b"done at last")
        assert (await engine.inspect.job(job_ref(SHOP, "leased"))).result == b"done at last"
        assert await engine.fail(await held(engine, "leased-noted"), "no") is State.DELAYED
        assert await engine.bury(await held(engine, "leased-renewed"), "no") is State.DEAD
        assert await engine.release(await held(engine, "leased-named")) is State.READY
        renewed = await engine.renew(await held(engine, "leased-own"), hours(5))
        assert await engine.fail(renewed, "no") is State.DELAYED

    async def test_tell_that_their_job_was_cancelled(self, engine: Engine) -> None:
        lease = await held(engine, "leased-cancelled")
        assert (await engine.renew(lease, hours(1))).cancel_requested
        assert await engine.fail(lease, "stopped") is State.CANCELLED

    async def test_end_and_are_fenced_by_newer_tokens(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """New tokens are higher than all that the older release gave."""
        before = await held(engine, "leased")
        clock.advance(hours=4)
        assert await engine.queues.reap(SHOP) == 7
        [lease] = await engine.claim(SHOP, worker="ben", lease=seconds(30))
        assert lease.token > before.token
        with pytest.raises(LeaseLost):
            await engine.complete(before)


class TestStoredWaitingJobs:
    async def test_run_by_priority_and_age(self, engine: Engine) -> None:
        normal = ["u2-a", "ready-binary", ODD_ID, "ready-named", "of-a-call"]
        # The first two were released after an attempt; the second job of the lane had to wait.
        ran = await run_all(engine)
        assert [id for id in ran if id != "u2-b"] == [
            "silent-once", "failed-listed", *normal, "ready-low",
        ]  # fmt: skip
        assert in_order(ran, "u2-a", "u2-b", "ready-low")

    async def test_run_when_they_are_due(self, engine: Engine, clock: ManualClock) -> None:
        await run_all(engine)
        for wait, ids in (
            (seconds(8), {"failed", "u3-a", "u3-b"}),
            (seconds(290), {"released"}),
            (minutes(25) + seconds(2), {"delayed"}),
        ):
            clock.advance(wait - seconds(1))
            assert await run_all(engine) == []
            clock.advance(seconds=1)
            assert set(await run_all(engine)) == ids
        clock.advance(minutes=30)
        assert "due" in await run_all(engine)

    async def test_of_a_lane_run_in_order(self, engine: Engine) -> None:
        assert "u1-b" not in await run_all(engine)
        await engine.complete(await held(engine, "u1-a"))
        assert await run_all(engine) == ["u1-b", "u1-c"]

    async def test_of_a_lane_that_skips_run_while_its_head_waits(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        assert await run_all(engine, SKIPPING) == ["s1-b"]
        clock.advance(minutes=1)
        assert await run_all(engine, SKIPPING) == ["s1-a"]

    async def test_of_a_paused_queue_run_when_it_is_resumed(self, engine: Engine) -> None:
        assert await run_all(engine, PAUSED) == []
        await engine.queues.resume(PAUSED)
        assert await run_all(engine, PAUSED) == ["first", "second"]

    async def test_keep_their_options(self, engine: Engine) -> None:
        leases = await engine.claim(SHOP, worker="ben", lease=LEASE, count=50)
        jobs = {str(lease.id): lease for lease in leases}
        assert jobs["ready-binary"].payload == bytes(range(256))
        assert jobs["ready-named"].headers == {"handler": "bill"}
        assert (jobs[ODD_ID].lane, jobs[ODD_ID].payload) == ("{ü}:2", b"odd")
        assert jobs["silent-once"].was_silent

    async def test_all_run_by_the_clock_of_redis(self, loaded: Deployment) -> None:
        """By that clock all leases have ended and all delays are over."""
        async with Engine(loaded.url) as engine:
            before = await engine.inspect.counts(SHOP)
            ran = await run_all(engine)
            assert len(ran) == len(set(ran))
            # One of the leased jobs had been cancelled.
            assert len(ran) == before.ready + before.delayed + before.leased + before.waiting - 1
            assert in_order(ran, "u1-a", "u1-b", "u1-c")


class TestStoredEndedJobs:
    async def test_that_are_dead_can_be_retried(self, engine: Engine) -> None:
        dead = [job.ref for job in (await engine.inspect.list(SHOP, State.DEAD)).jobs]
        assert len(dead) == 4
        for ref in dead:
            assert await engine.retry(ref) is State.READY
        assert {ref.id for ref in dead} <= set(await run_all(engine))

    async def test_that_park_a_lane_let_it_go_on_when_retried_or_dropped(
        self, engine: Engine
    ) -> None:
        assert await run_all(engine, PARKED) == []
        await engine.retry(job_ref(PARKED, "p1-a"))
        assert await run_all(engine, PARKED) == ["p1-a", "p1-b", "p1-c"]
        assert (await engine.drop(PARKED, "p2")).id == "p2-a"
        assert await run_all(engine, PARKED) == ["p2-b"]

    async def test_keep_their_results_for_the_set_time(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        assert (await engine.inspect.job(job_ref(SHOP, "done"))).result == b'{"ok":true}'
        clock.advance(hours=3)
        await engine.queues.trim(SHOP)
        assert await engine.inspect.state(job_ref(SHOP, "done-own-keep")) is State.GONE
        assert await engine.inspect.state(job_ref(SHOP, "done")) is State.DONE
        clock.advance(days(30))
        await engine.queues.trim(SHOP)
        assert await engine.inspect.state(job_ref(SHOP, "done")) is State.GONE
        assert (await engine.inspect.counts(SHOP)).dead == 0

    async def test_are_recognised_by_their_ids(self, engine: Engine, clock: ManualClock) -> None:
        for id, state in (("gone", State.GONE), ("done", State.DONE), ("ready-low", State.READY)):
            again = await engine.submit(SHOP, b"another", id=id)
            assert (again.existed, again.state) == (True, state)
        assert again.same_payload is False
        clock.advance(days(2))
        assert not (await engine.submit(SHOP, b"another", id="gone")).existed


class TestStoredQueues:
    async def test_answer_a_repeated_call_as_before(self, engine: Engine) -> None:
        [again] = await engine.submit_many(SHOP, [new_job(b"x", id="of-a-call")], call=CALL)
        assert isinstance(again, Submitted)
        assert not again.existed
        with pytest.raises(CallStale):
            await engine.submit_many(SHOP, [new_job(b"x")], call=Call(CALL.channel, 1))

    async def test_keep_their_options(self, engine: Engine) -> None:
        with pytest.raises(QueueFull):
            await engine.submit(FULL, b"one more")
        await engine.queues.configure(SHOP, await engine.queues.options(SHOP))
        await run_all(engine)
        lease = await held(engine, "leased")
        for _ in range(3):
            assert await engine.fail(lease, "no", delay=seconds(0)) is State.DELAYED
            [lease] = await engine.claim(SHOP, worker="ben", lease=LEASE)
            assert lease.id == "leased"
        assert await engine.fail(lease, "no") is State.DEAD

    async def test_continue_their_schedules_firing_once_each(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        last = (await engine.schedules.of(NIGHTLY)).last
        assert (last["fired"].fired, last["seen"].fired) == (True, False)
        again = FIRED + seconds(1)
        with pytest.raises(FiringTaken):
            await engine.schedules.fire_due(
                NIGHTLY, "fired", [new_job(b"1")], after=FIRED, upto=again
            )
        job = new_job(b"2", id="fired-2")
        await engine.schedules.fire_due(
            NIGHTLY, "fired", [job], after=last["fired"].at, upto=clock.now
        )
        assert await run_all(engine, NIGHTLY) == ["fired-1", "fired-2"]


class TestStoredDataOfApplications:
    async def test_messages_go_on_in_order(self, engine: Engine, clock: ManualClock) -> None:
        messages = MessageQueue(engine)
        assert await messages.get_current_message_id("ann") == "m1"
        assert await messages.dequeue("ann") is None
        assert await messages.enqueue("ann", "m3", "hello from m3") == 2
        assert (await engine.inspect.job(job_ref("messages", "m4"))).result == b"an answer"
        await engine.complete(await held(engine, "m1", "messages"))
        for id in ("m2", "m3"):
            assert await messages.dequeue("ann") == (id, f"hello from {id}")
            await messages.mark_complete("ann", id)
        assert await messages.get_queue_length("bob") == 1

    async def test_callbacks_name_their_handlers(self, engine: Engine) -> None:
        [delivery] = await engine.claim("messages.callbacks", worker="b", lease=LEASE)
        assert (delivery.id, delivery.payload) == ("m4", b'{"message_id":"m4"}')
        assert "handler" in delivery.headers

    async def test_review_tasks_are_dequeued_by_priority(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        tasks = ReviewQueue(engine)
        assert await tasks.is_locked("held")
        assert not await tasks.enqueue("normal")
        assert [await tasks.dequeue() for _ in range(3)] == ["urgent", "normal", None]
        await tasks.force_release("held")
        assert await tasks.dequeue() == "held"
        for task in ("urgent", "normal", "held"):
            await tasks.release_lock(task)
        clock.advance(minutes=10)
        assert await tasks.dequeue() == "later"
