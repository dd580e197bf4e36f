"""pause and resume: no jobs are claimed from a paused queue; everything else goes on."""

from tests.spec.jobs_in_states import LEASE, REVIEWS, claim, claim_one, ids_of, leased, submit_ids
from towpath.clock import ManualClock, seconds
from towpath.engine.engine import Engine
from towpath.engine.model import Complete
from towpath.engine.states import State


class TestAPausedQueue:
    async def test_gives_out_no_jobs(self, engine: Engine) -> None:
        await submit_ids(engine, "a")
        await submit_ids(engine, "b", lane="octo")
        await engine.queues.pause(REVIEWS)
        assert await claim(engine) == []
        assert await claim(engine, lane="octo") == []

    async def test_is_paused_for_every_process(self, engine: Engine, other_engine: Engine) -> None:
        await submit_ids(engine, "a")
        await engine.queues.pause(REVIEWS)
        assert await claim(other_engine) == []
        assert (await other_engine.inspect.counts(REVIEWS)).paused

    async def test_accepts_jobs(self, engine: Engine) -> None:
        await engine.queues.pause(REVIEWS)
        assert (await engine.submit(REVIEWS, b"")).state is State.READY

    async def test_lets_running_jobs_be_renewed_and_settled(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b", "c")
        done, failed, back = await claim(engine, 3)
        await engine.queues.pause(REVIEWS)
        await engine.renew(done, LEASE)
        await engine.progress(done, b"50 %")
        await engine.complete(done)
        assert await engine.fail(failed, "503", delay=seconds(1)) is State.DELAYED
        assert await engine.release(back) is State.READY

    async def test_settles_in_an_exchange_without_claiming(self, engine: Engine) -> None:
        lease = await leased(engine, "a")
        await submit_ids(engine, "b")
        await engine.queues.pause(REVIEWS)
        exchanged = await engine.exchange(
            REVIEWS, [Complete(lease)], worker="anna", lease=LEASE, count=1
        )
        assert exchanged.outcomes == [State.DONE]
        assert exchanged.leases == []

    async def test_still_promotes_and_reaps(self, engine: Engine, clock: ManualClock) -> None:
        await leased(engine, "crashed")
        await engine.submit(REVIEWS, b"", delay=seconds(5))
        await engine.queues.pause(REVIEWS)
        clock.advance(LEASE)
        await claim(engine)
        counts = await engine.inspect.counts(REVIEWS)
        assert (counts.ready, counts.leased, counts.delayed) == (2, 0, 0)

    async def test_leaves_other_queues_alone(self, engine: Engine) -> None:
        await engine.submit("other", b"")
        await engine.queues.pause(REVIEWS)
        assert len(await engine.claim("other", worker="anna", lease=LEASE)) == 1

    async def test_may_be_paused_before_its_first_job(self, engine: Engine) -> None:
        await engine.queues.pause("new")
        await engine.submit("new", b"")
        assert await engine.claim("new", worker="anna", lease=LEASE) == []


class TestResuming:
    async def test_gives_out_jobs_again_in_their_order(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b")
        await engine.queues.pause(REVIEWS)
        await submit_ids(engine, "c")
        await engine.queues.resume(REVIEWS)
        assert ids_of(await claim(engine, 3)) == ["a", "b", "c"]
        assert not (await engine.inspect.counts(REVIEWS)).paused

    async def test_a_queue_that_is_not_paused_changes_nothing(self, engine: Engine) -> None:
        await submit_ids(engine, "a")
        await engine.queues.resume(REVIEWS)
        assert (await claim_one(engine)).id == "a"

    async def test_once_is_enough_after_two_pauses(self, engine: Engine) -> None:
        await submit_ids(engine, "a")
        await engine.queues.pause(REVIEWS)
        await engine.queues.pause(REVIEWS)
        await engine.queues.resume(REVIEWS)
        assert (await claim_one(engine)).id == "a"
