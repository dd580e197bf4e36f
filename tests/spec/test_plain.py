"""A plain job goes a shorter way through the scripts, with the same results."""

from collections.abc import Awaitable, Callable

import pytest

from tests.queue_numbers import set_numbers
from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import LEASE, REVIEWS, claim, claim_one, ids_of
from towpath.clock import ManualClock, hours, milliseconds, seconds
from towpath.embedded.process import items
from towpath.engine.engine import Engine
from towpath.engine.keys import keys_of
from towpath.engine.model import Call, Complete, NewJob, Submitted, job_ref
from towpath.engine.options import QueueOptions
from towpath.engine.script import Scripts
from towpath.engine.states import State
from towpath.errors import LeaseLost, WrongKeyType
from towpath.ids import QueueName, job_id

SHORT_WAYS = {"plain_submit", "plain_claim", "plain_complete", "plain_exchange"}
EVENTS = f"{{{REVIEWS}}}:events"
KEEPING = QueueOptions(keep=hours(1))

Story = Callable[[Engine, ManualClock], Awaitable[object]]


def plain(*ids: str) -> list[NewJob]:
    """Jobs with default options; the test chooses their ids, but Redis does not remember them as
    chosen ids.
    """
    return [NewJob(job_id(id), id.encode()) for id in ids]


async def one_by_one(engine: Engine, clock: ManualClock) -> object:
    answers: list[object] = []
    for id in ("b", "a", "c"):
        answers.append(await engine.submit_many(REVIEWS, plain(id)))
        clock.advance(milliseconds(1))
    for _ in range(3):
        lease = await claim_one(engine)
        clock.advance(milliseconds(70))
        await engine.complete(lease, b"nobody keeps it")
        answers.append(lease)
    return answers


async def by_exchange(engine: Engine, clock: ManualClock) -> object:
    answers: list[object] = [await engine.submit_many(REVIEWS, plain(*"gfedcba"))]
    held = await claim(engine, 2)
    while held:
        clock.advance(milliseconds(30))
        settle = [Complete(lease) for lease in held]
        done = await engine.exchange(REVIEWS, settle, worker="w", lease=LEASE, count=3)
        answers.append(done)
        held = done.leases
    return answers


async def with_some_held(engine: Engine, clock: ManualClock) -> object:
    await engine.submit_many(REVIEWS, plain("a", "b", "c", "d"))
    first = await claim(engine, 2)
    clock.advance(seconds(26))
    then = await claim(engine)
    await engine.wait_for_work(REVIEWS, within=seconds(9))  # takes the wake-up of waiting workers
    return first, then, await claim(engine, 2), await engine.settle([Complete(first[1])])


async def kept_one_by_one(engine: Engine, clock: ManualClock) -> object:
    await engine.queues.configure(REVIEWS, KEEPING)
    return await one_by_one(engine, clock)


async def kept_with_results(engine: Engine, clock: ManualClock) -> object:
    """Completes by exchange, some with a result and some without."""
    await engine.queues.configure(REVIEWS, KEEPING)
    answers: list[object] = [await engine.submit_many(REVIEWS, plain(*"gfedcba"))]
    held = await claim(engine, 2)
    while held:
        clock.advance(milliseconds(30))
        results = [b"", b"\x00\xff", b"x" * 2000]
        settle = [Complete(lease, results[i]) for i, lease in enumerate(held)]
        done = await engine.exchange(REVIEWS, settle, worker="w", lease=LEASE, count=3)
        answers.append(done)
        held = done.leases
    answers.append([await engine.inspect.job(job_ref(REVIEWS, id)) for id in "abcdefg"])
    return answers


async def and_idle(engine: Engine, clock: ManualClock) -> object:
    await claim(engine)
    clock.advance(milliseconds(5))
    return await claim(engine)


async def told(engine: Engine, story: Story, deployment: Deployment) -> object:
    """The results of a story: its answers, the keys in Redis, and the events without their
    times.
    """
    answers = await story(engine, clock_of(engine))
    entries = items(deployment.ask("XRANGE", EVENTS, "-", "+"))
    events = [items(entry)[1] for entry in entries]
    store = deployment.dump()
    store.pop(EVENTS, None)
    return answers, store, events


