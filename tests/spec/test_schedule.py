"""schedule: schedules that are made at run time, stored in Redis and fired like declared ones."""

import asyncio
from typing import Any

import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import REVIEWS, claim, claim_one, run_all
from towpath.clock import ManualClock, hours, minutes, seconds
from towpath.engine.engine import Engine
from towpath.engine.retry import Fixed
from towpath.engine.schedule import Cron, Every, Missed
from towpath.engine.stored_schedules import ScheduleSource
from towpath.errors import (
    ScheduleChanged,
    ScheduleDeclared,
    ScheduleNotFound,
)
from towpath.worker.schedules import DeclaredSchedules, fire_due

HOURLY, NIGHTLY = "hourly", "nightly"
INDEX = "towpath:{schedules}:index"


async def fired(engine: Engine) -> list[str]:
    """The ids of all jobs that firing the due schedules submits."""
    await fire_due(engine, DeclaredSchedules())
    return sorted(await run_all(engine))


async def declare(engine: Engine, clock: ManualClock, name: str = NIGHTLY) -> None:
    """Declares schedules as a worker does for its app."""
    await engine.schedules.fire_due(
        REVIEWS, name, [], after=None, upto=clock.now, about="0 3 * * * UTC"
    )


class TestASchedule:
    async def test_is_kept_with_all_its_options(self, engine: Engine, clock: ManualClock) -> None:
        made = await engine.schedules.set(
            REVIEWS,
            NIGHTLY,
            Cron("0 3 * * *", "Europe/Berlin"),
            b'{"kind":"full"}',
            missed=Missed.SKIP,
            priority=9,
            lane="octo",
            retry=Fixed(seconds(5)),
            headers={"handler": "rerun"},
            keep=hours(1),
        )
        assert made.new
        found = await engine.schedules.get(REVIEWS, NIGHTLY)
        assert found == made.schedule
        assert (found.source, found.about) == (ScheduleSource.STORED, "0 3 * * * Europe/Berlin")
        assert (found.when, found.missed) == (Cron("0 3 * * *", "Europe/Berlin"), Missed.SKIP)
        assert (found.payload, found.paused, found.last) == (b'{"kind":"full"}', False, None)
        assert found.options == {
            "priority": 9,
            "lane": "octo",
            "retry": Fixed(seconds(5)),
            "headers": {"handler": "rerun"},
            "keep": hours(1),
        }
        assert found.next is not None
        assert clock.now < found.next <= clock.now + hours(24)

    async def test_begins_when_it_is_made(self, engine: Engine, clock: ManualClock) -> None:
        clock.advance(minutes(90))
        await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)), missed=Missed.ALL)
        assert await fired(engine) == []
        clock.advance(hours(1))
        assert await fired(engine) == ["hourly@2026-01-01T02:00:00.000Z"]

    async def test_makes_jobs_with_its_payload_and_options(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.schedules.set(
            REVIEWS, HOURLY, Every(hours(1)), b'"x"', priority=9, headers={"handler": "a"}
        )
        clock.advance(hours(1))
        await fire_due(engine, DeclaredSchedules())
        lease = await claim_one(engine)
        assert (lease.payload, lease.priority) == (b'"x"', 9)
        assert lease.headers == {"handler": "a", "scheduled": "2026-01-01T01:00:00.000Z"}
        info = await engine.schedules.get(REVIEWS, HOURLY)
        assert (info.last, info.next) == (clock.now, clock.now + hours(1))

    async def test_is_fired_once_by_several_processes(
        self, engine: Engine, other_engine: Engine, clock: ManualClock
    ) -> None:
        await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)), missed=Missed.ALL)
        clock.advance(hours(3))
        await asyncio.gather(
            *(fire_due(caller, DeclaredSchedules()) for caller in (engine, other_engine) * 2)
        )
        assert len(await claim(engine, 500)) == 3

    async def test_shows_its_last_firing_after_skipped_firings(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)), missed=Missed.SKIP)
        clock.advance(hours(1))
        assert len(await fired(engine)) == 1
        last = clock.now
        clock.advance(minutes(90))
        assert await fired(engine) == []
        info = await engine.schedules.get(REVIEWS, HOURLY)
        assert (info.last, info.next) == (last, last + hours(2))


