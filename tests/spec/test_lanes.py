"""Lanes run one job at a time, in submission order, retries included; lanes take turns."""

import pytest

from tests.faults.probed_scripts import ScriptProbe, probed
from tests.spec.jobs_in_states import (
    LEASE,
    REVIEWS,
    buried,
    claim,
    claim_one,
    ids_of,
    run_all,
    submit_ids,
)
from towpath.clock import ManualClock, hours, seconds
from towpath.embedded import EmbeddedServer
from towpath.embedded.process import items
from towpath.engine.codec import unpack_raw
from towpath.engine.engine import Engine
from towpath.engine.keys import keys_of
from towpath.engine.model import HIGH, LOW, new_job
from towpath.engine.options import LanePolicy, QueueOptions
from towpath.engine.states import State
from towpath.ids import queue_name

POLICIES = pytest.mark.parametrize("policy", list(LanePolicy))


class TestALane:
    @POLICIES
    async def test_runs_one_at_a_time_in_submission_order(
        self, engine: Engine, policy: LanePolicy
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(lanes=policy))
        await submit_ids(engine, "9", "10", "1", lane="octo")
        ran: list[str] = []
        while leases := await claim(engine, 10):
            assert len(leases) == 1
            ran += ids_of(leases)
            await engine.complete(leases[0])
        assert ran == ["9", "10", "1"]

    async def test_runs_beside_other_lanes_and_jobs_without_a_lane(self, engine: Engine) -> None:
        await submit_ids(engine, "a1", "a2", lane="a")
        await submit_ids(engine, "b1", "b2", lane="b")
        await submit_ids(engine, "free1", "free2")
        assert ids_of(await claim(engine, 10)) == ["a1", "b1", "free1", "free2"]

    async def test_is_free_again_after_its_last_job(self, engine: Engine) -> None:
        await submit_ids(engine, "a", lane="octo")
        assert await run_all(engine) == ["a"]
        assert (await engine.inspect.counts(REVIEWS)).lanes == 0
        await submit_ids(engine, "b", lane="octo")
        assert await run_all(engine) == ["b"]

    async def test_ignores_the_priority_of_jobs_within_it(self, engine: Engine) -> None:
        await engine.submit(REVIEWS, b"", id="low", lane="octo", priority=LOW)
        await engine.submit(REVIEWS, b"", id="high", lane="octo", priority=HIGH)
        assert await run_all(engine) == ["low", "high"]

    async def test_competes_with_the_priority_of_its_head(self, engine: Engine) -> None:
        await submit_ids(engine, "normal")
        await engine.submit(REVIEWS, b"", id="head", lane="octo", priority=HIGH)
        await engine.submit(REVIEWS, b"", id="tail", lane="octo", priority=LOW)
        assert await run_all(engine) == ["head", "normal", "tail"]

    async def test_waits_for_a_delayed_head(self, engine: Engine, clock: ManualClock) -> None:
        await engine.submit(REVIEWS, b"", id="head", lane="octo", delay=seconds(5))
        await submit_ids(engine, "tail", lane="octo")
        assert await claim(engine) == []
        clock.advance(seconds(5))
        assert await run_all(engine) == ["head", "tail"]

    async def test_waits_for_the_delay_of_a_job_that_comes_to_its_head(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit_ids(engine, "head", lane="octo")
        tail = await engine.submit(REVIEWS, b"", id="tail", lane="octo", delay=seconds(5))
        assert tail.state is State.WAITING
        assert await run_all(engine) == ["head"]
        assert await engine.inspect.state(tail.job) is State.DELAYED
        clock.advance(seconds(5))
        assert await run_all(engine) == ["tail"]

    async def test_is_served_again_only_after_a_dead_workers_lease_has_ended(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """A crash keeps the order: the same job comes first again."""
        await submit_ids(engine, "a", "b", lane="octo")
        await claim_one(engine)
        clock.advance(LEASE)
        assert await run_all(engine) == ["a", "b"]

    async def test_is_independent_of_a_lane_with_its_name_in_another_queue(
        self, engine: Engine
    ) -> None:
        await submit_ids(engine, "a", lane="octo")
        await engine.submit("other", b"", lane="octo")
        await claim_one(engine)
        assert len(await engine.claim("other", worker="anna", lease=LEASE)) == 1

    async def test_is_counted_while_it_has_open_jobs(self, engine: Engine) -> None:
        await submit_ids(engine, "a1", "a2", lane="a")
        await submit_ids(engine, "b1", lane="b")
        counts = await engine.inspect.counts(REVIEWS)
        assert (counts.lanes, counts.waiting, counts.ready) == (2, 1, 2)

    async def test_goes_on_without_reading_the_jobs_behind_the_next_one(
        self, server: EmbeddedServer
    ) -> None:
        server.ask("FLUSHALL")
        async with Engine(server.url, scripts=probed()) as engine:
            await submit_ids(engine, *(f"job-{n}" for n in range(150)), lane="octo")
            lease = await claim_one(engine)
            ScriptProbe(server).fail_at(0)
            await engine.complete(lease)
            assert ids_of(await claim(engine)) == ["job-1"]
        rows = items(server.ask("LRANGE", "probe:trace", 0, -1))
        trace = [unpack_raw(row) for row in rows if isinstance(row, bytes)]
        key = keys_of(queue_name(REVIEWS)).lane("octo").encode()
        read = [words for _, name, *words in trace if name == b"ZRANGE" and words[0] == key]
        assert read == [[key, 0, 0]]


class TestLanesTakeTurns:
    async def test_so_that_a_busy_lane_starves_no_other(self, engine: Engine) -> None:
        await submit_ids(engine, "a1", "a2", "a3", lane="a")
        await submit_ids(engine, "b1", "b2", lane="b")
        await submit_ids(engine, "c1", lane="c")
        assert await run_all(engine) == ["a1", "b1", "c1", "a2", "b2", "a3"]

    async def test_so_that_a_lane_goes_behind_ready_jobs_when_its_head_ends(
        self, engine: Engine
    ) -> None:
        await submit_ids(engine, "a1", "a2", lane="a")
        head = await claim_one(engine)
        await submit_ids(engine, "free")
        await engine.complete(head)
        assert ids_of(await claim(engine, 2)) == ["free", "a2"]

    async def test_and_a_hundred_lanes_have_one_running_job_each(self, engine: Engine) -> None:
        jobs = [new_job(b"", lane=f"{n % 100}") for n in range(400)]
        await engine.submit_many(REVIEWS, jobs)
        leases = await claim(engine, 400)
        assert len(leases) == 100
        assert len({lease.lane for lease in leases}) == 100


class TestClaimingFromOneLane:
    async def test_takes_only_the_next_job_of_that_lane(self, engine: Engine) -> None:
        await submit_ids(engine, "free")
        await submit_ids(engine, "a1", "a2", lane="a")
        await submit_ids(engine, "b1", lane="b")
        assert ids_of(await claim(engine, 10, lane="a")) == ["a1"]
        assert await claim(engine, 10, lane="a") == []
        assert ids_of(await claim(engine, 10)) == ["free", "b1"]

    async def test_that_does_not_exist_returns_nothing(self, engine: Engine) -> None:
        await submit_ids(engine, "free")
        assert await claim(engine, lane="nobody") == []

    async def test_whose_head_is_delayed_returns_nothing(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.submit(REVIEWS, b"", id="a", lane="octo", delay=seconds(5))
        assert await claim(engine, lane="octo") == []
        clock.advance(seconds(5))
        assert ids_of(await claim(engine, lane="octo")) == ["a"]

    async def test_takes_its_job_again_when_the_lease_has_ended(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit_ids(engine, "a", lane="octo")
        await claim_one(engine, lane="octo")
        clock.advance(LEASE)
        assert (await claim_one(engine, lane="octo")).attempt == 2


class TestALaneThatBlocks:
    """The default policy: the lane waits while its head is retried, and goes on when it is dead."""

    async def test_waits_while_its_head_retries(self, engine: Engine, clock: ManualClock) -> None:
        await submit_ids(engine, "a", "b", lane="octo")
        await engine.fail(await claim_one(engine), "503", delay=seconds(5))
        assert await claim(engine) == []
        clock.advance(seconds(5))
        assert await run_all(engine) == ["a", "b"]

    async def test_goes_on_when_its_head_is_dead(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b", lane="octo")
        await engine.bury(await claim_one(engine), "broken")
        assert await run_all(engine) == ["b"]


class TestALaneThatSkips:
    """The lane goes on while a failed job waits for its next attempt, still one job at a time."""

    @pytest.fixture(autouse=True)
    async def skipping(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(lanes=LanePolicy.SKIP))

    async def test_goes_on_while_its_head_retries(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b", "c", lane="octo")
        await engine.fail(await claim_one(engine), "503", delay=seconds(5))
        assert ids_of(await claim(engine, 10)) == ["b"]

    async def test_runs_the_failed_job_again_at_its_own_place(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit_ids(engine, "a", "b", "c", lane="octo")
        await engine.fail(await claim_one(engine), "503", delay=seconds(5))
        second = await claim_one(engine)
        clock.advance(seconds(5))
        assert await claim(engine) == []
        await engine.complete(second)
        assert await run_all(engine) == ["a", "c"]

    async def test_runs_a_failed_job_that_comes_back_to_an_empty_lane(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit_ids(engine, "a", "b", lane="octo")
        await engine.fail(await claim_one(engine), "503", delay=seconds(5))
        assert await run_all(engine) == ["b"]
        clock.advance(seconds(5))
        assert await run_all(engine) == ["a"]

    async def test_goes_on_when_its_head_is_dead(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b", lane="octo")
        await engine.bury(await claim_one(engine), "broken")
        assert await run_all(engine) == ["b"]

    async def test_can_lose_a_skipped_job_to_a_cancel(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        failed, *_ = await submit_ids(engine, "a", "b", "c", lane="octo")
        await engine.fail(await claim_one(engine), "503", delay=seconds(5))
        await engine.cancel(failed)
        clock.advance(hours(1))
        assert await run_all(engine) == ["b", "c"]


class TestALaneThatParks:
    """A dead head stops the lane until it is resumed by retry, drop or delete."""

    @pytest.fixture(autouse=True)
    async def parking(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(lanes=LanePolicy.PARK))

    async def test_waits_while_its_head_retries(self, engine: Engine, clock: ManualClock) -> None:
        await submit_ids(engine, "a", "b", lane="octo")
        await engine.fail(await claim_one(engine), "503", delay=seconds(5))
        assert await claim(engine) == []
        clock.advance(seconds(5))
        assert await run_all(engine) == ["a", "b"]

    async def test_stops_when_its_head_is_dead(self, engine: Engine, clock: ManualClock) -> None:
        await buried(engine, "a", lane="octo")
        await submit_ids(engine, "b", lane="octo")
        clock.advance(hours(1))
        assert await claim(engine) == []
        assert await claim(engine, lane="octo") == []
        assert (await engine.inspect.counts(REVIEWS)).lanes == 1

    async def test_leaves_other_lanes_alone(self, engine: Engine) -> None:
        await buried(engine, "a", lane="octo")
        await submit_ids(engine, "b", lane="other")
        assert await run_all(engine) == ["b"]

    async def test_goes_on_after_a_cancelled_head(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b", lane="octo")
        head = await claim_one(engine)
        await engine.cancel(head.job)
        await engine.fail(head, "stopped")
        assert await run_all(engine) == ["b"]


class TestALaneWhoseWorkersDie:
    """The head is ready again at once and stays the head; after too many deaths it is dead."""

    @pytest.mark.parametrize("policy", LanePolicy)
    async def test_keeps_its_head_until_the_head_is_dead(
        self, engine: Engine, clock: ManualClock, policy: LanePolicy
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(lanes=policy))
        await submit_ids(engine, "a", "b", lane="octo")
        deliveries: list[str] = []
        while not (await engine.inspect.counts(REVIEWS)).dead and len(deliveries) < 1000:
            deliveries += ids_of(await claim(engine, 10))
            clock.advance(LEASE)
            await engine.queues.reap(REVIEWS)
        assert set(deliveries) == {"a"}
        assert 1 < len(deliveries) < 1000
        assert await run_all(engine) == ([] if policy is LanePolicy.PARK else ["b"])
