"""A follower of a queue, and a wait for a job's end, misses nothing, whenever it begins."""

import asyncio
import random
import sys
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import REVIEWS, claim, claim_one, leased, submit_ids
from tests.waiting import HANGS, eventually_async
from towpath.clock import hours, milliseconds, minutes, seconds
from towpath.engine import events, follow
from towpath.engine.engine import Engine
from towpath.engine.events import Event
from towpath.engine.keys import keys_of
from towpath.engine.model import Lease, job_ref
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import FellBehind, JobNotFound, StillOpen
from towpath.ids import QueueName

KEEPING = QueueOptions(keep=hours(1))
EVENTS = keys_of(QueueName(REVIEWS)).events
LONG = minutes(5)
"""Longer than any test: who returns was told."""
FLOOD = """
for _ = 1, 2000 do redis.call('XADD', KEYS[1], 'MAXLEN', 10, '*', 'submit', 'somebody') end
"""
"""More events than are kept."""


async def seen(events: AsyncIterator[Event], id: str) -> None:
    """Returns when something happened to the job."""
    async with asyncio.timeout(HANGS):
        async for event in events:
            if event.job.id == id:
                return


async def entered(engine: Engine, stack: AsyncExitStack) -> AsyncIterator[Event]:
    return await stack.enter_async_context(engine.events.follow(REVIEWS))


