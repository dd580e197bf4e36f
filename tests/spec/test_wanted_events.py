"""Events are written while somebody follows them, and a gap is always marked."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.amounts import deployments
from tests.fixtures import SLOW_ANSWERS
from tests.queue_numbers import number, set_numbers
from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import REVIEWS, claim_one, leased, submit_ids
from tests.waiting import HANGS, eventually_async
from towpath.clock import ManualClock, hours, milliseconds, minutes, seconds
from towpath.embedded.process import items
from towpath.engine import events, follow
from towpath.engine.engine import Engine
from towpath.engine.events import Event, Wanted
from towpath.engine.keys import keys_of
from towpath.engine.model import JobInfo, job_ref
from towpath.engine.options import EventPolicy, QueueOptions
from towpath.engine.states import State
from towpath.errors import FellBehind, QueueHasNoEvents
from towpath.ids import QueueName

pytestmark = deployments

QUEUE = QueueName(REVIEWS)
KEYS = keys_of(QUEUE)
LONG = minutes(5)
"""Longer than any test: who returns was told."""
FIRST = "first"


@pytest.fixture(autouse=True)
async def begun(engine: Engine, clock: ManualClock) -> None:
    """A queue in use, after its first second, in which all events are written."""
    await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
    await engine.complete(await leased(engine, FIRST))
    clock.advance(seconds(2))


async def live_one(engine: Engine, id: str) -> None:
    """Submits, claims and completes a job."""
    await submit_ids(engine, id)
    await engine.complete(await claim_one(engine))


def written(deployment: Deployment) -> list[str]:
    """The verbs of the events that are kept, in order."""
    entries = items(deployment.ask("XRANGE", KEYS.events, "-", "+"))
    words = [items(items(entry)[1]) for entry in entries]
    return [bytes(word).decode() for flat in words for word in flat[::2]]  # pyright: ignore[reportArgumentType] -- replies are untyped


async def next_of(live: AsyncIterator[Event]) -> tuple[str, str]:
    async with asyncio.timeout(HANGS):
        event = await anext(live)
    return event.verb, event.job.id


def lose_wanted(deployment: Deployment) -> None:
    """Loses what was written last: as in a fail-over, every connection is lost too."""
    for wanted in Wanted:
        set_numbers(deployment.ask, KEYS.meta, **{wanted: 0})
        deployment.ask("HDEL", KEYS.meta, f"{wanted}_as")
    for master in deployment.masters:
        master.ask("CLIENT", "KILL", "TYPE", "normal")


class TestAJobThatNobodyFollows:
    async def test_writes_no_event_but_the_mark_of_the_first_gap(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        before = deployment.calls("xadd")
        for n in range(10):
            await live_one(engine, f"{n}")
        assert deployment.calls("xadd") - before == 1
        assert written(deployment)[-1] == "gap"

    async def test_has_its_events_in_a_queue_that_writes_all(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await engine.queues.reconfigure(REVIEWS, QueueOptions(events=EventPolicy.ALL))
        await live_one(engine, "a")
        assert written(deployment)[-3:] == ["submit", "claim", "complete"]

    async def test_writes_no_second_mark_after_the_policy_was_all(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        for policy in (EventPolicy.ALL, EventPolicy.FOLLOWED):
            await engine.queues.reconfigure(REVIEWS, QueueOptions(events=policy))
            await live_one(engine, policy)
        await live_one(engine, "last")
        assert written(deployment)[-4:] == ["submit", "claim", "complete", "gap"]


class TestAJobThatSomebodyFollows:
    async def test_has_all_its_events_if_the_queue_is_followed(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        async with engine.events.follow(REVIEWS) as live:
            await live_one(engine, "a")
            told = [await next_of(live) for _ in range(3)]
        assert told == [("submit", "a"), ("claim", "a"), ("complete", "a")]

    async def test_has_only_its_end_if_somebody_waits_for_its_result(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        lease = await leased(engine, "a")
        ended = asyncio.create_task(engine.events.ended(lease.job, within=LONG))
        await heard(deployment)
        await live_one(engine, "b")
        await engine.complete(lease)
        async with asyncio.timeout(HANGS):
            await ended
        assert written(deployment)[3:] == ["gap", "complete", "complete"]

    async def test_has_them_for_a_minute_after_the_last_follower_left(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        async with engine.events.follow(REVIEWS):
            pass
        clock.advance(seconds(60))
        await live_one(engine, "a")
        assert written(deployment)[-3:] == ["submit", "claim", "complete"]
        clock.advance(seconds(60))
        await live_one(engine, "b")
        assert written(deployment)[-4:] == ["submit", "claim", "complete", "gap"]

    async def test_has_them_in_a_new_queue(self, engine: Engine) -> None:
        """A follower of a queue that does not exist yet cannot register in Redis."""
        async with engine.events.follow("new") as live:
            await engine.submit("new", b"", id="a")
            assert await next_of(live) == ("submit", "a")
            await engine.submit("new", b"", id="b")
            assert await next_of(live) == ("submit", "b")

    async def test_has_them_while_a_follower_stays(
        self, engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The follower registers again and again, however long it stays."""
        monkeypatch.setattr(events, "_WANTED_AGAIN", 0.0)
        async with engine.events.follow(REVIEWS) as live:
            for n in range(5):
                clock.advance(seconds(80))
                await submit_ids(engine, f"{n}")
                assert await next_of(live) == ("submit", f"{n}")
                await submit_ids(engine, f"{n}-again")
                assert await next_of(live) == ("submit", f"{n}-again")