class TestChangingASchedule:
    async def test_goes_on_from_its_last_firing(self, engine: Engine, clock: ManualClock) -> None:
        await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)))
        clock.advance(minutes(90))
        assert len(await fired(engine)) == 1
        answer = await engine.schedules.set(REVIEWS, HOURLY, Every(minutes(40)), missed=Missed.ALL)
        assert not answer.new
        assert await fired(engine) == ["hourly@2026-01-01T01:20:00.000Z"]

    async def test_changes_the_given_options_and_leaves_the_rest(self, engine: Engine) -> None:
        await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)), b"1", priority=9, lane="a")
        changed = await engine.schedules.change(REVIEWS, HOURLY, payload=b"2", lane=None)
        assert (changed.payload, changed.options) == (b"2", {"priority": 9})
        assert changed.when == Every(hours(1))

    async def test_to_its_present_definition_changes_nothing(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        before = await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)), b"1")
        dump = deployment.dump()
        again = await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)), b"1")
        assert (again.schedule.version, again.new) == (before.schedule.version, False)
        assert deployment.dump() == dump

    async def test_twice_at_the_same_time_loses_nothing(
        self, engine: Engine, other_engine: Engine
    ) -> None:
        await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)))
        changes: list[dict[str, Any]] = [
            {"priority": 9}, {"lane": "a"}, {"payload": b"2"}, {"missed": Missed.ALL},
        ]  # fmt: skip
        await asyncio.gather(
            *(
                (engine, other_engine)[n % 2].schedules.change(REVIEWS, HOURLY, **change)
                for n, change in enumerate(changes)
            )
        )
        found = await engine.schedules.get(REVIEWS, HOURLY)
        assert found.options == {"priority": 9, "lane": "a"}
        assert (found.payload, found.missed) == (b"2", Missed.ALL)

    async def test_prevents_firings_by_a_process_with_the_old_definition(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """No process fires a definition that was changed or removed meanwhile."""
        old = (await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)))).schedule
        last = (await engine.schedules.of(REVIEWS)).last[HOURLY].at
        clock.advance(hours(1))
        how: dict[str, Any] = {"after": last, "upto": clock.now, "version": old.version}
        await engine.schedules.change(REVIEWS, HOURLY, payload=b"2")
        with pytest.raises(ScheduleChanged):
            await engine.schedules.fire_due(REVIEWS, HOURLY, [], **how)
        await engine.schedules.delete(REVIEWS, HOURLY)
        await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)))
        with pytest.raises(ScheduleChanged):
            await engine.schedules.fire_due(REVIEWS, HOURLY, [], **how)
        assert await fired(engine) == []

    async def test_is_refused_for_a_declared_schedule_of_that_name(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)))
        last = (await engine.schedules.of(REVIEWS)).last[HOURLY].at
        clock.advance(hours(1))
        with pytest.raises(ScheduleChanged):
            await engine.schedules.fire_due(REVIEWS, HOURLY, [], after=last, upto=clock.now)


class TestPausingASchedule:
    async def test_stops_its_firings_until_resumed_without_making_up_for_them(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)), missed=Missed.ALL)
        clock.advance(hours(1))
        assert len(await fired(engine)) == 1
        last = clock.now
        paused = await engine.schedules.pause(REVIEWS, HOURLY)
        assert (paused.paused, paused.next, paused.last) == (True, None, last)
        clock.advance(hours(5))
        assert await fired(engine) == []
        resumed = await engine.schedules.resume(REVIEWS, HOURLY)
        assert (resumed.paused, resumed.last) == (False, last)
        assert resumed.next == last + hours(6)
        assert await fired(engine) == []
        clock.advance(hours(1))
        assert await fired(engine) == ["hourly@2026-01-01T07:00:00.000Z"]

    async def test_without_future_firings_leaves_it_so(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)), paused=True)
        clock.advance(hours(2))
        assert (await engine.schedules.resume(REVIEWS, HOURLY)).last is None


