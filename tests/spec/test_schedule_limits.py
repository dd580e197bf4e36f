"""schedule: how many there may be, invalid input, and the index that shows changes."""

from typing import Any

import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import REVIEWS, run_all
from towpath.clock import ManualClock, hours
from towpath.engine import schedules as limits
from towpath.engine.engine import Engine
from towpath.engine.options import QueueOptions
from towpath.engine.schedule import Cron, Every
from towpath.engine.stored_schedules import ScheduleSource
from towpath.errors import (
    InvalidName,
    InvalidOption,
    PayloadTooLarge,
    SchedulesFull,
    ScheduleUnreadable,
)
from towpath.ids import queue_name
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


class TestLimitsOfSchedules:
    async def test_a_queue_has_a_limit_of_schedules(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "MOST_IN_A_QUEUE", 2)
        for name in "ab":
            await engine.schedules.set(REVIEWS, name, Every(hours(1)))
        with pytest.raises(SchedulesFull, match=REVIEWS) as refusal:
            await engine.schedules.set(REVIEWS, "c", Every(hours(1)))
        assert refusal.value.most == 2
        await engine.schedules.set(REVIEWS, "a", Every(hours(2)))
        await engine.schedules.set("mails", "c", Every(hours(1)))

    async def test_all_queues_together_have_a_limit_of_schedules(
        self, engine: Engine, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "MOST_IN_ALL", 2)
        for queue in ("mails", REVIEWS):
            await engine.schedules.set(queue, HOURLY, Every(hours(1)))
        with pytest.raises(SchedulesFull) as refusal:
            await engine.schedules.set("zoo", HOURLY, Every(hours(1)))
        assert refusal.value.most == 2
        assert "zoo" not in str(refusal.value)  # the limit of a queue names the queue
        assert "zoo" not in str(deployment.dump()[INDEX])
        await engine.schedules.delete("mails", HOURLY)
        await engine.schedules.set("zoo", HOURLY, Every(hours(1)))

    async def test_a_schedules_payload_has_the_limit_of_its_queue(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_payload=3))
        with pytest.raises(PayloadTooLarge):
            await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)), b"long")
        assert not any("schedules" in key for key in deployment.dump())


class TestAScheduleOfANewerRelease:
    async def test_is_listed_and_neither_fired_nor_changed(
        self, engine: Engine, clock: ManualClock, deployment: Deployment
    ) -> None:
        await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)))
        await engine.schedules.set(REVIEWS, "other", Every(hours(1)))
        newer = b'v9 {"every":3600000,"moon":"full"}'
        deployment.ask("HSET", "{reviews}:schedules", HOURLY, newer)
        deployment.ask("HSET", "{reviews}:meta", "schedules", "v9")
        info = await engine.schedules.get(REVIEWS, HOURLY)
        assert (info.readable, info.when, info.source) == (False, None, ScheduleSource.STORED)
        clock.advance(hours(1))
        assert await fired(engine) == ["other@2026-01-01T01:00:00.000Z"]
        for refused in (
            engine.schedules.set(REVIEWS, HOURLY, Every(hours(1))),
            engine.schedules.pause(REVIEWS, HOURLY),
            engine.schedules.fire(REVIEWS, HOURLY),
        ):
            with pytest.raises(ScheduleUnreadable):
                await refused
        assert deployment.ask("HGET", "{reviews}:schedules", HOURLY) == newer
        await engine.schedules.delete(REVIEWS, HOURLY)


class TestTheIndexOfSchedules:
    async def test_shows_each_change_in_one_small_answer(self, engine: Engine) -> None:
        nothing = await engine.schedules.changes()
        assert nothing.queues is None
        await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)))
        heard = await engine.schedules.changes(nothing.last)
        assert heard.queues is not None
        assert [(queue, schedules.begun) for queue, schedules in heard.queues.items()] == [
            (REVIEWS, False)
        ]
        assert (await engine.schedules.changes(heard.last)).queues is None
        await engine.schedules.delete(REVIEWS, HOURLY)
        assert (await engine.schedules.changes(heard.last)).queues == {}

    async def test_is_rebuilt_after_it_was_lost(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)))
        deployment.ask("DEL", INDEX)
        await engine.schedules.mend(REVIEWS)
        heard = await engine.schedules.changes()
        assert heard.queues is not None
        assert set(heard.queues) == {REVIEWS}

    async def test_shows_an_interrupted_change_and_is_repaired(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        deployment.ask("HSET", INDEX, REVIEWS, "begun x 0", "*", "x")
        heard = await engine.schedules.changes()
        assert heard.queues is not None
        assert heard.queues[queue_name(REVIEWS)].begun
        await engine.schedules.mend(REVIEWS, "x")
        assert INDEX not in deployment.key_names()

    async def test_leaves_a_change_alone_that_has_begun_since(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        deployment.ask("HSET", INDEX, REVIEWS, "begun y 0", "*", "y")
        await engine.schedules.mend(REVIEWS, "x")
        heard = await engine.schedules.changes()
        assert heard.queues is not None
        assert heard.queues[queue_name(REVIEWS)] == (True, "y")


class TestBadInput:
    @pytest.mark.parametrize("name", ["", "x" * 257, "a\nb", 7, None])
    async def test_an_invalid_name_is_refused(self, engine: Engine, name: Any) -> None:
        with pytest.raises(InvalidName, match="schedule"):
            await engine.schedules.set(REVIEWS, name, Every(hours(1)))
        with pytest.raises(InvalidName, match="schedule"):
            await engine.schedules.delete(REVIEWS, name)

    @pytest.mark.parametrize("options", [{"id": "a"}, {"delay": hours(1)}, {"priority": 101}])
    async def test_invalid_options_are_refused(self, engine: Engine, options: Any) -> None:
        with pytest.raises(InvalidOption):
            await engine.schedules.set(REVIEWS, HOURLY, Every(hours(1)), **options)

    async def test_an_invalid_schedule_is_refused(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        when: Any = "0 3 * * *"
        with pytest.raises(InvalidOption, match="when"):
            await engine.schedules.set(REVIEWS, HOURLY, when)
        with pytest.raises(InvalidOption) as refusal:
            Cron("0 0 30 2 *")
        assert (refusal.value.option, refusal.value.value) == ("cron", "0 0 30 2 *")
        assert deployment.key_names() == set()
