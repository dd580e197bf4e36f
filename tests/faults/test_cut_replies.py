"""I3, I8: a call whose request or reply is lost is repeated, and has one effect and one answer."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from tests.faults.queue_contents import all_in, contents_of
from tests.waiting import eventually_async
from towpath.clock import minutes, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.engine.model import (
    Call,
    Complete,
    Lease,
    Release,
    Renew,
    Settlement,
    Submitted,
    job_ref,
    new_job,
)
from towpath.engine.script import Scripts
from towpath.engine.states import State
from towpath.ids import JobId, queue_name
from towpath.testing.proxy import Faults, Proxy

QUEUE = "cuts"
LIMITS = Limits(answer=seconds(5), give_up=seconds(60))


@pytest.fixture
async def proxy(server: EmbeddedServer, seed: int) -> AsyncIterator[Proxy]:
    """Cuts a third of all calls: some before Redis read them, most after it executed them."""
    faults = Faults(chance=random.Random(seed))
    async with Proxy(server.address, faults) as proxy:
        yield proxy


@pytest.fixture
async def engine(proxy: Proxy) -> AsyncIterator[Engine]:
    async with Engine(proxy.url, limits=LIMITS) as engine:
        await engine.queues.options(QUEUE)
        proxy.faults.cut_replies, proxy.faults.cut_requests = 0.25, 0.1
        yield engine
        assert proxy.cuts > 0, "nothing was cut"


async def submitted_ids(engine: Engine, count: int) -> set[JobId]:
    jobs = [new_job(b"%d" % number) for number in range(count)]
    await engine.submit_many(QUEUE, jobs)
    return {job.id for job in jobs}


async def claimed(engine: Engine, count: int = 7) -> list[Lease]:
    """Claims every ready job, in portions."""
    leases: list[Lease] = []
    while portion := await engine.claim(QUEUE, worker="w", lease=minutes(5), count=count):
        leases += portion
    return leases


SETTLEMENTS: list[Callable[[Lease], Settlement]] = [
    Complete,
    Complete,
    Complete,
    Release,
    lambda lease: Renew(lease, minutes(5)),
]


class TestCallsThatAreCut:
    async def test_submit_adds_each_job_once(self, engine: Engine) -> None:
        """Jobs are submitted one at a time, many at once, and in batches."""
        single = [await engine.submit(QUEUE, b"x") for _ in range(60)]
        joined = await asyncio.gather(*(engine.submit(QUEUE, b"x") for _ in range(300)))
        batches = [
            await engine.submit_many(QUEUE, [new_job(b"x") for _ in range(20)]) for _ in range(30)
        ]
        answers = [*single, *joined, *(answer for batch in batches for answer in batch)]
        found = await contents_of(engine, QUEUE)
        assert found.ids(State.READY) == {
            answer.id for answer in answers if isinstance(answer, Submitted)
        }
        assert found.counts.ready == found.counts.totals["submitted"] == len(answers) == 960

    async def test_submit_keeps_the_order_of_calls(self, engine: Engine, proxy: Proxy) -> None:
        """Many calls are under way, in one lane and within one priority."""
        proxy.cut_next(2)
        jobs = [(f"{n}", "lane" if n % 2 else None) for n in range(1400)]
        await asyncio.gather(*(engine.submit(QUEUE, b"x", id=id, lane=lane) for id, lane in jobs))
        ready = [job.id for job in await all_in(engine, QUEUE, State.READY)]
        waiting = [job.id for job in await all_in(engine, QUEUE, State.WAITING)]
        assert ready == ["0", "1", *(f"{n}" for n in range(2, 1400, 2))]
        assert waiting == [f"{n}" for n in range(3, 1400, 2)]

    async def test_submit_repeats_its_first_answer(self, engine: Engine) -> None:
        """The answer is not `existed`: the caller's job is new, however often the call was sent."""
        answers = [await engine.submit(QUEUE, b"x", id=f"job-{n}") for n in range(60)]
        assert {(answer.state, answer.existed) for answer in answers} == {(State.READY, False)}

    async def test_claim_delivers_each_job_once(self, engine: Engine) -> None:
        ids = await submitted_ids(engine, 500)
        leases = await claimed(engine)
        found = await contents_of(engine, QUEUE)
        assert sorted(lease.id for lease in leases) == sorted(ids)
        assert {lease.attempt for lease in leases} == {1}
        assert {lease.id: lease.token for lease in leases} == {
            id: job.token for id, job in found.jobs.items()
        }

    async def test_claim_by_selector_respects_the_limit(self, engine: Engine) -> None:
        jobs = [new_job(b"x", selector=f"s{n % 3}") for n in range(60)]
        await engine.submit_many(QUEUE, jobs)
        held: list[Lease] = []
        while len(held) < 40:
            portion = await engine.claim(
                QUEUE, worker="w", lease=minutes(5), count=3, selectors=["s0", "s1"], max_held=4
            )
            held += portion
            for lease in portion:
                assert (await engine.inspect.counts(QUEUE)).leased <= 4
                await engine.complete(lease)
        assert sorted({lease.id for lease in held}) == sorted(lease.id for lease in held)
        assert {lease.selector for lease in held} == {"s0", "s1"}
        counts = await engine.inspect.counts(QUEUE)
        assert (counts.ready, counts.leased, counts.totals["completed"]) == (20, 0, 40)

    async def test_complete_is_accepted_once(self, engine: Engine) -> None:
        ids = await submitted_ids(engine, 60)
        for lease in await claimed(engine):
            await engine.complete(lease, b"result")
        counts = await engine.inspect.counts(QUEUE)
        assert counts.totals["completed"] == len(ids)
        assert counts.ready + counts.leased == 0

    async def test_release_restores_one_attempt(self, engine: Engine) -> None:
        await submitted_ids(engine, 40)
        for lease in await claimed(engine):
            await engine.release(lease)
        assert (await engine.inspect.counts(QUEUE)).totals["released"] == 40
        assert {lease.attempt for lease in await claimed(engine)} == {1}

    async def test_fail_renew_cancel_and_progress_count_once(self, engine: Engine) -> None:
        await submitted_ids(engine, 40)
        leases = await claimed(engine)
        for lease in leases[:20]:
            assert await engine.fail(lease, "again", delay=minutes(1)) is State.DELAYED
        for lease in leases[20:]:
            renewed = await engine.renew(lease, minutes(10))
            await engine.progress(renewed, b"half")
            assert await engine.cancel(renewed.job) is State.LEASED
        counts = await engine.inspect.counts(QUEUE)
        assert (counts.totals["failed"], counts.delayed, counts.leased) == (20, 20, 20)

    async def test_move_and_set_have_one_effect(self, engine: Engine) -> None:
        """A repeat says `replaced` only if there was a job to replace before the call."""
        ids = sorted(await submitted_ids(engine, 30))
        for id in ids[:10]:
            assert await engine.move(job_ref(QUEUE, id), delay=minutes(1)) is State.DELAYED
        for n, id in enumerate(ids[10:]):
            assert (await engine.set(QUEUE, b"y", id=id, lane=f"lane-{n % 3}")).replaced
            assert not (await engine.set(QUEUE, b"x", id=f"new-{n}")).replaced
        counts = await engine.inspect.counts(QUEUE)
        assert (counts.totals["moved"], counts.totals["replaced"]) == (10, 20)
        assert counts.totals["submitted"] == 30 + 20
        assert (counts.delayed, counts.ready, counts.waiting) == (10, 20 + 3, 17)

    async def test_exchange_settles_and_claims_once(self, engine: Engine, seed: int) -> None:
        """Each round completes some jobs, releases and renews others, and claims new ones."""
        ids, chance = await submitted_ids(engine, 600), random.Random(seed)
        done: list[JobId] = []
        held: list[Lease] = []
        while len(done) < len(ids):
            settle = [chance.choice(SETTLEMENTS)(lease) for lease in held]
            answer = await engine.exchange(
                QUEUE, settle, worker="w", lease=minutes(5), count=25 - len(held) // 2
            )
            pairs = list(zip(held, answer.outcomes, strict=True))
            assert not any(isinstance(outcome, Exception) for outcome in answer.outcomes)
            done += [lease.id for lease, outcome in pairs if outcome is State.DONE]
            held = [
                *answer.leases,
                *(outcome for _, outcome in pairs if isinstance(outcome, Lease)),
            ]
        counts = await engine.inspect.counts(QUEUE)
        assert sorted(done) == sorted(ids)
        assert counts.totals["completed"] == len(ids)
        assert counts.ready + counts.leased + counts.delayed == 0