class TestFiringAScheduleByHand:
    async def test_submits_one_job_and_keeps_its_times(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)), b"1", priority=9)
        before = await engine.schedules.get(REVIEWS, HOURLY)
        clock.advance(minutes(10))
        answer = await engine.schedules.fire(REVIEWS, HOURLY)
        lease = await claim_one(engine)
        assert (lease.id, lease.payload, lease.priority) == (answer.id, b"1", 9)
        assert lease.headers == {"scheduled": "2026-01-01T00:10:00.000Z"}
        assert await engine.schedules.get(REVIEWS, HOURLY) == before

    async def test_at_the_instant_of_a_firing_submits_another_job(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)))
        clock.advance(hours(1))
        await asyncio.gather(*(engine.schedules.fire(REVIEWS, HOURLY) for _ in range(2)))
        assert len(await fired(engine)) == 3

    async def test_works_while_it_is_paused(self, engine: Engine) -> None:
        await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)), paused=True)
        await engine.schedules.fire(REVIEWS, HOURLY)
        assert len(await claim(engine)) == 1

    async def test_is_refused_for_an_unknown_or_declared_schedule(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        with pytest.raises(ScheduleNotFound):
            await engine.schedules.fire(REVIEWS, HOURLY)
        await declare(engine, clock)
        with pytest.raises(ScheduleDeclared):
            await engine.schedules.fire(REVIEWS, NIGHTLY)


class TestRemovingASchedule:
    async def test_leaves_nothing_behind(self, engine: Engine, deployment: Deployment) -> None:
        await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)))
        await engine.schedules.delete(REVIEWS, HOURLY)
        left = {key for key in deployment.key_names() if ":call:" not in key}
        assert left == {"{reviews}:meta", "towpath:queues"}

    async def test_keeps_the_others_and_lets_it_start_anew(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)), missed=Missed.ALL)
        await engine.schedules.set(REVIEWS, "other", Every(hours(1)))
        clock.advance(hours(2))
        await engine.schedules.delete(REVIEWS, HOURLY)
        await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)), missed=Missed.ALL)
        assert await fired(engine) == ["other@2026-01-01T02:00:00.000Z"]

    async def test_is_refused_for_an_unknown_schedule(self, engine: Engine) -> None:
        with pytest.raises(ScheduleNotFound):
            await engine.schedules.delete(REVIEWS, HOURLY)


class TestADeclaredSchedule:
    async def test_is_listed_and_cannot_be_changed(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await declare(engine, clock)
        info = await engine.schedules.get(REVIEWS, NIGHTLY)
        assert (info.source, info.when) == (ScheduleSource.CODE, Cron("0 3 * * *"))
        for refused in (
            engine.schedules.set(REVIEWS, NIGHTLY, Every(hours(1))),
            engine.schedules.change(REVIEWS, NIGHTLY, paused=True),
            engine.schedules.delete(REVIEWS, NIGHTLY),
        ):
            with pytest.raises(ScheduleDeclared, match=NIGHTLY):
                await refused
        await engine.schedules.delete_declared(REVIEWS, NIGHTLY)
        assert (await engine.schedules.set(REVIEWS, NIGHTLY, Every(hours(1)))).new


class TestListingSchedules:
    async def test_goes_by_queue_and_name_page_by_page(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await declare(engine, clock)
        for queue, name in (("mails", "b"), ("mails", "a"), (REVIEWS, HOURLY), ("zoo", "z")):
            await engine.schedules.set(queue, name, Every(hours(1)))
        wanted = ["mails/a", "mails/b", "reviews/hourly", "reviews/nightly", "zoo/z"]
        seen: list[str] = []
        after: str | None = None
        for _ in range(9):
            page = await engine.schedules.list(after=after, size=2)
            seen += [f"{schedule.queue}/{schedule.name}" for schedule in page.schedules]
            after = page.after
            if after is None:
                break
        assert seen == wanted
        only = await engine.schedules.list(queues=["mails"])
        assert [schedule.name for schedule in only.schedules] == ["a", "b"]