def clock_of(engine: Engine) -> ManualClock:
    clock = engine._clock  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- each engine here has its own
    assert isinstance(clock, ManualClock)
    return clock


class TestTheShortWay:
    @pytest.mark.parametrize(
        "story",
        [one_by_one, by_exchange, with_some_held, kept_one_by_one, kept_with_results, and_idle],
        ids=lambda story: story.__name__,
    )
    async def test_leaves_the_same_keys_as_the_long_way(
        self, deployment: Deployment, story: Story
    ) -> None:
        found: list[object] = []
        longer = Scripts(lambda piece, text: "" if piece in SHORT_WAYS else text)
        for scripts in (Scripts(), longer):
            deployment.flush()
            async with Engine(deployment.url, clock=ManualClock(), scripts=scripts) as engine:
                found.append(await told(engine, story, deployment))
        assert found[0] == found[1]

    async def test_is_used_for_jobs_that_are_kept(self, deployment: Deployment) -> None:
        """The long way of these scripts fails; a claim uses it about once a second, to trim."""
        ends_only = Scripts(lambda piece, text: "error('long')" if piece == "ends" else text)
        first_claim = Scripts()
        ends_only["claim"] = first_claim["claim"]
        async with Engine(deployment.url, clock=ManualClock(), scripts=ends_only) as engine:
            await kept_one_by_one(engine, clock_of(engine))
            await kept_with_results(engine, clock_of(engine))
            assert (await engine.inspect.counts(REVIEWS)).kept == 7


class TestAPlainJob:
    async def test_that_is_twice_in_a_batch_is_submitted_once(self, engine: Engine) -> None:
        [job] = plain("a")
        first, again = await engine.submit_many(REVIEWS, [job, job])
        assert isinstance(first, Submitted)
        assert again == Submitted(first.job, State.READY, existed=True, same_payload=True)
        assert (await engine.inspect.counts(REVIEWS)).ready == 1

    async def test_that_is_completed_twice_in_an_exchange_counts_once(self, engine: Engine) -> None:
        await engine.submit_many(REVIEWS, plain("a"))
        lease = await claim_one(engine)
        await engine.settle([Complete(lease), Complete(lease)])
        assert (await engine.inspect.counts(REVIEWS)).totals["completed"] == 1

    async def test_leaves_nothing_behind(self, engine: Engine, deployment: Deployment) -> None:
        await engine.submit_many(REVIEWS, plain("a"))
        await engine.complete(await claim_one(engine))
        names = {key.rpartition(":")[2] for key in deployment.key_names() if ":call:" not in key}
        assert names <= {"meta", "events", "wake", "queues", "history"}

    async def test_that_was_reaped_cannot_be_completed_under_the_old_lease(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.submit_many(REVIEWS, plain("a", "b"))
        stalled = await claim_one(engine)
        clock.advance(LEASE)
        again = await claim(engine, 2)
        assert ids_of(again) == ["a", "b"]
        with pytest.raises(LeaseLost):
            await engine.complete(stalled)


async def test_a_lone_submit_that_fails_is_not_remembered(
    engine: Engine, other_engine: Engine, deployment: Deployment
) -> None:
    """A channel's first call has no memory to restore. Sent again, it must fail again."""
    await engine.submit(REVIEWS, b"1")
    keys = keys_of(QueueName(REVIEWS))
    set_numbers(deployment.ask, keys.meta, watched=0)
    deployment.ask("DEL", keys.queue)
    deployment.ask("SET", keys.queue, "in the way")
    before = {name for name in deployment.key_names() if ":call:" in name or ":job:" in name}
    call = Call("fresh", 1)
    for _ in range(2):
        with pytest.raises(WrongKeyType):
            await other_engine.submit_many(REVIEWS, plain("a"), call=call)
    after = {name for name in deployment.key_names() if ":call:" in name or ":job:" in name}
    assert after == before