class TestARepeatedClaim:
    async def test_returns_the_same_jobs_and_never_new_ones(self, engine: Engine) -> None:
        await submitted_ids(engine, 40)
        for number in range(1, 10):
            call = Call("caller", number)
            first = await engine.claim(QUEUE, worker="w", lease=minutes(5), count=4, call=call)
            again = await engine.claim(QUEUE, worker="w", lease=minutes(5), count=4, call=call)
            assert again == first
            assert len(first) == 4
            await engine.complete(first[0])
            still = await engine.claim(QUEUE, worker="w", lease=minutes(5), count=4, call=call)
            assert still == first[1:]
        assert (await engine.inspect.counts(QUEUE)).ready == 4


async def test_calls_without_the_memory_of_calls_count_twice(proxy: Proxy) -> None:
    """Shows that the check can fail: every call has a number of its own, even when it is
    repeated.
    """

    def edit(piece: str, text: str) -> str:
        if piece != "calls":
            return text
        assert "ARGV[3]" in text
        return text.replace("ARGV[3]", "redis.call('INCR', 'probe:number')")

    async with Engine(proxy.url, limits=LIMITS, scripts=Scripts(edit)) as forgetful:
        await forgetful.queues.options(QUEUE)
        proxy.faults.cut_replies = 0.3
        for _ in range(10):
            await submitted_ids(forgetful, 10)
        leases = await claimed(forgetful)
        assert len(leases) < (await forgetful.inspect.counts(QUEUE)).leased


async def test_two_submits_under_way_to_one_queue_change_their_order(proxy: Proxy) -> None:
    """Shows that the check can fail: the second submit does not wait for the first, whose request
    is cut and repeated. On a busy machine the repeat may still come before the second submit.
    """
    async with Engine(proxy.url, limits=LIMITS) as engine:
        await engine.queues.options(QUEUE)
        await engine.submit(QUEUE, b"x", id="before")
        store = engine._store  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- past the batcher

        def submit(id: str) -> Coroutine[Any, Any, Any]:
            return store.write("submit", queue_name(QUEUE), lambda _: [new_job(b"x", id=id)])

        for attempt in range(100):
            cuts, proxy.faults.cut_requests = proxy.cuts, 1.0
            first = asyncio.create_task(submit(f"first-{attempt}"))
            await eventually_async(lambda cuts=cuts: _is(proxy.cuts > cuts))
            proxy.faults.cut_requests = 0.0
            await submit(f"second-{attempt}")
            await first
            *_, behind, last = [job.id for job in await all_in(engine, QUEUE, State.READY)]
            if (behind, last) == (f"second-{attempt}", f"first-{attempt}"):
                return
        raise AssertionError("nothing swapped")


async def _is(fact: bool) -> bool:  # noqa: FBT001 -- what eventually_async awaits
    return fact
