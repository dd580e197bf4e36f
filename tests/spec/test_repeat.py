"""Repeatable calls: the same call again has no effect and gives the same answer."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import (
    LEASE,
    REVIEWS,
    buried,
    claim,
    claim_one,
    ids_of,
    leased,
    submit_ids,
)
from towpath.clock import ManualClock, hours, minutes, seconds
from towpath.engine.engine import LARGEST_BATCH, Engine
from towpath.engine.keys import keys_of
from towpath.engine.model import Call, Complete, Exchanged, Fail, Lease, Release, Renew, new_job
from towpath.engine.options import LanePolicy, QueueOptions
from towpath.engine.states import State
from towpath.errors import CallStale, CallTaken, InvalidOption, LeaseLost
from towpath.ids import QueueName

FIRST = Call("client-7", 1)

Verb = Callable[[Engine, Call], Awaitable[Any]]
"""A call of a verb, ready to be sent and sent again."""


async def submitting(_: Engine) -> Verb:
    jobs = [new_job(b"x", id="a"), new_job(b"y", delay=seconds(5)), new_job(b"z", lane="octo")]
    return lambda engine, call: engine.submit_many(REVIEWS, jobs, call=call)


async def claiming(engine: Engine) -> Verb:
    await submit_ids(engine, "a", "b", "c", "d")
    return lambda engine, call: engine.claim(
        REVIEWS, worker="anna", lease=LEASE, count=2, call=call
    )


async def claiming_by_selector(engine: Engine) -> Verb:
    await engine.submit_many(
        REVIEWS, [new_job(b"", selector=selector) for selector in ("x", "y", "x", "z")]
    )
    return lambda engine, call: engine.claim(
        REVIEWS, worker="anna", lease=LEASE, count=2, selectors=["x", "y"], max_held=2, call=call
    )


async def renewing(engine: Engine) -> Verb:
    lease = await leased(engine)
    return lambda engine, call: engine.renew(lease, seconds(60), call=call)


async def noting(engine: Engine) -> Verb:
    lease = await leased(engine)
    return lambda engine, call: engine.progress(lease, b"50 %", call=call)


async def completing(engine: Engine) -> Verb:
    lease = await leased(engine)
    return lambda engine, call: engine.complete(lease, b"result", call=call)


async def failing(engine: Engine) -> Verb:
    lease = await leased(engine)
    return lambda engine, call: engine.fail(lease, "503", delay=seconds(5), call=call)


async def burying(engine: Engine) -> Verb:
    lease = await leased(engine)
    return lambda engine, call: engine.bury(lease, "broken", call=call)


async def releasing(engine: Engine) -> Verb:
    lease = await leased(engine)
    return lambda engine, call: engine.release(lease, call=call)


async def exchanging(engine: Engine) -> Verb:
    await submit_ids(engine, "a", "b", "c", "d", "e")
    one, two, three, four = await claim(engine, 4)
    settle = [Complete(one), Fail(two, "503", seconds(5)), Release(three), Renew(four, LEASE)]
    return lambda engine, call: engine.exchange(
        REVIEWS, settle, worker="anna", lease=LEASE, count=2, call=call
    )


async def cancelling(engine: Engine) -> Verb:
    [ref] = await submit_ids(engine, "a")
    return lambda engine, call: engine.cancel(ref, call=call)


async def moving(engine: Engine) -> Verb:
    await submit_ids(engine, "a", "b", "c", lane="octo")
    moves: dict[str, Any] = {"a": hours(2), "b": hours(1), "nobody": hours(1)}
    return lambda engine, call: _texts(engine.move_many(REVIEWS, moves, call=call))


async def setting(engine: Engine) -> Verb:
    await submit_ids(engine, "a", "b", "c", lane="octo")
    jobs = [new_job(b"x", id="a"), new_job(b"y", id="b", delay=hours(1)), new_job(b"z", id="d")]
    return lambda engine, call: engine.set_many(REVIEWS, jobs, call=call)


async def _texts(answers: Awaitable[list[Any]]) -> list[str]:
    """Errors are equal if their texts are."""
    return [str(answer) for answer in await answers]


async def retrying(engine: Engine) -> Verb:
    ref = await buried(engine)
    return lambda engine, call: engine.retry(ref, call=call)


async def deleting(engine: Engine) -> Verb:
    ref = await buried(engine)
    return lambda engine, call: engine.delete(ref, call=call)


async def dropping(engine: Engine) -> Verb:
    await engine.queues.configure(REVIEWS, QueueOptions(lanes=LanePolicy.PARK))
    await buried(engine, "a", lane="octo")
    await submit_ids(engine, "b", lane="octo")
    return lambda engine, call: engine.drop(REVIEWS, "octo", call=call)


async def promoting(engine: Engine) -> Verb:
    jobs = [new_job(b"", delay=seconds(5)) for _ in range(3)]
    await engine.submit_many(REVIEWS, jobs)
    return lambda engine, call: engine.queues.promote(REVIEWS, 2, call=call)


async def reaping(engine: Engine) -> Verb:
    await submit_ids(engine, "a", "b", "c")
    await claim(engine, 3)
    return lambda engine, call: engine.queues.reap(REVIEWS, 2, call=call)


async def trimming(engine: Engine) -> Verb:
    await engine.queues.configure(REVIEWS, QueueOptions(keep=minutes(30)))
    for id in ("a", "b", "c"):
        await engine.complete(await leased(engine, id))
    return lambda engine, call: engine.queues.trim(REVIEWS, 2, call=call)


async def pausing(_: Engine) -> Verb:
    return lambda engine, call: engine.queues.pause(REVIEWS, call=call)


async def resuming(engine: Engine) -> Verb:
    await engine.queues.pause(REVIEWS)
    return lambda engine, call: engine.queues.resume(REVIEWS, call=call)


async def firing(engine: Engine) -> Verb:
    first = (await engine.schedules.of(REVIEWS)).now
    await engine.schedules.fire_due(REVIEWS, "nightly", [], after=None, upto=first)
    jobs, upto = [new_job(b"x", id="a"), new_job(b"y")], first + minutes(1)
    return lambda engine, call: engine.schedules.fire_due(
        REVIEWS, "nightly", jobs, after=first, upto=upto, call=call
    )


async def forgetting(engine: Engine) -> Verb:
    first = (await engine.schedules.of(REVIEWS)).now
    await engine.schedules.fire_due(REVIEWS, "nightly", [], after=None, upto=first)
    return lambda engine, call: engine.schedules.delete_declared(REVIEWS, "nightly", call=call)


EVERY_VERB = pytest.mark.parametrize(
    "given",
    [
        submitting, claiming, claiming_by_selector, renewing, noting, completing, failing, burying,
        releasing, exchanging, cancelling, moving, setting, retrying, deleting, dropping, promoting,
        reaping, trimming, pausing, resuming, firing, forgetting,
    ],
    ids=lambda given: given.__name__,
)  # fmt: skip


class TestTheSameCallAgain:
    @EVERY_VERB
    async def test_has_the_same_answer_and_no_effect(
        self,
        given: Callable[[Engine], Awaitable[Verb]],
        engine: Engine,
        other_engine: Engine,
        clock: ManualClock,
        deployment: Deployment,
    ) -> None:
        """This holds for any sender and any connection."""
        verb = await given(engine)
        clock.advance(hours(1))
        answer = await verb(engine, FIRST)
        after = deployment.dump()
        assert await verb(engine, FIRST) == answer
        assert await verb(other_engine, FIRST) == answer
        assert deployment.dump() == after

    async def test_is_refused_again_if_it_was_refused(self, engine: Engine) -> None:
        stale = await leased(engine)
        await engine.release(stale)
        for _ in range(2):
            with pytest.raises(LeaseLost) as refusal:
                await engine.complete(stale, call=FIRST)
            assert refusal.value.state == "ready"
            await claim(engine)

    async def test_adds_nothing_after_the_job_was_completed_and_is_gone(
        self, engine: Engine
    ) -> None:
        """The submit of a quick job may be repeated when nothing of the job is left."""
        jobs = [new_job(b"quick")]
        answer = await engine.submit_many(REVIEWS, jobs, call=FIRST)
        lease = await claim_one(engine)
        await engine.complete(lease, call=Call("worker", 1))
        assert await engine.submit_many(REVIEWS, jobs, call=FIRST) == answer
        await engine.complete(lease, call=Call("worker", 1))
        counts = await engine.inspect.counts(REVIEWS)
        assert (counts.ready, counts.totals["completed"]) == (0, 1)

    async def test_is_recognised_for_ten_minutes(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await engine.queues.pause(REVIEWS, call=FIRST)
        left = deployment.ask("PTTL", keys_of(QueueName(REVIEWS)).call(FIRST.channel))
        assert isinstance(left, int)
        assert 590_000 < left <= 600_000


class TestACallOutOfOrder:
    async def test_with_a_lower_number_is_refused_as_stale(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await engine.submit_many(REVIEWS, [new_job(b"")], call=Call("client-7", 10))
        before = deployment.dump()
        with pytest.raises(CallStale):
            await engine.submit_many(REVIEWS, [new_job(b"")], call=Call("client-7", 9))
        assert deployment.dump() == before

    async def test_with_a_higher_number_may_skip_numbers(self, engine: Engine) -> None:
        await engine.submit_many(REVIEWS, [new_job(b"")], call=Call("client-7", 1))
        await engine.submit_many(REVIEWS, [new_job(b"")], call=Call("client-7", 1000))
        assert (await engine.inspect.counts(REVIEWS)).ready == 2

    async def test_on_another_channel_or_queue_is_another_call(self, engine: Engine) -> None:
        for channel, queue in (("a", REVIEWS), ("b", REVIEWS), ("a", "other")):
            await engine.submit_many(queue, [new_job(b"")], call=Call(channel, 1))
        assert (await engine.inspect.counts(REVIEWS)).ready == 2
        assert (await engine.inspect.counts("other")).ready == 1

    async def test_distinguishes_numbers_that_differ_in_the_last_digit(
        self, engine: Engine
    ) -> None:
        first, second = Call("client-7", 1794771968716192), Call("client-7", 1794771968716193)
        for call in (first, second):
            await engine.submit_many(REVIEWS, [new_job(b"")], call=call)
        assert (await engine.inspect.counts(REVIEWS)).ready == 2
        with pytest.raises(CallStale):
            await engine.submit_many(REVIEWS, [new_job(b"")], call=first)


class TestARepeatedClaim:
    async def again(self, engine: Engine) -> list[Lease]:
        return await engine.claim(REVIEWS, worker="anna", lease=LEASE, count=2, call=FIRST)

    async def test_returns_the_same_leases(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b", "c")
        assert await self.again(engine) == await self.again(engine)

    async def test_returns_only_leases_that_are_still_held(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b", "c")
        first, second = await self.again(engine)
        await engine.complete(first)
        assert await self.again(engine) == [second]

    async def test_never_returns_new_leases(self, engine: Engine, clock: ManualClock) -> None:
        await submit_ids(engine, "a", "b", "c", "d")
        await self.again(engine)
        clock.advance(LEASE)
        assert len(await claim(engine, 4, worker="berta")) == 4
        assert await self.again(engine) == []

    async def test_stays_empty_if_it_was_empty(self, engine: Engine) -> None:
        assert await self.again(engine) == []
        await submit_ids(engine, "a")
        assert await self.again(engine) == []

    async def test_shows_a_lease_that_was_renewed_since(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit_ids(engine, "a")
        [lease] = await self.again(engine)
        clock.advance(seconds(10))
        renewed = await engine.renew(lease, LEASE)
        assert await self.again(engine) == [renewed]

    async def test_has_every_attribute_of_jobs_that_are_not_plain(self, engine: Engine) -> None:
        await engine.submit(REVIEWS, b"\x00", id="a", lane="octo", priority=9, max_attempts=2)
        assert await self.again(engine) == await self.again(engine)

    async def test_within_an_exchange_settles_nothing_twice(self, engine: Engine) -> None:
        lease = await leased(engine, "a")
        await submit_ids(engine, "b")

        async def exchange() -> Exchanged:
            return await engine.exchange(
                REVIEWS, [Release(lease)], worker="anna", lease=LEASE, count=1, call=FIRST
            )

        first = await exchange()
        assert ids_of(first.leases) == ["a"]
        assert await exchange() == first
        await engine.complete(first.leases[0])
        again = await exchange()
        assert (again.outcomes, again.leases) == ([State.READY], [])


class TestACallIsRefused:
    async def test_for_more_jobs_than_one_step_takes(self, engine: Engine) -> None:
        jobs = [new_job(b"") for _ in range(LARGEST_BATCH + 1)]
        with pytest.raises(InvalidOption, match="call"):
            await engine.submit_many(REVIEWS, jobs, call=FIRST)
        assert (await engine.inspect.counts(REVIEWS)).ready == 0

    @pytest.mark.parametrize("number", [-1, True, 1.5, "1", 2**53 + 1])
    async def test_with_a_number_that_is_not_exact_in_lua(
        self, engine: Engine, number: Any
    ) -> None:
        with pytest.raises(InvalidOption):
            await engine.queues.pause(REVIEWS, call=Call("client-7", number))

    @pytest.mark.parametrize("channel", ["", "x" * 513, "a\nb", 7])
    async def test_with_an_invalid_channel(self, engine: Engine, channel: Any) -> None:
        with pytest.raises(ValueError, match="channel"):
            await engine.queues.pause(REVIEWS, call=Call(channel, 1))


async def test_a_kept_job_outlives_the_memory_of_its_calls(engine: Engine) -> None:
    """A completion repeated after the memory of its call still finds the job done."""
    await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
    lease = await leased(engine)
    await engine.complete(lease, call=FIRST)
    await engine.complete(lease, call=Call("client-8", 1))
    assert await engine.inspect.state(lease.job) is State.DONE


class TestACallNumberOfAnotherVerb:
    async def test_is_refused_and_changes_nothing(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.progress(lease, b"half", call=Call("c", 1))
        with pytest.raises(CallTaken):
            await engine.complete(lease, call=Call("c", 1))
        assert await engine.inspect.state(lease.job) is State.LEASED


class TestOptionsThatChangedBetweenACallAndItsRepeat:
    @EVERY_VERB
    async def test_do_not_affect_the_repeat(
        self,
        given: Callable[[Engine], Awaitable[Verb]],
        engine: Engine,
        other_engine: Engine,
        clock: ManualClock,
        deployment: Deployment,
    ) -> None:
        """The repeat is answered at once. If it were refused, it would be sent anew as another
        call.
        """
        verb = await given(engine)
        clock.advance(hours(1))
        answer = await verb(engine, FIRST)
        options = await engine.queues.options(REVIEWS)
        changed = msgspec.structs.replace(options, max_attempts=(options.max_attempts or 5) + 1)
        await other_engine.queues.reconfigure(REVIEWS, changed)
        after, calls = deployment.dump(), deployment.calls("evalsha", "eval")
        assert await verb(engine, FIRST) == answer
        assert deployment.calls("evalsha", "eval") == calls + 1
        assert deployment.dump() == after