class TestAFollower:
    async def test_that_begins_while_the_first_one_begins_misses_nothing(
        self, engine: Engine, other_engine: Engine
    ) -> None:
        """A reader exists, but it reads nothing yet."""
        await other_engine.inspect.counts(REVIEWS)
        await submit_ids(engine, "before")
        async with AsyncExitStack() as stack:
            first = asyncio.create_task(entered(engine, stack))
            await asyncio.sleep(0)
            second = await entered(engine, stack)
            await submit_ids(other_engine, "a")
            await seen(second, "a")
            await seen(await first, "a")

    async def test_that_begins_as_the_last_one_leaves_misses_nothing(self, engine: Engine) -> None:
        last = AsyncExitStack()
        await entered(engine, last)
        leaving = asyncio.create_task(last.aclose())
        await asyncio.sleep(0)
        async with engine.events.follow(REVIEWS) as live:
            await leaving
            await submit_ids(engine, "a")
            await seen(live, "a")

    async def test_that_is_cancelled_at_its_beginning_leaves_nothing_behind(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        async with AsyncExitStack() as stack:
            coming = asyncio.create_task(entered(engine, stack))
            await asyncio.sleep(0)
            coming.cancel()
            await asyncio.wait([coming])

        async def nobody_waits() -> bool:
            return deployment.blocked() == 0

        await eventually_async(nobody_waits)
        async with engine.events.follow(REVIEWS) as live:
            await submit_ids(engine, "a")
            await seen(live, "a")

    async def test_gets_an_error_when_more_events_came_than_are_kept(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        """The process was busy elsewhere; the events that it did not read are gone."""
        await submit_ids(engine, "before")
        async with engine.events.follow(REVIEWS) as live:
            deployment.ask("EVAL", FLOOD, 1, EVENTS)
            with pytest.raises(FellBehind):
                await seen(live, "nobody")
            await submit_ids(engine, "a")
            await seen(live, "a")

    async def test_of_a_new_queue_gets_that_error_too(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        async with engine.events.follow(REVIEWS) as live:
            deployment.ask("EVAL", FLOOD, 1, EVENTS)
            with pytest.raises(FellBehind):
                await seen(live, "nobody")

    async def test_gets_an_error_when_the_stream_was_replaced(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        """Redis came back empty with its clock behind, so old cursors mean nothing."""
        deployment.ask("XADD", EVENTS, "99999999999999-0", "submit", "before")
        async with engine.events.follow(REVIEWS) as live:
            deployment.ask("DEL", EVENTS)
            _hang_up_all(deployment)
            with pytest.raises(FellBehind):
                await seen(live, "nobody")
            await submit_ids(engine, "a")
            await seen(live, "a")

    async def test_misses_nothing_when_the_reader_fails_by_a_defect(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The reader is started again and goes on where it was."""
        read, defects = events._Feed._read, iter([RuntimeError(), RuntimeError()])  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- planted there

        async def planted(feed: Any) -> None:
            await read(feed)
            for defect in defects:
                raise defect

        monkeypatch.setattr(events._Feed, "_read", planted)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- the same
        async with engine.events.follow(REVIEWS) as live:
            for id in ("a", "b", "c"):
                await submit_ids(engine, id)
            await seen(live, "a")
            await seen(live, "b")
            await seen(live, "c")
        assert not list(defects)

    async def test_gets_only_events_since_it_began(self, engine: Engine) -> None:
        """This holds even if a reader is under way that began before."""
        async with engine.events.follow(REVIEWS):
            for n in range(20):
                await submit_ids(engine, f"before-{n}")
                async with engine.events.follow(REVIEWS) as live:
                    await submit_ids(engine, f"since-{n}")
                    async with asyncio.timeout(HANGS):
                        assert (await anext(live)).job.id == f"since-{n}"


def _hang_up_all(deployment: Deployment) -> None:
    for master in deployment.masters:
        master.ask("CLIENT", "KILL", "TYPE", "normal")


class TestWaitingForAJobsEnd:
    @pytest.fixture(autouse=True)
    async def keeping(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, KEEPING)

    async def test_that_begins_as_another_wait_ends_returns(self, engine: Engine) -> None:
        for n in range(20):
            lease, other = await _two(engine, n)
            first = asyncio.create_task(engine.events.ended(lease.job, within=LONG))
            await engine.complete(lease)
            async with asyncio.timeout(HANGS):
                await first
                second = asyncio.create_task(engine.events.ended(other.job, within=LONG))
                await asyncio.sleep(0)
                await engine.complete(other)
                assert (await second).state is State.DONE

    async def test_returns_when_more_events_came_than_are_kept(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        lease, other = await _two(engine, 0)
        ended = asyncio.create_task(engine.events.ended(lease.job, within=LONG))
        entered = asyncio.create_task(engine.events.ended(other.job, within=LONG))
        await engine.complete(other)
        await entered
        # All of this happens while the event loop of *engine* stands still.
        deployment.ask("EVAL", FLOOD, 1, EVENTS)
        _complete_elsewhere(deployment, lease)
        deployment.ask("EVAL", FLOOD, 1, EVENTS)
        async with asyncio.timeout(HANGS):
            assert (await ended).state is State.DONE

    async def test_returns_without_any_event(
        self, engine: Engine, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With full memory Redis writes no events, and nothing else fails."""
        monkeypatch.setattr(follow, "LOOK_EVERY", milliseconds(50))
        lease = await leased(engine)
        ended = asyncio.create_task(engine.events.ended(lease.job, within=LONG))
        await asyncio.sleep(0)
        deployment.ask("DEL", EVENTS)
        deployment.ask("SET", EVENTS, "no stream")
        await engine.complete(lease)
        async with asyncio.timeout(HANGS):
            assert (await ended).state is State.DONE

    async def test_reads_the_job_once_more_when_its_time_is_over(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        lease = await leased(engine)
        deployment.ask("DEL", EVENTS)
        deployment.ask("SET", EVENTS, "no stream")
        ended = asyncio.create_task(engine.events.ended(lease.job, within=seconds(1)))
        await asyncio.sleep(0)
        await engine.complete(lease)
        assert (await ended).state is State.DONE

    async def test_for_a_time_of_zero_reads_the_job_once(self, engine: Engine) -> None:
        lease = await leased(engine)
        with pytest.raises(StillOpen):
            await engine.events.ended(lease.job, within=seconds(0))
        await engine.complete(lease)
        assert (await engine.events.ended(lease.job, within=seconds(0))).state is State.DONE

    async def test_is_refused_when_the_job_is_removed(self, engine: Engine) -> None:
        await engine.queues.configure("forgetful", QueueOptions(keep=seconds(0)))
        await engine.submit("forgetful", b"", id="a")
        [lease] = await engine.claim("forgetful", worker="anna", lease=seconds(30))
        ended = asyncio.create_task(engine.events.ended(lease.job, within=LONG))
        await asyncio.sleep(0)
        await engine.complete(lease)
        async with asyncio.timeout(HANGS):
            with pytest.raises(JobNotFound):
                await ended

    async def test_by_several_callers_returns_to_all_of_them(self, engine: Engine) -> None:
        lease = await leased(engine)
        waits = [asyncio.create_task(engine.events.ended(lease.job, within=LONG)) for _ in range(5)]
        await asyncio.sleep(0)
        waits[0].cancel()
        await engine.complete(lease, b"result")
        async with asyncio.timeout(HANGS):
            assert [(await wait).result for wait in waits[1:]] == [b"result"] * 4

    async def test_returns_in_a_random_walk(self, engine: Engine, deployment: Deployment) -> None:
        """Waits and followers come, go and are cancelled; connections break; a stream is cut. The
        seed is in the failure.
        """
        seed = random.randrange(2**32)
        chance = random.Random(seed)
        try:
            async with asyncio.timeout(HANGS):
                await _random_walk(engine, deployment, chance)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


async def _random_walk(engine: Engine, deployment: Deployment, chance: random.Random) -> None:
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        for n in range(60):
            await submit_ids(engine, f"walk-{n}")
            lease = await claim_one(engine)
            ended = group.create_task(engine.events.ended(lease.job, within=LONG))
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            match chance.randrange(6):
                case 0:
                    passing = group.create_task(entered(engine, stack))
                    for _ in range(chance.randrange(9)):
                        await asyncio.sleep(0)
                    passing.cancel()
                case 1:
                    async with engine.events.follow(REVIEWS):
                        pass
                case 2:
                    _hang_up_all(deployment)
                case 3:
                    deployment.ask("XTRIM", EVENTS, "MAXLEN", 0)
                case 4:
                    deployment.ask("DEL", EVENTS)
                case _:
                    pass
            await engine.complete(lease)
            if chance.random() < 0.5:
                assert (await ended).state is State.DONE


async def _two(engine: Engine, n: int) -> tuple[Lease, Lease]:
    await submit_ids(engine, f"{n}-a", f"{n}-b")
    one, two = await claim(engine, count=2)
    return one, two


def _complete_elsewhere(deployment: Deployment, lease: Lease) -> None:
    """Completes the job in another event loop, before this function returns."""

    async def complete() -> None:
        async with Engine(deployment.url) as engine:
            await engine.complete(lease)

    thread = threading.Thread(target=lambda: asyncio.run(complete()))
    thread.start()
    thread.join()


class TestTheWork:
    """The work is counted in function calls, which are the same on every machine."""

    async def test_of_many_waits_grows_as_they_do(self, engine: Engine) -> None:
        """Each event goes to the waits for its job, not to all waits."""
        await engine.queues.configure(REVIEWS, KEEPING)
        few = await _work(_waits(engine, 50))
        many = await _work(_waits(engine, 400))
        assert many < 8 * few * 1.5

    async def test_of_many_followers_is_that_of_one(self, engine: Engine) -> None:
        """Events are kept once for all followers; one that does not read costs nothing."""
        one = await _work(_followed(engine, 1))
        many = await _work(_followed(engine, 100))
        assert many < one * 2

    async def test_of_reading_many_jobs_is_shared(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        """One call reads five hundred jobs, when waits begin and when their time is over."""
        await submit_ids(engine, *(f"{n}" for n in range(400)))
        before = deployment.calls("evalsha", "eval")
        refs = [job_ref(REVIEWS, f"{n}") for n in range(400)]
        waits = [engine.events.ended(ref, within=seconds(1)) for ref in refs]
        ends = await asyncio.gather(*waits, return_exceptions=True)
        assert all(isinstance(end, StillOpen) for end in ends)
        assert deployment.calls("evalsha", "eval") - before < 20


async def _waits(engine: Engine, count: int) -> None:
    run = f"{count}-"
    await submit_ids(engine, *(f"{run}{n}" for n in range(count)))
    leases = await claim(engine, count=count)
    waits = [asyncio.create_task(engine.events.ended(lease.job, within=LONG)) for lease in leases]
    for lease in leases:
        await engine.complete(lease)
    async with asyncio.timeout(HANGS):
        for wait in waits:
            await wait


async def _followed(engine: Engine, followers: int) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(followers):
            await entered(engine, stack)
        last = await entered(engine, stack)
        events = [f"{followers}-{n}" for n in range(500)]
        for start in range(0, 5000, 500):
            await submit_ids(engine, *(f"{name}-{start}" for name in events))
        await seen(last, f"{events[-1]}-4500")


async def _work(doing: Coroutine[Any, Any, None]) -> int:
    """How many functions were called meanwhile."""
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        await doing
    finally:
        sys.setprofile(None)
    return calls
