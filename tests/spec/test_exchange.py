"""exchange: settle finished jobs and claim the next ones, in one round trip."""

import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import LEASE, REVIEWS, claim, claim_one, ids_of, leased, submit_ids
from towpath.clock import ManualClock, hours, seconds
from towpath.engine.engine import LARGEST_BATCH, Engine
from towpath.engine.model import (
    Bury,
    Complete,
    Exchanged,
    Fail,
    Lease,
    Release,
    Renew,
    Settlement,
    new_job,
)
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import InvalidOption, JobNotFound, LeaseLost


async def exchange(engine: Engine, *settlements: Settlement, count: int = 1) -> Exchanged:
    return await engine.exchange(REVIEWS, settlements, worker="anna", lease=LEASE, count=count)


class TestAnExchange:
    async def test_settles_and_claims_in_one_round_trip(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await exchange(engine, Complete(await leased(engine, "warm")))
        done = await leased(engine, "a")
        await submit_ids(engine, "b")
        before = deployment.calls("evalsha", "eval")
        exchanged = await exchange(engine, Complete(done))
        assert deployment.calls("evalsha", "eval") - before == 1
        assert exchanged.outcomes == [State.DONE]
        assert ids_of(exchanged.leases) == ["b"]

    async def test_answers_each_settlement_in_order(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit_ids(engine, "complete", "fail", "bury", "release", "renew")
        done, failed, broken, back, held = await claim(engine, 5)
        clock.advance(seconds(1))
        exchanged = await exchange(
            engine,
            Renew(held, seconds(60)),
            Complete(done),
            Fail(failed, "503", seconds(9)),
            Bury(broken, "broken"),
            Release(back, seconds(9)),
        )
        renewed, *states = exchanged.outcomes
        assert isinstance(renewed, Lease)
        assert (renewed.token, renewed.expires_at) == (held.token, clock.now + seconds(60))
        assert states == [State.DONE, State.DELAYED, State.DEAD, State.DELAYED]

    async def test_settles_the_other_jobs_if_one_is_refused(self, engine: Engine) -> None:
        stale = await leased(engine, "stale")
        await engine.release(stale)
        current = await claim_one(engine)
        gone = await leased(engine, "gone")
        await engine.complete(gone)
        exchanged = await exchange(engine, Complete(stale), Complete(gone), Complete(current))
        lost, missing, done = exchanged.outcomes
        assert isinstance(lost, LeaseLost)
        assert lost.current == current.token
        assert isinstance(missing, JobNotFound)
        assert done is State.DONE

    async def test_gives_a_job_that_it_frees_to_the_same_worker(self, engine: Engine) -> None:
        """When the head of a lane is completed, the next job is claimed in the same step."""
        await submit_ids(engine, "a", "b", lane="octo")
        head = await claim_one(engine)
        exchanged = await exchange(engine, Complete(head))
        assert ids_of(exchanged.leases) == ["b"]

    async def test_may_release_a_job_and_claim_it_again(self, engine: Engine) -> None:
        lease = await leased(engine)
        [again] = (await exchange(engine, Release(lease))).leases
        assert (again.id, again.attempt) == (lease.id, 1)
        assert again.token > lease.token

    async def test_may_claim_a_job_that_it_failed_without_a_delay(self, engine: Engine) -> None:
        """A fail followed by a claim would do the same."""
        lease = await leased(engine, "a")
        exchanged = await exchange(engine, Fail(lease, "again", seconds(0)))
        assert exchanged.outcomes == [State.DELAYED]
        assert ids_of(exchanged.leases) == ["a"]
        assert (await engine.inspect.counts(REVIEWS)).totals["promoted"] == 1

    async def test_tells_a_renewing_worker_to_stop(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.cancel(lease.job)
        [renewed] = (await exchange(engine, Renew(lease, LEASE))).outcomes
        assert isinstance(renewed, Lease)
        assert renewed.cancel_requested

    async def test_claims_in_the_order_of_a_claim(self, engine: Engine) -> None:
        lease = await leased(engine, "a")
        await submit_ids(engine, "b")
        await engine.submit(REVIEWS, b"", id="high", priority=100)
        exchanged = await exchange(engine, Release(lease), count=3)
        assert ids_of(exchanged.leases) == ["high", "a", "b"]

    async def test_reaps_and_promotes_before_it_chooses(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await leased(engine, "crashed")
        await engine.submit(REVIEWS, b"", id="due", delay=seconds(20))
        clock.advance(LEASE)
        assert ids_of((await exchange(engine, count=9)).leases) == ["crashed", "due"]

    async def test_settles_before_it_claims_so_that_a_late_completion_counts(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """The lease has ended, but no other worker has the job: the completion counts."""
        lease = await leased(engine)
        clock.advance(hours(1))
        exchanged = await exchange(engine, Complete(lease))
        assert exchanged == Exchanged([State.DONE], [], now_ms=int(clock.stamp()))

    async def test_renews_an_ended_lease_before_it_reaps(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        lease = await leased(engine)
        clock.advance(hours(1))
        exchanged = await exchange(engine, Renew(lease, LEASE), count=9)
        assert exchanged.leases == []
        assert await engine.inspect.state(lease.job) is State.LEASED

    async def test_without_settlements_is_a_claim(self, engine: Engine) -> None:
        await submit_ids(engine, "a")
        assert ids_of((await exchange(engine)).leases) == ["a"]

    async def test_for_no_job_only_settles(self, engine: Engine, clock: ManualClock) -> None:
        lease = await leased(engine, "a")
        await submit_ids(engine, "b")
        exchanged = await exchange(engine, Complete(lease), count=0)
        assert exchanged == Exchanged([State.DONE], [], now_ms=int(clock.stamp()))

    async def test_keeps_results(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
        lease = await leased(engine)
        await exchange(engine, Complete(lease, b"result"))
        assert (await engine.inspect.job(lease.job)).result == b"result"

    async def test_with_the_same_lease_twice_counts_once(self, engine: Engine) -> None:
        lease = await leased(engine)
        exchanged = await exchange(engine, Complete(lease), Complete(lease))
        assert exchanged.outcomes[0] is State.DONE
        assert (await engine.inspect.counts(REVIEWS)).totals["completed"] == 1


class TestAnExchangeIsRefusedWhole:
    async def test_for_a_lease_of_another_queue(self, engine: Engine) -> None:
        await engine.submit("other", b"")
        [foreign] = await engine.claim("other", worker="anna", lease=LEASE)
        with pytest.raises(InvalidOption, match=REVIEWS) as refusal:
            await exchange(engine, Complete(foreign))
        assert (refusal.value.option, refusal.value.value) == ("settlements", foreign.job)
        assert await engine.inspect.state(foreign.job) is State.LEASED

    async def test_for_more_than_the_largest_batch(self, engine: Engine) -> None:
        lease = await leased(engine)
        with pytest.raises(InvalidOption, match="settlements"):
            await exchange(engine, *[Complete(lease)] * (LARGEST_BATCH + 1))
        assert await engine.inspect.state(lease.job) is State.LEASED

    async def test_for_an_invalid_settlement(self, engine: Engine) -> None:
        one, two = await leased(engine, "a"), await leased(engine, "b")
        with pytest.raises(InvalidOption, match="reason"):
            await exchange(engine, Complete(one), Fail(two, ""))
        assert await engine.inspect.state(one.job) is State.LEASED


class TestSettling:
    async def test_takes_leases_of_any_queues_and_answers_in_order(self, engine: Engine) -> None:
        await engine.submit("other", b"", id="x")
        [foreign] = await engine.claim("other", worker="anna", lease=LEASE)
        mine, stale = await leased(engine, "a"), await leased(engine, "b")
        await engine.release(stale)
        outcomes = await engine.settle([Complete(stale), Release(foreign), Complete(mine)])
        assert isinstance(outcomes[0], LeaseLost)
        assert outcomes[1:] == [State.READY, State.DONE]

    async def test_takes_more_than_the_largest_batch(self, engine: Engine) -> None:
        await engine.submit_many(REVIEWS, [new_job(b"") for _ in range(LARGEST_BATCH + 2)])
        leases = await claim(engine, LARGEST_BATCH) + await claim(engine, 2)
        outcomes = await engine.settle([Complete(lease) for lease in leases])
        assert outcomes == [State.DONE] * (LARGEST_BATCH + 2)

    async def test_of_none_is_nothing(self, engine: Engine) -> None:
        assert await engine.settle([]) == []
