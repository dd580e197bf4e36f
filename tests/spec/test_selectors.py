"""Selectors: a claim may name which jobs it takes, and how many its worker may hold."""

import asyncio
import re

import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import LEASE, REVIEWS, ids_of
from towpath.clock import ZERO, ManualClock, hours, milliseconds, minutes, seconds
from towpath.engine.claiming import SELECTORS_MOST
from towpath.engine.engine import Engine
from towpath.engine.explain import Why
from towpath.engine.keys import keys_of
from towpath.engine.model import Call, Lease, Release, job_ref, new_job
from towpath.engine.states import State
from towpath.errors import InvalidName, InvalidOption
from towpath.ids import QueueName

DEV, REVIEW, OTHER = "octo/cat|dev", "octo/cat|review", "octo/dog|dev"
KEYS = keys_of(QueueName(REVIEWS))


async def submit(engine: Engine, *jobs: tuple[str, str | None], priority: int = 50) -> None:
    """Jobs by id and selector, in one call."""
    wanted = [new_job(b"", id=id, selector=selector, priority=priority) for id, selector in jobs]
    await engine.submit_many(REVIEWS, wanted)


async def claim(
    engine: Engine,
    *selectors: str,
    count: int = 1,
    worker: str = "anna",
    max_held: int | None = None,
) -> list[Lease]:
    return await engine.claim(
        REVIEWS, worker=worker, lease=LEASE, count=count, selectors=selectors, max_held=max_held
    )


