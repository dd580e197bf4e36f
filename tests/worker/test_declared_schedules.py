"""Schedules: any worker fires them, each firing happens once, missed ones by the policy."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import Any, cast

import pytest

from tests.waiting import eventually_async
from towpath.clock import ManualClock, days, hours, minutes, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.engine.model import HIGH, Lease
from towpath.engine.options import QueueOptions
from towpath.engine.schedule import Cron, Every, Missed, NamedSchedule
from towpath.errors import EngineClosed, InvalidName, InvalidOption
from towpath.testing.proxy import Faults, Proxy
from towpath.worker.firing import LOOK_EVERY
from towpath.worker.schedules import DeclaredSchedules, keep_firing

QUEUE = "reports"
HOURLY = "hourly"


def hourly(**changes: Any) -> NamedSchedule:
    plain: dict[str, Any] = {"name": HOURLY, "when": Every(hours(1)), "queue": QUEUE}
    return NamedSchedule(**plain | changes)


@asynccontextmanager
async def firing(engine: Engine, clock: ManualClock, *work: NamedSchedule) -> AsyncGenerator[None]:
    """Runs a worker that fires *work*; when the body begins, the worker has seen all of it."""
    task = asyncio.create_task(keep_firing(engine, DeclaredSchedules(work), clock=clock))
    try:
        for schedule in work:
            await reached(engine, schedule.name)
        yield
        if task.done():
            await task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def reached(engine: Engine, name: str, instant: datetime | None = None) -> None:
    """Waits until *name* was last fired for *instant* (None = for any)."""

    async def so() -> bool:
        known = (await engine.schedules.of(QUEUE)).last.get(name)
        return known is not None and (instant is None or known.at == instant)

    await eventually_async(so)


async def jobs_of(engine: Engine) -> list[Lease]:
    """All jobs of the queue, in the order of their submits."""
    return await engine.claim(QUEUE, worker="anna", lease=days(1), count=500)


async def fired_for(engine: Engine) -> list[datetime]:
    return [datetime.fromisoformat(job.headers["scheduled"]) for job in await jobs_of(engine)]


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    found = [
        cast("dict[str, Any]", record.msg) for record in caplog.records if record.name == "towpath"
    ]
    return [line for line in found if line["event"] == event]


class TestRecurringWork:
    async def test_is_fired_when_its_time_comes(self, engine: Engine, clock: ManualClock) -> None:
        start = clock.now
        async with firing(engine, clock, hourly()):
            for n in (1, 2, 3):
                clock.advance(hours(1))
                await reached(engine, HOURLY, start + hours(n))
        assert await fired_for(engine) == [start + hours(n) for n in (1, 2, 3)]

    async def test_is_not_fired_for_the_past_when_it_is_first_seen(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        clock.advance(minutes(90))
        async with firing(engine, clock, hourly(missed=Missed.ALL)):
            assert (await engine.schedules.of(QUEUE)).last[HOURLY].at == clock.now
        assert await jobs_of(engine) == []

    async def test_is_not_fired_before_its_time(self, engine: Engine, clock: ManualClock) -> None:
        """Another schedule, which fires, shows that the worker has looked."""
        start, sooner = clock.now, hourly(name="sooner", when=Every(minutes(20)))
        async with firing(engine, clock, hourly(), sooner):
            clock.advance(hours(1) - seconds(1))
            await reached(engine, "sooner", start + minutes(40))
            assert (await engine.schedules.of(QUEUE)).last[HOURLY].at == start

    async def test_submits_jobs_with_the_headers_that_name_their_schedule(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        work = hourly(
            payload=b'{"kind":"full"}',
            options={"priority": HIGH, "lane": "octo", "headers": {"handler": "rerun"}},
        )
        async with firing(engine, clock, work):
            clock.advance(hours(1))
            await reached(engine, HOURLY, clock.now)
        [lease] = await jobs_of(engine)
        assert lease.id == "hourly@2026-01-01T01:00:00.000Z"
        assert lease.headers == {"handler": "rerun", "scheduled": "2026-01-01T01:00:00.000Z"}
        assert (lease.payload, lease.priority, lease.lane) == (b'{"kind":"full"}', HIGH, "octo")

    async def test_is_listed_with_its_schedule(self, engine: Engine, clock: ManualClock) -> None:
        async with firing(engine, clock, hourly(when=Cron("0 3 * * *", "Europe/Berlin"))):
            about = (await engine.schedules.of(QUEUE)).last[HOURLY].about
        assert about == "0 3 * * * Europe/Berlin"

    async def test_goes_on_from_its_last_firing_when_its_schedule_changes(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        start = clock.now
        async with firing(engine, clock, hourly()):
            pass
        clock.advance(minutes(40))
        oftener = hourly(when=Every(minutes(15)), missed=Missed.ALL)
        async with firing(engine, clock, oftener):
            await reached(engine, HOURLY, start + minutes(30))
        assert await fired_for(engine) == [start + minutes(15), start + minutes(30)]

    async def test_starts_anew_after_it_was_deleted(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        async with firing(engine, clock, hourly()):
            await engine.schedules.delete_declared(QUEUE, HOURLY)
            clock.advance(LOOK_EVERY)
            await reached(engine, HOURLY, clock.now)

    async def test_is_fired_in_each_of_several_queues(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        works = [hourly(), hourly(queue="mails")]
        task = asyncio.create_task(keep_firing(engine, DeclaredSchedules(works), clock=clock))
        for queue in (QUEUE, "mails"):
            await eventually_async(lambda queue=queue: has_begun(engine, queue))
        clock.advance(hours(1))
        for queue in (QUEUE, "mails"):
            leases = await engine.claim(queue, worker="anna", lease=days(1), wait=hours(1))
            assert [lease.id for lease in leases] == ["hourly@2026-01-01T01:00:00.000Z"]
        task.cancel()
        await asyncio.wait([task])


async def has_begun(engine: Engine, queue: str) -> bool:
    return bool((await engine.schedules.of(queue)).last)


class TestAWorkerThatWasDownOverThreeFirings:
    @pytest.mark.parametrize(
        ("missed", "made"), [(Missed.SKIP, []), (Missed.ONCE, [3]), (Missed.ALL, [1, 2, 3])]
    )
    async def test_makes_up_for_missed_firings_by_the_policy(
        self, engine: Engine, clock: ManualClock, caplog: pytest.LogCaptureFixture,
        missed: Missed, made: list[int],
    ) -> None:  # fmt: skip
        start, work = clock.now, hourly(missed=missed)
        async with firing(engine, clock, work):
            pass
        clock.advance(hours(3) + minutes(10))
        with caplog.at_level(logging.INFO, "towpath"):
            async with firing(engine, clock, work):
                await reached(engine, HOURLY, start + hours(3))
                clock.advance(minutes(50))
                await reached(engine, HOURLY, start + hours(4))
        assert await fired_for(engine) == [start + hours(n) for n in (*made, 4)]
        [line] = lines(caplog, "schedule.missed")
        assert (line["missed"], line["policy"]) == (3, missed)
        assert len(lines(caplog, "schedule.fired")) == len(made) + 1

    async def test_makes_up_for_more_firings_than_one_step_takes(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        start, work = clock.now, hourly(when=Every(seconds(1)), missed=Missed.ALL)
        async with firing(engine, clock, work):
            pass
        clock.advance(seconds(2_100))
        async with firing(engine, clock, work):
            await reached(engine, HOURLY, start + seconds(2_100))
        assert (await engine.inspect.counts(QUEUE)).totals["submitted"] == 2_100


class TestManyWorkers:
    async def test_make_each_firing_once(
        self, server: EmbeddedServer, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A worker logs each firing that it made, so a second one would be in the log, though the
        job id is known.
        """
        start, works = clock.now, [hourly(name=f"work-{n}", missed=Missed.ALL) for n in range(3)]
        async with AsyncExitStack() as stack:
            engines = [
                await stack.enter_async_context(Engine(server.url, clock=clock)) for _ in range(5)
            ]
            caplog.set_level(logging.INFO, "towpath")
            for engine in engines:
                await stack.enter_async_context(firing(engine, clock, *works))
            for n in range(1, 21):
                clock.advance(hours(1))
                for work in works:
                    await reached(engines[0], work.name, start + hours(n))
            submitted = (await engines[0].inspect.counts(QUEUE)).totals["submitted"]
        told = [line["job"] for line in lines(caplog, "schedule.fired")]
        assert submitted == 60
        assert len(told) == len(set(told)) == 60

    async def test_make_few_calls_while_nothing_is_due(
        self, server: EmbeddedServer, engine: Engine, clock: ManualClock
    ) -> None:
        async with firing(engine, clock, hourly()):
            await eventually_async(lambda: settled(server))
            before = calls(server)
            clock.advance(LOOK_EVERY)
            await eventually_async(lambda: more_calls(server, before))
            await eventually_async(lambda: settled(server))
            # One call asks whether a schedule changed, one reads the due ones, and one more follows
            # the jump of the clock.
            assert calls(server) <= before + 3