async def heard(deployment: Deployment) -> None:
    """Returns when Redis knows that somebody waits for results."""

    async def is_known() -> bool:
        return number(deployment.ask, KEYS.meta, Wanted.ENDS) > 0

    await eventually_async(is_known)


class TestAGapInTheEvents:
    async def test_is_reported_to_a_reader_with_an_earlier_cursor(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        known = await engine.events.list(REVIEWS)
        assert [event.verb for event in known] == ["submit", "claim", "complete"]
        clock.advance(minutes(5))
        await live_one(engine, "unseen")
        with pytest.raises(FellBehind) as gap:
            await engine.events.list(REVIEWS, after=known[-1].cursor)
        await live_one(engine, "seen")
        later = await engine.events.list(REVIEWS, after=gap.value.cursor)
        assert [event.job.id for event in later] == ["seen"] * 3

    async def test_ends_a_page_of_events(self, engine: Engine, clock: ManualClock) -> None:
        await live_one(engine, "unseen")
        await engine.events.newest(REVIEWS)
        await live_one(engine, "seen")
        before = await engine.events.list(REVIEWS)
        assert {event.job.id for event in before} == {FIRST}
        with pytest.raises(FellBehind) as gap:
            await engine.events.list(REVIEWS, after=before[-1].cursor)
        after = await engine.events.list(REVIEWS, after=gap.value.cursor)
        assert {event.job.id for event in after} == {"seen"}

    async def test_is_not_reported_where_nothing_happened(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        last = (await engine.events.list(REVIEWS))[-1]
        clock.advance(hours(1))
        assert await engine.events.list(REVIEWS, after=last.cursor) == []
        await submit_ids(engine, "a")
        [event] = await engine.events.list(REVIEWS, after=last.cursor)
        assert event.job.id == "a"

    async def test_is_reported_after_a_cursor_that_is_no_longer_kept(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        first, *_ = await engine.events.list(REVIEWS)
        deployment.ask("XTRIM", KEYS.events, "MAXLEN", 1)
        with pytest.raises(FellBehind) as gap:
            await engine.events.list(REVIEWS, after=first.cursor)
        [kept] = await engine.events.list(REVIEWS, after=gap.value.cursor)
        assert kept.verb == "complete"

    async def test_is_reported_after_a_cursor_that_a_fail_over_lost(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        *_, before, last = await engine.events.list(REVIEWS)
        deployment.ask("XDEL", KEYS.events, last.cursor)
        await submit_ids(engine, "a")
        with pytest.raises(FellBehind) as gap:
            await engine.events.list(REVIEWS, after=last.cursor)
        assert gap.value.cursor == before.cursor
        [event] = await engine.events.list(REVIEWS, after=gap.value.cursor)
        assert event.job.id == "a"

    async def test_is_reported_to_a_follower_that_was_frozen(
        self, engine: Engine, other_engine: Engine, clock: ManualClock
    ) -> None:
        async with engine.events.follow(REVIEWS) as live:
            clock.advance(hours(1))
            await submit_ids(other_engine, "unseen")
            with pytest.raises(FellBehind):
                await next_of(live)
            await submit_ids(other_engine, "seen")
            assert await next_of(live) == ("submit", "seen")

    async def test_before_the_start_of_a_follower_is_not_reported_to_it(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        """This holds too if another follower has kept the reader going."""
        lease = await leased(engine, "a")
        ended = asyncio.create_task(engine.events.ended(lease.job, within=LONG))
        await heard(deployment)
        for n in range(3):
            async with engine.events.follow(REVIEWS) as live:
                await submit_ids(engine, f"{n}")
                assert await next_of(live) == ("submit", f"{n}")
            clock.advance(minutes(2))
            await submit_ids(engine, f"unseen-{n}")
        await engine.complete(lease)
        async with asyncio.timeout(HANGS):
            assert (await ended).state is State.DONE

    async def test_makes_waits_for_a_result_read_their_jobs(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        lease = await leased(engine, "a")
        ended = asyncio.create_task(engine.events.ended(lease.job, within=LONG))
        await heard(deployment)
        clock.advance(hours(1))
        await engine.complete(lease)
        async with asyncio.timeout(HANGS):
            assert (await ended).state is State.DONE

    async def test_is_reported_to_a_follower_whose_registration_was_lost(
        self, engine: Engine, other_engine: Engine, deployment: Deployment
    ) -> None:
        async with engine.events.follow(REVIEWS) as live:
            lose_wanted(deployment)
            await submit_ids(other_engine, "unseen")
            with pytest.raises(FellBehind):
                await next_of(live)
            await submit_ids(other_engine, "seen")
            assert await next_of(live) == ("submit", "seen")

    async def test_is_reported_to_the_follower_whose_registration_was_lost_before_another_came(
        self, engine: Engine, other_engine: Engine, deployment: Deployment
    ) -> None:
        """Redis knows of a follower again, but the first one has missed something."""
        async with engine.events.follow(REVIEWS) as live:
            for wanted in Wanted:
                set_numbers(deployment.ask, KEYS.meta, **{wanted: 0})
                deployment.ask("HDEL", KEYS.meta, f"{wanted}_as")
            await submit_ids(other_engine, "unseen")
            async with other_engine.events.follow(REVIEWS):
                for master in deployment.masters:
                    master.ask("CLIENT", "KILL", "TYPE", "normal")
                with pytest.raises(FellBehind):
                    await next_of(live)

    async def test_is_reported_to_a_follower_when_redis_lost_everything(
        self, engine: Engine, other_engine: Engine, deployment: Deployment
    ) -> None:
        async with engine.events.follow(REVIEWS) as live:
            deployment.flush()
            for master in deployment.masters:
                master.ask("CLIENT", "KILL", "TYPE", "normal")
            with pytest.raises(FellBehind):
                await next_of(live)
            await submit_ids(other_engine, "again")
            assert await next_of(live) == ("submit", "again")


async def set_policy(engine: Engine, policy: EventPolicy) -> None:
    await engine.queues.reconfigure(REVIEWS, QueueOptions(keep=hours(1), events=policy))


class TestAQueueWhosePolicyChangesToNoEvents:
    """The change happens while somebody follows the queue."""

    async def test_ends_each_follower_once(self, engine: Engine, other_engine: Engine) -> None:
        async with engine.events.follow(REVIEWS) as one, engine.events.follow(REVIEWS) as two:
            await submit_ids(engine, "before")
            await set_policy(other_engine, EventPolicy.NONE)
            await submit_ids(other_engine, "unseen")
            for live in (one, two):
                assert await next_of(live) == ("submit", "before")
                with pytest.raises(QueueHasNoEvents):
                    await next_of(live)
            await submit_ids(other_engine, "unseen too")
            await set_policy(other_engine, EventPolicy.FOLLOWED)
            async with other_engine.events.follow(REVIEWS):
                await submit_ids(other_engine, "again")
                for live in (one, two):
                    with pytest.raises(FellBehind):
                        await next_of(live)
                await submit_ids(other_engine, "later")
                for live in (one, two):
                    assert ("submit", "later") in [await next_of(live), await next_of(live)]

    async def test_ends_a_follower_that_fell_behind_meanwhile(
        self, engine: Engine, other_engine: Engine, deployment: Deployment
    ) -> None:
        async with engine.events.follow(REVIEWS) as live:
            await set_policy(other_engine, EventPolicy.NONE)
            deployment.ask("DEL", KEYS.events)
            await submit_ids(other_engine, "unseen")
            ends = [await error_of(live), await error_of(live)]
        assert ends == [FellBehind, QueueHasNoEvents]

    async def test_ends_a_follower_without_any_event(
        self,
        engine: Engine,
        other_engine: Engine,
        deployment: Deployment,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(events, "_WANTED_AGAIN", 0.0)
        async with engine.events.follow(REVIEWS) as live:
            await set_policy(other_engine, EventPolicy.NONE)
            for master in deployment.masters:
                master.ask("CLIENT", "KILL", "TYPE", "normal")
            assert await error_of(live) is QueueHasNoEvents

    async def test_refuses_a_follower_that_knew_other_options(
        self, engine: Engine, other_engine: Engine
    ) -> None:
        async with engine.events.follow(REVIEWS):
            await set_policy(other_engine, EventPolicy.NONE)
            with pytest.raises(QueueHasNoEvents):
                async with engine.events.follow(REVIEWS):
                    pass
            with pytest.raises(QueueHasNoEvents):
                async with engine.events.watch(REVIEWS):
                    pass

    async def test_ends_a_watch_once(self, engine: Engine, other_engine: Engine) -> None:
        async with engine.events.watch(REVIEWS) as watch:
            watch.add("again")
            await set_policy(other_engine, EventPolicy.NONE)
            await submit_ids(other_engine, "unseen")
            with pytest.raises(QueueHasNoEvents):
                await changed_until(watch, "again")
            await set_policy(other_engine, EventPolicy.FOLLOWED)
            async with other_engine.events.follow(REVIEWS):
                await submit_ids(other_engine, "again")
                await changed_until(watch, "again")

    async def test_still_gives_results_to_waits_for_them(
        self, engine: Engine, other_engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(follow, "LOOK_EVERY", milliseconds(20))
        lease = await leased(engine, "a")
        ended = asyncio.create_task(engine.events.ended(lease.job, within=LONG))
        async with engine.events.follow(REVIEWS) as live:
            await set_policy(other_engine, EventPolicy.NONE)
            await submit_ids(other_engine, "unseen")
            assert await error_of(live) is QueueHasNoEvents
        await other_engine.complete(lease)
        async with asyncio.timeout(HANGS):
            assert (await ended).state is State.DONE

    async def test_has_no_event_for_each_job(
        self, engine: Engine, other_engine: Engine, deployment: Deployment
    ) -> None:
        async with engine.events.follow(REVIEWS) as live:
            await set_policy(other_engine, EventPolicy.NONE)
            await submit_ids(other_engine, "unseen")
            assert await error_of(live) is QueueHasNoEvents
            before = len(written(deployment))
            for n in range(10):
                await submit_ids(other_engine, f"{n}")
            assert len(written(deployment)) <= before + 1


async def error_of(live: AsyncIterator[Event]) -> type[Exception]:
    """The class of the error that *live* raises next."""
    try:
        pytest.fail(f"there was {await next_of(live)}")
    except (FellBehind, QueueHasNoEvents) as error:
        return type(error)


MOMENTS = range(6)
"""Before and after each call of a wait that begins: a look, the word that it waits, a look."""


class TestAWaitForAResult:
    """The job ends at each moment of a wait that has just begun."""

    @pytest.mark.parametrize("moment", MOMENTS)
    async def test_misses_no_end(
        self, engine: Engine, waiting: Engine, moment: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wait, ended = await begin_wait(engine, waiting, moment, monkeypatch)
        async with asyncio.timeout(HANGS):
            await ended.wait()
            assert (await wait).state is State.DONE

    async def test_would_miss_an_end_if_it_registered_after_its_last_look(
        self, engine: Engine, waiting: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A planted fault: Redis hears of the wait after its last look, and the job ends between
        the two.
        """
        plant_late_word(waiting, monkeypatch)
        wait, ended = await begin_wait(engine, waiting, MOMENTS[-1], monkeypatch)
        async with asyncio.timeout(HANGS):
            await ended.wait()
        done, _ = await asyncio.wait((wait,), timeout=1)
        wait.cancel()
        assert not done


@pytest.fixture
async def waiting(
    deployment: Deployment, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Engine]:
    """An engine that reads jobs only when it is asked to."""
    monkeypatch.setattr(follow, "LOOK_EVERY", hours(1))
    async with Engine(deployment.url, clock=clock, limits=SLOW_ANSWERS) as engine:
        yield engine


async def begin_wait(
    engine: Engine, waiting: Engine, moment: int, patch: pytest.MonkeyPatch
) -> tuple[asyncio.Task[JobInfo], asyncio.Event]:
    """Waits for a job that ends at *moment*; returns the event that says so."""
    lease, ended, number = await leased(engine, "awaited"), asyncio.Event(), itertools.count()
    store = waiting._store  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- the moments are between its calls
    read = store.read

    async def end(at: int) -> None:
        if at == moment:
            await engine.complete(lease)
            ended.set()

    async def watched(verb: str, *args: Any) -> Any:
        at = 2 * next(number)
        await end(at)
        answer = await read(verb, *args)
        await end(at + 1)
        return answer

    patch.setattr(store, "read", watched)
    return asyncio.create_task(waiting.events.ended(lease.job, within=LONG)), ended


def plant_late_word(waiting: Engine, patch: pytest.MonkeyPatch) -> None:
    """Registers the wait only with the call after the last look: here, never."""
    store = waiting._store  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- planted there
    read = store.read

    async def late(verb: str, *args: Any) -> Any:
        if verb != "follow":
            return await read(verb, *args)
        [newest] = await store.command("XREVRANGE", KEYS.events, "+", "-", "COUNT", 1)
        return [b"late", newest[0]]

    patch.setattr(store, "read", late)


async def changed_until(watch: events.Watch, id: str) -> set[str]:
    """What *watch* reported until the change of *id*, which is included."""
    told: set[str] = set()
    async with asyncio.timeout(HANGS):
        while id not in told:
            told |= await watch.change(within=LONG)
    return told


async def test_a_watch_of_ends_reports_no_gap_in_the_events_of_others(
    engine: Engine, deployment: Deployment
) -> None:
    async with engine.events.watch(REVIEWS, events.ENDS) as watch:
        for id in ("open", "one", "two"):
            watch.add(id)
        await live_one(engine, "one")
        await changed_until(watch, "one")
        await submit_ids(engine, "open")
        await engine.events.newest(REVIEWS)  # wants all events, and is never seen again
        set_numbers(deployment.ask, KEYS.meta, **{Wanted.ALL: 1})
        gaps = written(deployment).count("gap")
        await submit_ids(engine, "another")
        assert written(deployment).count("gap") == gaps + 1
        await engine.cancel(job_ref(REVIEWS, "another"))
        await engine.cancel(job_ref(REVIEWS, "open"))
        await live_one(engine, "two")
        told = await changed_until(watch, "two")
        assert "one" not in told
