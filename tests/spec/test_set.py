"""set: submit a job under an id, or replace the open job with that id."""

from typing import Any

import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import REVIEWS, buried, claim, claim_one, ids_of, leased, submit_ids
from tests.spec.test_waiting import ids_within_moments, waiting_claim
from towpath.clock import ManualClock, hours, minutes, seconds
from towpath.engine.engine import LARGEST_BATCH, Engine
from towpath.engine.keys import keys_of
from towpath.engine.model import HIGH, Call, Placed, job_ref, new_job
from towpath.engine.options import LanePolicy, QueueOptions
from towpath.engine.retry import Fixed
from towpath.engine.states import State
from towpath.errors import (
    InvalidName,
    InvalidOption,
    JobNotWaiting,
    LeaseLost,
    PayloadTooLarge,
    QueueFull,
)
from towpath.ids import QueueName

KEEPING = QueueOptions(keep=hours(1))
REF = job_ref(REVIEWS, "a")
SAID: Any = {
    "priority": 70,
    "lane": "octo",
    "max_attempts": 2,
    "retry": Fixed(seconds(3)),
    "headers": {"trace": "1"},
}


async def set_a(engine: Engine, payload: bytes = b"new", **options: Any) -> tuple[State, bool]:
    """The state of job a now, and whether it replaced a job."""
    placed = await engine.set(REVIEWS, payload, id="a", **options)
    assert placed.job == REF
    return placed.state, placed.replaced


class TestSettingANewId:
    async def test_makes_a_ready_job(self, engine: Engine, clock: ManualClock) -> None:
        assert await set_a(engine, **SAID) == (State.READY, False)
        lease = await claim_one(engine)
        assert (lease.id, lease.payload, lease.submitted_at) == ("a", b"new", clock.now)
        assert {name: getattr(lease, name) for name in SAID} == SAID

    async def test_makes_a_delayed_job(self, engine: Engine, clock: ManualClock) -> None:
        assert await set_a(engine, due=clock.now + seconds(5)) == (State.DELAYED, False)
        assert await claim(engine) == []
        clock.advance(seconds(5))
        assert ids_of(await claim(engine)) == ["a"]

    async def test_makes_a_job_that_waits_behind_its_lane(self, engine: Engine) -> None:
        await submit_ids(engine, "head", lane="octo")
        assert await set_a(engine, lane="octo") == (State.WAITING, False)

    async def test_and_submitting_the_same_id_make_one_job(self, engine: Engine) -> None:
        await set_a(engine)
        submitted = await engine.submit(REVIEWS, b"new", id="a")
        assert (submitted.existed, submitted.same_payload) == (True, True)

    async def test_remembers_the_id_after_its_end(self, engine: Engine) -> None:
        await set_a(engine)
        await engine.complete(await claim_one(engine))
        assert (await engine.submit(REVIEWS, b"", id="a")).state is State.GONE