def calls(server: EmbeddedServer) -> int:
    stats = server.ask("INFO", "commandstats")
    assert isinstance(stats, bytes)
    [line] = [line for line in stats.split(b"\r\n") if line.startswith(b"cmdstat_evalsha:")]
    return int(line.partition(b"calls=")[2].partition(b",")[0])


async def settled(server: EmbeddedServer) -> bool:
    """Whether no calls are made any more."""
    before = calls(server)
    for _ in range(100):
        await asyncio.sleep(0)
    return calls(server) == before


async def more_calls(server: EmbeddedServer, before: int) -> bool:
    return calls(server) > before


class TestAFiringWithoutRoomInItsQueue:
    async def test_stays_due_until_there_is_room(
        self, engine: Engine, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The queue accepts as many jobs as it has room for; the rest stays due."""
        start, work = clock.now, hourly(missed=Missed.ALL)
        await engine.queues.configure(QUEUE, QueueOptions(max_length=2))
        async with firing(engine, clock, work):
            pass
        clock.advance(hours(3))
        async with firing(engine, clock, work):
            await reached(engine, HOURLY, start + hours(2))
            await eventually_async(lambda: told(caplog, "duty.failed"))
            assert len(await jobs_of(engine)) == 2
            clock.advance(seconds(5))
            await reached(engine, HOURLY, start + hours(3))
        assert await fired_for(engine) == [start + hours(3)]

    async def test_holds_up_no_firing_of_another_queue(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(QUEUE, QueueOptions(max_payload=3))
        async with firing(
            engine, clock, hourly(name="large", payload=b"large"), hourly(payload=b"1")
        ):
            clock.advance(hours(1))
            await reached(engine, HOURLY, clock.now)


async def told(caplog: pytest.LogCaptureFixture, event: str) -> bool:
    return bool(lines(caplog, event))


class TestARedisThatDoesNotAnswer:
    async def test_is_asked_again_and_missed_firings_are_made_up_for(
        self, server: EmbeddedServer, engine: Engine, clock: ManualClock,
        caplog: pytest.LogCaptureFixture,
    ) -> None:  # fmt: skip
        limits = Limits(answer=seconds(0.5), give_up=seconds(1))
        async with (
            Proxy(server.address, Faults()) as proxy,
            Engine(proxy.url, clock=clock, limits=limits) as cut_off,
            firing(cut_off, clock, hourly()),
        ):
            proxy.faults.cut_requests = 1.0
            clock.advance(hours(1))
            await eventually_async(lambda: told(caplog, "duty.failed"))
            proxy.faults.cut_requests = 0.0

            async def recovered() -> bool:
                clock.advance(seconds(1))
                return (await engine.inspect.counts(QUEUE)).ready == 1

            await eventually_async(recovered)
        assert lines(caplog, "duty.failed")[0]["error"] == "ServerUnreachable"

    async def test_does_not_keep_a_closed_engine_firing(
        self, server: EmbeddedServer, clock: ManualClock
    ) -> None:
        async with Engine(server.url, clock=clock) as engine:
            task = asyncio.create_task(
                keep_firing(engine, DeclaredSchedules([hourly()]), clock=clock)
            )
            await reached(engine, HOURLY)
        clock.advance(LOOK_EVERY)
        with pytest.raises(EngineClosed):
            await task


class TestBadInput:
    @pytest.mark.parametrize(
        ("change", "option"),
        [
            ({"when": "0 3 * * *"}, "when"),
            ({"when": minutes(5)}, "when"),
            ({"missed": "once"}, "missed"),
            ({"payload": "text"}, "payload"),
            ({"options": {"id": "mine"}}, "id"),
            ({"options": {"delay": seconds(1)}}, "delay"),
            ({"options": {"due": None}}, "due"),
            ({"options": {"priority": 101}}, "priority"),
            ({"options": {"colour": "red"}}, "colour"),
            ({"options": {"headers": {"Bad Name": ""}}}, "headers['Bad Name']"),
        ],
    )
    def test_a_bad_option_is_refused_where_it_is_given(
        self, change: dict[str, Any], option: str
    ) -> None:
        with pytest.raises(InvalidOption) as refusal:
            hourly(**change)
        assert refusal.value.option == option

    @pytest.mark.parametrize("name", ["", "x" * 257, "a\nb", None])
    def test_a_bad_name_is_refused(self, name: Any) -> None:
        with pytest.raises(InvalidName):
            hourly(name=name)

    def test_a_bad_queue_is_refused(self) -> None:
        with pytest.raises(InvalidName):
            hourly(queue="No")

    def test_a_name_that_is_taken_is_refused(self) -> None:
        works = DeclaredSchedules([hourly(), hourly(queue="mails")])
        again = hourly(when=Every(minutes(5)))
        with pytest.raises(InvalidOption, match=QUEUE) as refusal:
            works.add(again)
        assert (refusal.value.option, refusal.value.value) == ("name", again.name)
        assert len(works) == 2
        assert list(works.by_queue(["mails", "others"])) == ["mails"]
