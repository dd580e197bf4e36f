"""fire: submit the jobs of a schedule's next firings, once, whichever process is first."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import REVIEWS, claim, claim_one, ids_of, run_all
from tests.waiting import HANGS
from towpath.clock import ManualClock, hours, milliseconds, minutes, seconds
from towpath.engine.engine import LARGEST_BATCH, Engine
from towpath.engine.model import Call, NewJob, Submitted, job_ref, new_job
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.engine.stored_schedules import LastFiring, QueueSchedules
from towpath.errors import (
    FiringTaken,
    InvalidName,
    InvalidOption,
    NotYet,
    PayloadTooLarge,
    QueueFull,
    ScheduleNotFound,
)

NIGHTLY = "nightly"


async def planted(engine: Engine, clock: ManualClock, name: str = NIGHTLY) -> datetime:
    """A schedule that was first seen now; then an hour passes."""
    first = clock.now
    await engine.schedules.fire_due(REVIEWS, name, [], after=None, upto=first, about="0 3 * * *")
    clock.advance(hours(1))
    return first


async def last_of(engine: Engine, name: str = NIGHTLY) -> datetime:
    return (await engine.schedules.of(REVIEWS)).last[name].at


def jobs(*ids: str) -> list[NewJob]:
    return [new_job(b"", id=id) for id in ids]


class TestADeclaredSchedule:
    async def test_does_not_exist_at_first(self, engine: Engine, clock: ManualClock) -> None:
        assert await engine.schedules.of(REVIEWS) == QueueSchedules(clock.now, {})

    async def test_begins_where_it_was_first_seen(self, engine: Engine, clock: ManualClock) -> None:
        first = await planted(engine, clock)
        known = await engine.schedules.of(REVIEWS)
        seen = LastFiring(first, "0 3 * * *", fired=False)
        assert known == QueueSchedules(clock.now, {NIGHTLY: seen})
        assert (await engine.inspect.counts(REVIEWS)).ready == 0

    async def test_begins_only_once(self, engine: Engine, clock: ManualClock) -> None:
        first = await planted(engine, clock)
        with pytest.raises(FiringTaken) as refusal:
            await engine.schedules.fire_due(REVIEWS, NIGHTLY, [], after=None, upto=clock.now)
        assert refusal.value.last == first
        assert await last_of(engine) == first

    async def test_is_identified_by_queue_and_name(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await planted(engine, clock)
        await engine.schedules.fire_due(REVIEWS, "other", [], after=None, upto=clock.now)
        await engine.schedules.fire_due("reports", NIGHTLY, [], after=None, upto=clock.now)
        assert set((await engine.schedules.of(REVIEWS)).last) == {NIGHTLY, "other"}
        assert set((await engine.schedules.of("reports")).last) == {NIGHTLY}

    @pytest.mark.parametrize("name", ["{b}race", "a:b#c d", "jób·ß·日本", "'\"\\%s", "x" * 256])
    async def test_may_have_names_that_look_like_keys(
        self, engine: Engine, clock: ManualClock, name: str
    ) -> None:
        first = await planted(engine, clock, name)
        await engine.schedules.fire_due(REVIEWS, name, jobs("a"), after=first, upto=clock.now)
        assert await last_of(engine, name) == clock.now

    async def test_goes_by_the_clock_of_redis_not_of_the_caller(
        self, deployment: Deployment
    ) -> None:
        async with Engine(deployment.url) as engine:
            before = deployment.time()
            assert (await engine.schedules.of(REVIEWS)).now >= before


class TestFiring:
    async def test_submits_the_jobs_and_advances_the_last_firing(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        first = await planted(engine, clock)
        upto = first + minutes(20)
        answers = await engine.schedules.fire_due(
            REVIEWS, NIGHTLY, jobs("a", "b"), after=first, upto=upto, about="*/10 * * * *"
        )
        assert answers == [Submitted(job_ref(REVIEWS, id), State.READY) for id in ("a", "b")]
        known = await engine.schedules.of(REVIEWS)
        assert known.last == {NIGHTLY: LastFiring(upto, "*/10 * * * *")}
        assert await run_all(engine) == ["a", "b"]

    async def test_happens_once(
        self, engine: Engine, other_engine: Engine, clock: ManualClock
    ) -> None:
        """The second process learns what the last firing is, and changes nothing."""
        first = await planted(engine, clock)
        await engine.schedules.fire_due(REVIEWS, NIGHTLY, jobs("a"), after=first, upto=clock.now)
        with pytest.raises(FiringTaken) as refusal:
            await other_engine.schedules.fire_due(
                REVIEWS, NIGHTLY, jobs("b"), after=first, upto=clock.now
            )
        assert refusal.value.last == clock.now
        assert ids_of(await claim(engine, 9)) == ["a"]

    async def test_happens_once_in_a_race(
        self, engine: Engine, other_engine: Engine, clock: ManualClock
    ) -> None:
        """The ids of the jobs differ, so only the comparison of last firings prevents a
        second one.
        """
        last = await planted(engine, clock)
        for firing in range(20):
            upto = last + seconds(1)
            racers = [
                asyncio.create_task(
                    racer.schedules.fire_due(
                        REVIEWS, NIGHTLY, jobs(f"{firing}-{n}"), after=last, upto=upto
                    )
                )
                for n, racer in enumerate([engine, other_engine] * 3)
            ]
            await asyncio.wait(racers)
            assert sum(racer.exception() is None for racer in racers) == 1
            last = upto
        assert (await engine.inspect.counts(REVIEWS)).ready == 20

    async def test_a_schedule_that_was_never_seen_is_refused(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        with pytest.raises(FiringTaken) as refusal:
            await engine.schedules.fire_due(
                REVIEWS, NIGHTLY, jobs("a"), after=clock.now - hours(1), upto=clock.now
            )
        assert refusal.value.last is None
        assert await claim(engine) == []

    async def test_distinguishes_instants_a_millisecond_apart(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        first = await planted(engine, clock)
        with pytest.raises(FiringTaken):
            await engine.schedules.fire_due(
                REVIEWS, NIGHTLY, [], after=first + milliseconds(1), upto=clock.now
            )
        assert await last_of(engine) == first

    async def test_never_happens_before_its_time(self, engine: Engine, clock: ManualClock) -> None:
        first = await planted(engine, clock)
        upto = clock.now + milliseconds(1)
        with pytest.raises(NotYet) as refusal:
            await engine.schedules.fire_due(REVIEWS, NIGHTLY, jobs("a"), after=first, upto=upto)
        assert (refusal.value.upto, refusal.value.now) == (upto, clock.now)
        assert await last_of(engine) == first
        clock.advance(milliseconds(1))
        await engine.schedules.fire_due(REVIEWS, NIGHTLY, jobs("a"), after=first, upto=upto)

    async def test_without_jobs_skips_firings(self, engine: Engine, clock: ManualClock) -> None:
        first = await planted(engine, clock)
        assert (
            await engine.schedules.fire_due(REVIEWS, NIGHTLY, [], after=first, upto=clock.now) == []
        )
        assert await last_of(engine) == clock.now
        assert (await engine.inspect.counts(REVIEWS)).totals["submitted"] == 0

    async def test_counts_an_existing_job_as_submitted(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """The job id names the firing: it is one job, even after its id is forgotten."""
        first = await planted(engine, clock)
        await engine.submit(REVIEWS, b"", id="a")
        [answer] = await engine.schedules.fire_due(
            REVIEWS, NIGHTLY, jobs("a"), after=first, upto=clock.now
        )
        assert answer.existed
        assert await run_all(engine) == ["a"]

    async def test_keeps_all_options_of_its_jobs(self, engine: Engine, clock: ManualClock) -> None:
        first = await planted(engine, clock)
        job = new_job(b"x", id="a", priority=9, lane="octo", headers={"scheduled": "now"})
        await engine.schedules.fire_due(REVIEWS, NIGHTLY, [job], after=first, upto=clock.now)
        lease = await claim_one(engine)
        assert (lease.payload, lease.priority, lease.lane) == (b"x", 9, "octo")
        assert lease.headers == {"scheduled": "now"}

    async def test_wakes_a_waiting_worker(self, deployment: Deployment) -> None:
        async with Engine(deployment.url) as engine:
            waiting = asyncio.create_task(
                engine.claim(REVIEWS, worker="anna", lease=seconds(30), wait=seconds(60))
            )
            now = (await engine.schedules.of(REVIEWS)).now
            await engine.schedules.fire_due(REVIEWS, NIGHTLY, jobs("a"), after=None, upto=now)
            async with asyncio.timeout(HANGS):
                assert ids_of(await waiting) == ["a"]


class TestAFiringWithoutRoomInItsQueue:
    async def test_stays_due(self, engine: Engine, clock: ManualClock) -> None:
        """All jobs are submitted, or none: a refused firing is tried again, not lost."""
        await engine.queues.configure(REVIEWS, QueueOptions(max_length=2))
        first = await planted(engine, clock)
        with pytest.raises(QueueFull):
            await engine.schedules.fire_due(
                REVIEWS, NIGHTLY, jobs("a", "b", "c"), after=first, upto=clock.now
            )
        assert await last_of(engine) == first
        assert (await engine.inspect.counts(REVIEWS)).ready == 0
        await engine.schedules.fire_due(
            REVIEWS, NIGHTLY, jobs("a", "b"), after=first, upto=clock.now
        )

    async def test_needs_no_room_for_a_job_that_exists(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_length=1))
        first = await planted(engine, clock)
        await engine.submit(REVIEWS, b"", id="a")
        await engine.schedules.fire_due(REVIEWS, NIGHTLY, jobs("a"), after=first, upto=clock.now)
        assert await last_of(engine) == clock.now


class TestForgettingADeclaredSchedule:
    async def test_leaves_nothing_behind(
        self, engine: Engine, clock: ManualClock, deployment: Deployment
    ) -> None:
        await engine.queues.options(REVIEWS)
        await planted(engine, clock)
        assert "{reviews}:recurring" in deployment.key_names()
        await engine.schedules.delete_declared(REVIEWS, NIGHTLY)
        assert (await engine.schedules.of(REVIEWS)).last == {}
        assert {key for key in deployment.key_names() if ":call:" not in key} == {
            "{reviews}:meta",
            "towpath:queues",
        }

    async def test_keeps_its_jobs_and_other_schedules(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        first = await planted(engine, clock)
        await engine.schedules.fire_due(REVIEWS, NIGHTLY, jobs("a"), after=first, upto=clock.now)
        await planted(engine, clock, "other")
        await engine.schedules.delete_declared(REVIEWS, NIGHTLY)
        assert set((await engine.schedules.of(REVIEWS)).last) == {"other"}
        assert await run_all(engine) == ["a"]

    async def test_that_does_not_exist_is_refused(self, engine: Engine) -> None:
        with pytest.raises(ScheduleNotFound, match=NIGHTLY):
            await engine.schedules.delete_declared(REVIEWS, NIGHTLY)

    async def test_by_the_release_before_is_not_done_again(
        self, engine: Engine, clock: ManualClock, deployment: Deployment
    ) -> None:
        """That release had other names for the script and for the answer; the repeat is recognised
        all the same.
        """
        await planted(engine, clock)
        key = f"{{{REVIEWS}}}:call:client-7"
        deployment.ask("SET", key, b"1 forget \xa9forgotten")
        await engine.schedules.delete_declared(REVIEWS, NIGHTLY, call=Call("client-7", 1))
        assert set((await engine.schedules.of(REVIEWS)).last) == {NIGHTLY}
        await engine.schedules.delete_declared(REVIEWS, NIGHTLY, call=Call("client-7", 2))
        assert str(deployment.ask("GET", key)).startswith("b'2 forget ")

    async def test_lets_it_start_anew(self, engine: Engine, clock: ManualClock) -> None:
        await planted(engine, clock)
        await engine.schedules.delete_declared(REVIEWS, NIGHTLY)
        assert await planted(engine, clock) == await last_of(engine)


class TestARefusedFiring:
    async def test_is_refused_again_if_it_is_repeated(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        first, call = await planted(engine, clock), Call("client-7", 1)
        upto = clock.now + seconds(1)
        for _ in range(2):
            with pytest.raises(NotYet):
                await engine.schedules.fire_due(
                    REVIEWS, NIGHTLY, jobs("a"), after=first, upto=upto, call=call
                )
            clock.advance(seconds(2))


class TestBadInput:
    @pytest.mark.parametrize("name", ["", "x" * 257, "ß" * 129, "a\nb", 7, None])
    async def test_an_invalid_name_is_refused(
        self, engine: Engine, clock: ManualClock, name: Any
    ) -> None:
        with pytest.raises(InvalidName, match="schedule"):
            await engine.schedules.fire_due(REVIEWS, name, [], after=None, upto=clock.now)
        with pytest.raises(InvalidName, match="schedule"):
            await engine.schedules.delete_declared(REVIEWS, name)

    @pytest.mark.parametrize("upto", [0, None, "now", datetime(2026, 1, 1)])  # noqa: DTZ001 -- the very mistake
    async def test_an_invalid_instant_is_refused(self, engine: Engine, upto: Any) -> None:
        with pytest.raises(InvalidOption, match="upto"):
            await engine.schedules.fire_due(REVIEWS, NIGHTLY, [], after=None, upto=upto)

    async def test_an_end_before_the_beginning_is_refused(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        now = clock.now
        with pytest.raises(InvalidOption) as refusal:
            await engine.schedules.fire_due(REVIEWS, NIGHTLY, [], after=now, upto=now)
        assert (refusal.value.option, refusal.value.value) == ("upto", now)

    @pytest.mark.parametrize("about", ["x" * 513, 7, None])
    async def test_an_invalid_description_is_refused(
        self, engine: Engine, clock: ManualClock, about: Any
    ) -> None:
        with pytest.raises(InvalidOption, match="about"):
            await engine.schedules.fire_due(
                REVIEWS, NIGHTLY, [], after=None, upto=clock.now, about=about
            )

    async def test_more_jobs_than_one_step_takes_are_refused(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        many: Sequence[NewJob] = [new_job(b"")] * (LARGEST_BATCH + 1)
        with pytest.raises(InvalidOption, match="jobs"):
            await engine.schedules.fire_due(REVIEWS, NIGHTLY, many, after=None, upto=clock.now)

    async def test_a_payload_that_is_too_large_is_refused(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_payload=3))
        with pytest.raises(PayloadTooLarge):
            await engine.schedules.fire_due(
                REVIEWS, NIGHTLY, [new_job(b"long")], after=None, upto=clock.now
            )
