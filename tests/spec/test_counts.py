"""The counts of a queue: jobs in each state, the age of the oldest, and whether workers claim."""

from tests.spec.jobs_in_states import (
    LEASE,
    REVIEWS,
    buried,
    claim,
    claim_one,
    leased,
    run_all,
    submit_ids,
)
from towpath.clock import ManualClock, hours, seconds
from towpath.engine.engine import Engine
from towpath.engine.options import QueueOptions


class TestTheCounts:
    async def test_have_the_number_of_jobs_in_each_state(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
        await engine.complete(await leased(engine, "done"))
        await buried(engine, "dead")
        await leased(engine, "leased")
        await submit_ids(engine, "head", "waiting", lane="octo")
        await engine.submit(REVIEWS, b"", delay=hours(1))
        counts = await engine.inspect.counts(REVIEWS)
        assert (counts.ready, counts.delayed, counts.waiting) == (1, 1, 1)
        assert (counts.leased, counts.dead, counts.kept) == (1, 1, 1)
        assert (counts.lanes, counts.remembered, counts.paused) == (1, 1, False)

    async def test_add_up_over_a_jobs_life(self, engine: Engine, clock: ManualClock) -> None:
        await submit_ids(engine, "a", "b", "c")
        assert await run_all(engine) == ["a", "b", "c"]
        await engine.fail(await leased(engine, "d"), "503", delay=seconds(1))
        clock.advance(seconds(1))
        await engine.release(await claim_one(engine))
        await engine.bury(await claim_one(engine), "broken")
        totals = (await engine.inspect.counts(REVIEWS)).totals
        expected = {"submitted": 4, "completed": 3, "failed": 2, "died": 1, "released": 1}
        assert {name: totals[name] for name in expected} == expected
        assert (totals["promoted"], totals["reaped"], totals["cancelled"]) == (1, 0, 0)

    async def test_know_the_age_of_the_oldest_ready_job(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        assert (await engine.inspect.counts(REVIEWS)).oldest is None
        await engine.submit(REVIEWS, b"", priority=0)
        clock.advance(seconds(7))
        await engine.submit(REVIEWS, b"", priority=100)
        clock.advance(seconds(1))
        assert (await engine.inspect.counts(REVIEWS)).oldest == seconds(8)

    async def test_give_the_age_of_the_jobs_next_in_line_only(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """A released job stands behind them, though it has been ready for less time."""
        await submit_ids(engine, "a")
        failed = await claim_one(engine)
        clock.advance(seconds(60))
        await submit_ids(engine, "b")
        await engine.fail(failed, "again", delay=seconds(0))
        await engine.queues.promote(REVIEWS)
        clock.advance(seconds(5))
        assert (await engine.inspect.counts(REVIEWS)).oldest == seconds(5)

    async def test_tell_that_no_worker_takes_ready_jobs(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """`explain` says the same of each of these jobs: no claim for 12 s."""
        assert not (await engine.inspect.counts(REVIEWS)).no_worker
        await submit_ids(engine, "a")
        assert (await engine.inspect.counts(REVIEWS)).no_worker
        await claim_one(engine)
        await submit_ids(engine, "b")
        clock.advance(LEASE - seconds(1))
        assert not (await engine.inspect.counts(REVIEWS)).no_worker  # the worker is busy
        clock.advance(seconds(1))
        assert (await engine.inspect.counts(REVIEWS)).no_worker  # the worker is gone
        await engine.queues.pause(REVIEWS)
        assert not (await engine.inspect.counts(REVIEWS)).no_worker
        await engine.queues.resume(REVIEWS)
        await claim(engine, count=2)
        assert not (await engine.inspect.counts(REVIEWS)).no_worker

    async def test_include_claims_for_a_selector(self, engine: Engine, clock: ManualClock) -> None:
        await submit_ids(engine, "a")
        await engine.claim(REVIEWS, worker="w", lease=LEASE, selectors=["other"])
        assert not (await engine.inspect.counts(REVIEWS)).no_worker
        clock.advance(seconds(13))
        assert (await engine.inspect.counts(REVIEWS)).no_worker

    async def test_do_not_include_finished_jobs_whose_retention_is_over(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
        await engine.complete(await leased(engine))
        clock.advance(hours(1))
        assert (await engine.inspect.counts(REVIEWS)).kept == 0
