"""The log of firings: bounded by age, entries and bytes; read by time, page by page."""

from contextlib import suppress
from pathlib import Path

import pytest

from tests.waiting import eventually_async
from towpath.apps.timers.log import Firing, FiringLog, FiringOutcome, firing_of
from towpath.apps.timers.model import TypeKey
from towpath.apps.timers.options import TimersOptions
from towpath.clock import Clock, ManualClock, days, hours, instant_ms, minutes, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.errors import InvalidOption, ServerError

KEY = TypeKey("取消 订单", "shop")


def a_firing(task_id: str, clock: ManualClock, reason: str | None = None) -> Firing:
    now = instant_ms("now", clock.now)
    return firing_of(
        task_id, FiringOutcome.DONE, due_ms=now, started_ms=now + 3, ran=0.5, attempt=1,
        worker="w1", reason=reason,
    )  # fmt: skip


async def ids(log: FiringLog, **more: object) -> list[str]:
    page = await log.read(KEY, **more)  # pyright: ignore[reportArgumentType] -- as tests give it
    return [firing.task_id for firing in page.firings]


async def fill(log: FiringLog, clock: ManualClock, *task_ids: str, reason: str = "") -> None:
    log.add(KEY, [a_firing(task_id, clock, reason or None) for task_id in task_ids])
    await log.flush()


class TestReadingTheLog:
    async def test_returns_all_entries_the_latest_first(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        log = FiringLog(engine, TimersOptions())
        await fill(log, clock, "a")
        clock.advance(minutes(1))
        await fill(log, clock, "b", "c")
        page = await log.read(KEY)
        assert [firing.task_id for firing in page.firings] == ["c", "b", "a"]
        assert page.firings[0] == a_firing("c", clock)
        assert page.after is None
        assert (await log.read(TypeKey("取消 订单"))).firings == []

    async def test_can_be_done_by_time_and_in_pages(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        log = FiringLog(engine, TimersOptions())
        begin = clock.now
        for number in range(5):
            await fill(log, clock, str(number))
            clock.advance(minutes(1))
        assert await ids(log, since=begin + minutes(1)) == ["4", "3", "2", "1"]
        assert await ids(log, until=begin + minutes(2)) == ["1", "0"]
        found: list[str] = []
        after: str | None = None
        while True:
            page = await log.read(KEY, after=after, size=2)
            found += [firing.task_id for firing in page.firings]
            if page.after is None:
                break
            after = page.after
        assert found == ["4", "3", "2", "1", "0"]

    async def test_refuses_an_unknown_page(self, engine: Engine) -> None:
        log = FiringLog(engine, TimersOptions())
        for after in ("", "x", "1-1-1", "-", "+"):
            with pytest.raises(InvalidOption, match="after"):
                await log.read(KEY, after=after)
        with pytest.raises(InvalidOption, match="size"):
            await log.read(KEY, size=1001)


class TestTheLogOfFirings:
    async def test_has_a_limit_of_entries(self, engine: Engine, clock: ManualClock) -> None:
        log = FiringLog(engine, TimersOptions(log_entries=3))
        for number in range(10):
            await fill(log, clock, str(number))
        assert await ids(log) == ["9", "8", "7"]

    async def test_keeps_its_limit_when_many_entries_come_at_once(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        log = FiringLog(engine, TimersOptions(log_entries=3))
        await fill(log, clock, *map(str, range(1000)))
        await fill(log, clock, "last")
        assert len(await ids(log, size=1000)) <= 203
        assert (await ids(log))[0] == "last"

    async def test_has_a_limit_of_bytes(
        self, engine: Engine, clock: ManualClock, server: EmbeddedServer
    ) -> None:
        log = FiringLog(engine, TimersOptions(log_bytes=4096))
        for number in range(50):
            await fill(log, clock, f"{number:02}", reason="x" * 10_000)
        left = await ids(log)
        assert left[0] == "49"
        assert 5 <= len(left) <= 10
        assert left == [f"{number:02}" for number in range(49, 49 - len(left), -1)]

    async def test_has_a_limit_of_age(self, engine: Engine, clock: ManualClock) -> None:
        """Also for a type whose timers no longer run."""
        log = FiringLog(engine, TimersOptions(log_age=hours(1)))
        await fill(log, clock, "old")
        clock.advance(minutes(59))
        await fill(log, clock, "new")
        assert await ids(log) == ["new", "old"]
        clock.advance(minutes(2))
        assert await ids(log) == ["new"]
        clock.advance(days(1))
        assert await ids(log) == []

    async def test_stays_empty_if_it_is_turned_off(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        log = FiringLog(engine, TimersOptions(log_entries=0))
        await fill(log, clock, "a")
        assert await ids(log) == []

    async def test_stays_in_order_when_the_clock_is_set_back(
        self, engine_url: str, clock: Clock
    ) -> None:
        ahead = ManualClock()
        ahead.advance(days(1))
        async with Engine(engine_url, clock=ahead) as engine:
            await fill(FiringLog(engine, TimersOptions()), ahead, "a")
        async with Engine(engine_url, clock=clock) as engine:
            log = FiringLog(engine, TimersOptions())
            await fill(log, ManualClock(), "b", "c")
            assert await ids(log) == ["c", "b", "a"]


async def test_keeps_entries_that_could_not_be_written_until_redis_is_back(
    tmp_path: Path, clock: ManualClock
) -> None:
    limits = Limits(answer=seconds(0.2), give_up=seconds(0.4))
    with EmbeddedServer(data=tmp_path) as server:
        async with Engine(server.url, clock=clock, limits=limits) as engine:
            log = FiringLog(engine, TimersOptions())
            await fill(log, clock, "a")
            server.stop()
            log.add(KEY, [a_firing("b", clock)])
            await log.close()
            server.start()

            async def written() -> bool:
                with suppress(ServerError):
                    await log.flush()
                    return await ids(log) == ["b", "a"]
                return False

            await eventually_async(written)