class TestAClaimThatNamesSelectors:
    async def test_gets_jobs_with_these_selectors_only(self, engine: Engine) -> None:
        await submit(engine, ("a", DEV), ("b", OTHER), ("c", None), ("d", REVIEW), ("e", DEV))
        assert ids_of(await claim(engine, DEV, REVIEW, count=9)) == ["a", "d", "e"]
        assert await claim(engine, DEV, REVIEW) == []
        assert ids_of(await claim(engine, count=9)) == ["b", "c"]

    async def test_gets_the_highest_priority_among_them_then_the_longest_ready(
        self, engine: Engine
    ) -> None:
        await submit(engine, ("low", DEV), ("later", REVIEW), priority=10)
        await submit(engine, ("high", REVIEW), ("high-too", DEV), priority=90)
        found = [ids_of(await claim(engine, REVIEW, DEV, OTHER))[0] for _ in range(4)]
        assert found == ["high", "high-too", "low", "later"]

    async def test_that_names_none_gets_all_jobs(self, engine: Engine) -> None:
        await submit(engine, ("a", DEV), ("b", None), ("c", REVIEW))
        assert ids_of(await claim(engine, count=9)) == ["a", "b", "c"]

    async def test_gets_leases_that_name_the_selector(self, engine: Engine) -> None:
        await submit(engine, ("a", DEV), ("b", None))
        assert [lease.selector for lease in await claim(engine, count=2)] == [DEV, None]
        assert (await engine.inspect.job(job_ref(REVIEWS, "a"))).selector == DEV

    async def test_gets_jobs_that_fall_due_or_are_reaped_in_the_same_step(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit(engine, ("lost", DEV))
        await claim(engine, DEV, worker="silent")
        await engine.submit(REVIEWS, b"", id="later", selector=REVIEW, delay=seconds(5))
        await engine.submit(REVIEWS, b"", id="others", selector=OTHER, delay=seconds(5))
        clock.advance(LEASE)
        assert ids_of(await claim(engine, REVIEW, DEV, count=9)) == ["lost", "later"]

    async def test_with_repeated_or_unknown_selectors_changes_nothing(self, engine: Engine) -> None:
        await submit(engine, ("a", DEV), ("b", DEV))
        assert ids_of(await claim(engine, DEV, "nobody/nothing", DEV, count=9)) == ["a", "b"]

    async def test_that_is_repeated_gets_the_same_jobs(self, engine: Engine) -> None:
        await submit(engine, ("a", DEV), ("b", DEV))

        async def named() -> list[Lease]:
            return await engine.claim(
                REVIEWS, worker="anna", lease=LEASE, selectors=[DEV], call=Call("c", 1)
            )

        assert await named() == await named()
        assert (await engine.inspect.counts(REVIEWS)).ready == 1

    async def test_skips_index_entries_that_no_record_matches(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await submit(engine, ("gone", DEV), ("a", DEV))
        deployment.ask("DEL", KEYS.job("gone"))
        assert ids_of(await claim(engine, DEV, count=9)) == ["a"]
        counts = await engine.inspect.counts(REVIEWS)
        assert (counts.ready, counts.dead) == (0, 1)

    async def test_may_name_as_many_as_the_limit(self, engine: Engine) -> None:
        await submit(engine, ("a", "s/99"), ("b", "s/100"))
        names = [f"s/{n}" for n in range(SELECTORS_MOST)]
        assert ids_of(await claim(engine, *names, count=9)) == ["a"]
        with pytest.raises(InvalidOption):
            await claim(engine, *names, "s/100")

    async def test_that_names_many_gets_the_best_job_wherever_it_stands(
        self, engine: Engine
    ) -> None:
        """At the front of all ready jobs, or behind those of other selectors."""
        many = [f"s/{n}" for n in range(SELECTORS_MOST)]
        await submit(engine, *((f"other-{n}", OTHER) for n in range(3)), ("front", "s/7"))
        assert ids_of(await claim(engine, *many)) == ["front"]
        await submit(engine, *((f"more-{n}", OTHER) for n in range(30)), ("plain", None))
        await submit(engine, ("low", "s/99"), priority=10)
        await submit(engine, ("second", "s/2"), ("third", "s/1"))
        await submit(engine, ("first", "s/3"), priority=90)
        assert ids_of(await claim(engine, *many)) == ["first"]
        assert ids_of(await claim(engine, *many, count=2)) == ["second", "third"]
        assert ids_of(await claim(engine, *many, count=2)) == ["low"]
        assert await claim(engine, *many) == []
        assert (await engine.inspect.counts(REVIEWS)).ready == 34

    async def test_that_names_many_does_not_query_each_of_them(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        many = [f"s/{n}" for n in range(SELECTORS_MOST)]
        await submit(engine, *((f"j{n}", many[n % SELECTORS_MOST]) for n in range(200)))
        before = deployment.calls("zrange")
        for _ in range(10):
            await claim(engine, *many, count=3)
        assert deployment.calls("zrange") - before <= 10 * 5

    async def test_that_names_many_sets_strays_aside(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        many = [DEV, *(f"s/{n}" for n in range(SELECTORS_MOST - 1))]
        await submit(engine, ("gone", DEV), ("a", DEV))
        deployment.ask("DEL", KEYS.job("gone"))
        assert ids_of(await claim(engine, *many, count=9)) == ["a"]
        counts = await engine.inspect.counts(REVIEWS)
        assert (counts.ready, counts.dead) == (0, 1)

    async def test_may_not_name_a_lane_too(self, engine: Engine) -> None:
        with pytest.raises(InvalidOption):
            await engine.claim(REVIEWS, worker="anna", lease=LEASE, lane="x", selectors=[DEV])


@pytest.mark.parametrize("bad", ["", "x" * 257, "ß" * 129, "a\nb", "a\x00b", 7, b"a"])
async def test_an_invalid_selector_is_refused(engine: Engine, bad: str) -> None:
    with pytest.raises(InvalidName):
        await engine.submit(REVIEWS, b"", selector=bad)
    with pytest.raises(InvalidName):
        await claim(engine, bad)


@pytest.mark.parametrize("bad", [0, -1, 10_001, 1.5, True, "1"])
async def test_an_invalid_limit_is_refused(engine: Engine, bad: int) -> None:
    with pytest.raises(InvalidOption):
        await claim(engine, max_held=bad)


async def test_one_text_is_not_several_selectors(engine: Engine) -> None:
    with pytest.raises(InvalidOption):
        await engine.claim(REVIEWS, worker="anna", lease=LEASE, selectors=DEV)


class TestTheIndexOfSelectors:
    """A job is found by its selector whenever it is ready, and only then."""

    async def claimable(self, engine: Engine) -> list[str]:
        leases = await claim(engine, DEV, count=9, worker="looker")
        await engine.settle([Release(lease) for lease in leases])
        return ids_of(leases)

    async def test_gains_a_job_by_release_retry_and_the_end_of_its_lease(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit(engine, ("a", DEV))
        [lease] = await claim(engine, DEV)
        await engine.release(lease)
        [lease] = await claim(engine, DEV)
        assert await self.claimable(engine) == []
        await engine.bury(lease, "no good")
        assert await self.claimable(engine) == []
        await engine.retry(lease.job)
        assert await self.claimable(engine) == ["a"]
        await claim(engine, DEV)
        clock.advance(LEASE)
        await engine.queues.reap(REVIEWS)
        assert await self.claimable(engine) == ["a"]

    async def test_loses_a_job_by_delay_move_and_failure_until_it_is_due(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.submit(REVIEWS, b"", id="a", selector=DEV, delay=seconds(5))
        assert await self.claimable(engine) == []
        await engine.move(job_ref(REVIEWS, "a"), delay=ZERO)
        assert await self.claimable(engine) == ["a"]
        await engine.move(job_ref(REVIEWS, "a"), delay=seconds(5))
        assert await self.claimable(engine) == []
        clock.advance(seconds(5))
        [lease] = await claim(engine, DEV)
        await engine.fail(lease, "again", delay=seconds(5))
        assert await self.claimable(engine) == []
        clock.advance(seconds(5))
        await engine.queues.promote(REVIEWS)
        assert await self.claimable(engine) == ["a"]

    async def test_loses_a_job_by_cancel_and_set(self, engine: Engine) -> None:
        await submit(engine, ("a", DEV), ("b", DEV))
        await engine.cancel(job_ref(REVIEWS, "a"))
        await engine.set(REVIEWS, b"", id="b", selector=REVIEW)
        assert await self.claimable(engine) == []
        assert ids_of(await claim(engine, REVIEW)) == ["b"]

    async def test_gives_no_job_of_a_paused_queue(self, engine: Engine) -> None:
        await submit(engine, ("a", DEV))
        await engine.queues.pause(REVIEWS)
        assert await self.claimable(engine) == []
        await engine.queues.resume(REVIEWS)
        assert await self.claimable(engine) == ["a"]

    async def test_has_the_head_of_a_lane_under_its_own_selector(self, engine: Engine) -> None:
        for id, selector in (("a", DEV), ("b", REVIEW), ("c", DEV)):
            await engine.submit(REVIEWS, b"", id=id, lane="one", selector=selector)
        assert await claim(engine, REVIEW) == []
        [lease] = await claim(engine, DEV)
        assert await claim(engine, DEV, REVIEW) == []
        await engine.complete(lease)
        assert await claim(engine, DEV) == []
        assert ids_of(await claim(engine, REVIEW)) == ["b"]

    async def test_leaves_nothing_behind(self, engine: Engine, deployment: Deployment) -> None:
        await submit(engine, ("a", DEV), ("b", REVIEW))
        for lease in await claim(engine, DEV, REVIEW, count=2, max_held=2):
            await engine.complete(lease)
        names = {name.removeprefix(f"{KEYS.tag}:") for name in deployment.key_names()}
        left = {name for name in names if name.startswith(("selector:", "held:", "job:", "load:"))}
        assert left == set()


class TestTheLimitOfHeldJobsPerWorker:
    async def test_counts_the_leases_of_the_worker(self, engine: Engine) -> None:
        await submit(engine, *((str(n), DEV) for n in range(9)))
        first = await claim(engine, DEV, count=9, max_held=2)
        assert ids_of(first) == ["0", "1"]
        assert await claim(engine, DEV, max_held=2) == []
        assert ids_of(await claim(engine, DEV, max_held=3)) == ["2"]
        assert ids_of(await claim(engine, DEV, count=9, worker="berta", max_held=1)) == ["3"]

    async def test_applies_without_selectors_too(self, engine: Engine) -> None:
        await submit(engine, ("a", None), ("b", None))
        assert ids_of(await claim(engine, count=9, max_held=1)) == ["a"]
        assert await claim(engine, max_held=1) == []

    @pytest.mark.parametrize("end", ["complete", "fail", "bury", "release", "reap", "cancel"])
    async def test_has_room_again_when_a_job_ends(
        self, engine: Engine, clock: ManualClock, end: str
    ) -> None:
        await submit(engine, ("a", DEV), ("b", REVIEW))
        [lease] = await claim(engine, DEV, max_held=1)
        match end:
            case "complete":
                await engine.complete(lease)
            case "fail":
                await engine.fail(lease, "no", delay=hours(1))
            case "bury":
                await engine.bury(lease, "no")
            case "release":
                await engine.release(lease)
            case "cancel":
                await engine.cancel(lease.job)
                assert await claim(engine, REVIEW, max_held=1) == []
                await engine.release(lease)
            case _:
                clock.advance(LEASE)
        assert ids_of(await claim(engine, REVIEW, max_held=1)) == ["b"]

    async def test_counts_leases_as_long_as_they_are_renewed(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit(engine, ("a", DEV), ("b", DEV))
        [lease] = await claim(engine, DEV, max_held=1)
        await engine.renew(lease, hours(1))
        clock.advance(minutes(30))
        assert await claim(engine, DEV, max_held=1) == []

    async def test_does_not_count_leases_that_another_worker_took_over(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit(engine, ("a", DEV), ("b", REVIEW))
        await claim(engine, DEV, max_held=1)
        clock.advance(LEASE)
        assert ids_of(await claim(engine, DEV, worker="berta", max_held=1)) == ["a"]
        assert ids_of(await claim(engine, REVIEW, max_held=1)) == ["b"]
        assert await claim(engine, REVIEW, worker="berta", max_held=1) == []

    async def test_does_not_count_an_entry_without_a_lease(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await submit(engine, ("a", DEV))
        deployment.ask("ZADD", KEYS.held("anna"), "1", "nobody")
        assert ids_of(await claim(engine, DEV, max_held=1)) == ["a"]

    async def test_is_not_exceeded_by_claims_at_once(self, engine: Engine) -> None:
        await submit(engine, *((str(n), DEV) for n in range(50)))
        found = await asyncio.gather(*(claim(engine, DEV, max_held=3) for _ in range(30)))
        assert sum(map(len, found)) == 3


class TestInspectingAJobWithASelector:
    async def why(self, engine: Engine, id: str) -> tuple[Why, str]:
        told = await engine.inspect.explain(job_ref(REVIEWS, id))
        return told.why, told.text

    async def test_position_counts_ready_jobs_of_its_selector(self, engine: Engine) -> None:
        await submit(engine, ("o", OTHER), ("a", DEV), ("p", None), ("b", DEV))
        position = await engine.inspect.position(job_ref(REVIEWS, "b"))
        assert position is not None
        assert (position.ahead, position.wait) == (1, None)
        await claim(engine, "nobody")
        assert (await engine.inspect.position(job_ref(REVIEWS, "p"))) is not None

    async def test_explain_says_that_no_worker_claims_its_selector(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit(engine, ("a", DEV), ("b", OTHER))
        await claim(engine, OTHER)
        why, text = await self.why(engine, "a")
        assert why is Why.NO_WORKER
        assert DEV in text
        await claim(engine, REVIEW)
        assert (await self.why(engine, "a"))[0] is Why.NO_WORKER

    async def test_explain_says_that_it_is_next_while_a_worker_claims_its_selector(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit(engine, ("held", DEV))
        await claim(engine, DEV)
        await submit(engine, ("a", DEV), ("b", DEV))
        assert (await self.why(engine, "a"))[0] is Why.NEXT
        why, text = await self.why(engine, "b")
        assert why is Why.BEHIND_OTHERS
        assert re.search(r"\b1\b", text)
        clock.advance(seconds(13))
        why, text = await self.why(engine, "a")
        assert why is Why.ALL_BUSY
        assert DEV in text

    async def test_a_claim_without_selectors_counts_as_one_for_it(self, engine: Engine) -> None:
        await claim(engine)
        await submit(engine, ("a", DEV))
        assert (await self.why(engine, "a"))[0] is Why.NEXT

    async def test_a_worker_at_its_limit_does_not_count_as_claiming(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit(engine, ("held", DEV), ("a", DEV))
        await claim(engine, DEV, max_held=1)
        clock.advance(seconds(13))
        await claim(engine, DEV, max_held=1)
        assert (await self.why(engine, "a"))[0] is Why.ALL_BUSY

    async def test_lists_and_counts_include_it_like_any_other(self, engine: Engine) -> None:
        await submit(engine, ("a", DEV), ("b", None))
        page = await engine.inspect.list(REVIEWS, State.READY)
        assert [(job.id, job.selector) for job in page.jobs] == [("a", DEV), ("b", None)]
        assert (await engine.inspect.counts(REVIEWS)).ready == 2


async def test_a_deleted_queue_leaves_no_claimed_selectors_behind(
    engine: Engine, deployment: Deployment
) -> None:
    await claim(engine, DEV)
    assert await engine.queues.delete(REVIEWS)
    assert not [name for name in deployment.key_names() if name.startswith(f"{KEYS.tag}:asked")]


async def test_a_queue_remembers_the_newest_ten_thousand_claimed_selectors(
    engine: Engine, deployment: Deployment, clock: ManualClock
) -> None:
    old = [word for n in range(10_000) for word in ("1", f"old/{n}")]
    deployment.ask("ZADD", KEYS.asked, *old)
    for n in range(3):
        clock.advance(milliseconds(1))
        await claim(engine, *(f"new/{n}/{i}" for i in range(SELECTORS_MOST)))
    found = deployment.ask("ZCARD", KEYS.asked)
    assert isinstance(found, int)
    assert found <= 10_000 + SELECTORS_MOST
    assert deployment.ask("ZSCORE", KEYS.asked, "new/0/0") is not None