class TestSettingTheIdOfAnOpenJob:
    async def test_replaces_everything_of_the_old_job(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.submit(REVIEWS, b"old", id="a", keep=hours(9), **SAID)
        clock.advance(minutes(1))
        assert await set_a(engine) == (State.READY, True)
        job = await engine.inspect.job(REF)
        assert (job.payload, job.priority, job.lane, job.max_attempts) == (b"new", 50, None, None)
        assert (job.retry, dict(job.headers), job.submitted_at) == (None, {}, clock.now)
        await engine.complete(await claim_one(engine))
        assert await engine.inspect.state(REF) is State.GONE, "kept as the new one says"
        assert (await engine.inspect.counts(REVIEWS)).lanes == 0

    async def test_replaces_a_ready_job_by_a_delayed_one(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit_ids(engine, "a")
        assert await set_a(engine, delay=seconds(5)) == (State.DELAYED, True)
        assert await claim(engine) == []
        clock.advance(seconds(5))
        assert [lease.payload for lease in await claim(engine, 9)] == [b"new"]

    async def test_replaces_a_delayed_job_by_a_ready_one(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.submit(REVIEWS, b"old", id="a", delay=seconds(5))
        assert await set_a(engine) == (State.READY, True)
        assert [lease.payload for lease in await claim(engine, 9)] == [b"new"]
        clock.advance(seconds(5))
        assert await claim(engine) == []

    async def test_replaces_a_delayed_job_by_a_later_one(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """This is how a timer is postponed again and again."""
        for _ in range(5):
            await set_a(engine, delay=seconds(10))
            clock.advance(seconds(9))
            assert await claim(engine) == []
        clock.advance(seconds(1))
        assert ids_of(await claim(engine, 9)) == ["a"]

    async def test_puts_the_job_behind_ready_jobs(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b")
        await set_a(engine)
        assert ids_of(await claim(engine, 9)) == ["b", "a"]

    async def test_that_was_tried_restores_all_attempts(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        lease = await leased(engine, "a")
        await engine.progress(lease, b"50 %")
        await engine.fail(lease, "503", delay=hours(1))
        assert await set_a(engine) == (State.READY, True)
        again = await claim_one(engine)
        assert (again.attempt, again.reason) == (1, None)
        assert again.token > lease.token
        assert (await engine.inspect.job(REF)).progress is None

    async def test_after_a_reap_refuses_its_last_worker(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        lease = await leased(engine, "a", lease=seconds(1))
        clock.advance(seconds(1))
        await engine.queues.reap(REVIEWS)
        await set_a(engine)
        with pytest.raises(LeaseLost):
            await engine.complete(lease)
        assert ids_of(await claim(engine)) == ["a"]

    async def test_needs_no_room_in_a_full_queue(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_length=2))
        await submit_ids(engine, "a", "b")
        assert await set_a(engine) == (State.READY, True)
        with pytest.raises(QueueFull):
            await engine.set(REVIEWS, b"", id="c")


class TestSettingAJobOfALane:
    async def test_that_is_the_head_lets_the_lane_go_on(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b", lane="octo")
        assert await set_a(engine, lane="octo") == (State.WAITING, True)
        assert ids_of(await claim(engine, 9)) == ["b"]

    async def test_that_is_alone_makes_it_the_head_again(self, engine: Engine) -> None:
        await submit_ids(engine, "a", lane="octo")
        assert await set_a(engine, lane="octo") == (State.READY, True)
        assert ids_of(await claim(engine, 9)) == ["a"]

    async def test_behind_the_head_puts_it_last(self, engine: Engine) -> None:
        await submit_ids(engine, "head", "a", "b", lane="octo")
        assert await set_a(engine, lane="octo") == (State.WAITING, True)
        for id in ("head", "b", "a"):
            lease = await claim_one(engine)
            assert lease.id == id
            await engine.complete(lease)

    async def test_may_move_it_to_another_lane(self, engine: Engine) -> None:
        await submit_ids(engine, "head", "a", "b", lane="octo")
        assert await set_a(engine, lane="hubot") == (State.READY, True)
        assert ids_of(await claim(engine, 9)) == ["head", "a"]
        counts = await engine.inspect.counts(REVIEWS)
        assert (counts.waiting, counts.lanes) == (1, 2)

    async def test_may_take_it_out_of_its_lane(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b", lane="octo")
        assert await set_a(engine) == (State.READY, True)
        assert ids_of(await claim(engine, 9)) == ["b", "a"]

    async def test_that_is_a_dead_head_lets_a_parked_lane_go_on(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(lanes=LanePolicy.PARK))
        await buried(engine, "a", lane="octo")
        await submit_ids(engine, "b", lane="octo")
        assert await set_a(engine, lane="octo") == (State.WAITING, False)
        assert ids_of(await claim(engine)) == ["b"]


class TestSettingTheIdOfAnEndedJob:
    async def test_that_is_only_remembered_makes_a_new_job(self, engine: Engine) -> None:
        [ref] = await submit_ids(engine, "a")
        await engine.cancel(ref)
        assert (await engine.submit(REVIEWS, b"", id="a")).existed
        assert await set_a(engine) == (State.READY, False)
        assert ids_of(await claim(engine)) == ["a"]

    async def test_that_is_cancelled_and_kept_makes_a_new_job(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, KEEPING)
        [ref] = await submit_ids(engine, "a")
        await engine.cancel(ref)
        assert await set_a(engine, delay=seconds(5)) == (State.DELAYED, False)
        assert (await engine.inspect.counts(REVIEWS)).kept == 0

    async def test_that_is_done_makes_a_new_job_without_its_result(
        self, engine: Engine, clock: ManualClock, deployment: Deployment
    ) -> None:
        await engine.queues.configure(REVIEWS, KEEPING)
        await engine.complete(await leased(engine, "a"), b"the first")
        assert await set_a(engine) == (State.READY, False)
        job = await engine.inspect.job(REF)
        assert (job.result, job.ended_at, job.state) == (None, None, State.READY)
        clock.advance(hours(2))
        await engine.queues.trim(REVIEWS)
        await engine.complete(await claim_one(engine), b"the second")
        assert (await engine.inspect.job(REF)).result == b"the second"

    async def test_makes_a_job_that_does_not_expire_with_the_old_one(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        """Redis expires the kept job by itself, but not the new one."""
        await engine.queues.configure(REVIEWS, QueueOptions(keep=minutes(5)))
        await engine.complete(await leased(engine, "a"), b"the first")
        await set_a(engine, delay=hours(1))
        keys = keys_of(QueueName(REVIEWS))
        assert deployment.ask("PTTL", keys.job("a")) == -1

    async def test_that_is_dead_makes_a_new_job(self, engine: Engine) -> None:
        await buried(engine, "a")
        assert await set_a(engine) == (State.READY, False)
        counts = await engine.inspect.counts(REVIEWS)
        assert (counts.dead, counts.ready) == (0, 1)
        assert (await engine.inspect.job(REF)).reason is None

    async def test_needs_room_in_a_full_queue(self, engine: Engine) -> None:
        await buried(engine, "a")
        await engine.queues.reconfigure(REVIEWS, QueueOptions(max_length=1))
        await submit_ids(engine, "b")
        with pytest.raises(QueueFull):
            await set_a(engine)
        assert await engine.inspect.state(REF) is State.DEAD


class TestSetting:
    async def test_wakes_a_waiting_claim(self, engine: Engine, deployment: Deployment) -> None:
        await engine.submit(REVIEWS, b"", id="a", delay=hours(9))
        async with waiting_claim(engine, deployment) as waiting:
            await set_a(engine)
            assert await ids_within_moments(waiting) == ["a"]

    async def test_writes_an_event_and_is_counted(self, engine: Engine) -> None:
        await set_a(engine)
        await set_a(engine)
        assert [(event.verb, event.job) for event in await engine.events.list(REVIEWS)] == [
            ("set", REF)
        ] * 2
        totals = (await engine.inspect.counts(REVIEWS)).totals
        assert (totals["submitted"], totals["replaced"]) == (1, 1)

    async def test_many_jobs_answers_for_each_in_order(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_length=4))
        await leased(engine, "held")
        await submit_ids(engine, "a", "b", lane="octo")
        wanted = [
            new_job(b"1", id="b", lane="octo"),
            new_job(b"2", id="held"),
            new_job(b"3", id="new", priority=HIGH),
            new_job(b"4", id="a", delay=hours(1)),
            new_job(b"5", id="newer"),
            new_job(b"6", id="newest"),
        ]
        b, held, new, a, newer, newest = await engine.set_many(REVIEWS, wanted)
        assert b == Placed(job_ref(REVIEWS, "b"), State.WAITING, replaced=True)
        assert isinstance(held, JobNotWaiting)
        assert new == Placed(job_ref(REVIEWS, "new"), State.READY, replaced=False)
        assert a == Placed(REF, State.DELAYED, replaced=True)
        assert newer == Placed(job_ref(REVIEWS, "newer"), State.READY, replaced=False)
        assert isinstance(newest, QueueFull)
        assert ids_of(await claim(engine, 9)) == ["new", "b", "newer"]

    @pytest.mark.parametrize("lanes", [(None, None), ("x", "x"), ("x", "y"), ("octo", None)])
    async def test_the_same_id_twice_keeps_the_later_job(
        self, engine: Engine, clock: ManualClock, lanes: tuple[str | None, str | None]
    ) -> None:
        await submit_ids(engine, "a", "b", lane="octo")
        first, second = (new_job(b"12"[i : i + 1], id="a", lane=lanes[i]) for i in (0, 1))
        answers = await engine.set_many(REVIEWS, [first, second])
        assert all(isinstance(answer, Placed) and answer.replaced for answer in answers)
        leases = await claim(engine, 9)
        assert {lease.id: lease.payload for lease in leases} == {"b": b"b", "a": b"2"}
        for lease in leases:
            await engine.complete(lease)
        counts = await engine.inspect.counts(REVIEWS)
        assert (counts.ready, counts.waiting, counts.lanes) == (0, 0, 0)

    async def test_takes_more_jobs_than_one_step_holds(self, engine: Engine) -> None:
        wanted = [new_job(b"", id=f"job-{n}") for n in range(LARGEST_BATCH + 1)]
        for replaced in (False, True):
            answers = await engine.set_many(REVIEWS, wanted)
            assert {getattr(answer, "replaced", answer) for answer in answers} == {replaced}
        assert (await engine.inspect.counts(REVIEWS)).ready == len(wanted)
        with pytest.raises(InvalidOption, match="call"):
            await engine.set_many(REVIEWS, wanted, call=Call("me", 1))

    async def test_no_jobs_does_nothing(self, engine: Engine) -> None:
        assert await engine.set_many(REVIEWS, []) == []


class TestSettingIsRefused:
    async def test_for_a_leased_job(self, engine: Engine) -> None:
        lease = await leased(engine, "a")
        with pytest.raises(JobNotWaiting) as refusal:
            await set_a(engine)
        assert refusal.value.state == "leased"
        assert (await engine.inspect.job(REF)).payload == b"a"
        await engine.complete(lease)

    async def test_for_a_payload_that_is_too_large(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_payload=5))
        await submit_ids(engine, "a")
        with pytest.raises(PayloadTooLarge):
            await set_a(engine, b"123456")
        large, fits = await engine.set_many(
            REVIEWS, [new_job(b"123456", id="a"), new_job(b"12345", id="a")]
        )
        assert isinstance(large, PayloadTooLarge)
        assert isinstance(fits, Placed)
        [named] = await engine.set_many(
            REVIEWS, [new_job(b"123456", id="a")], call=Call("client-7", 1)
        )
        assert isinstance(named, PayloadTooLarge), "the server says so too"
        assert (await engine.inspect.job(REF)).payload == b"12345"

    async def test_without_a_valid_id(self, engine: Engine) -> None:
        with pytest.raises(InvalidOption) as refusal:
            await engine.set(REVIEWS, b"")
        assert refusal.value.option == "id"
        with pytest.raises(InvalidName):
            await engine.set(REVIEWS, b"", id="")
