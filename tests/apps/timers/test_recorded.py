"""Recorded timers: the row is the timer, whatever Redis has."""

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from tests.waiting import eventually_async
from towpath import Towpath
from towpath.apps.timers.errors import TimerDiffers, TimerEnded, TimerNotFound
from towpath.apps.timers.listing import TimerQuery
from towpath.apps.timers.model import NewTimer, TypeKey, new_timer, when
from towpath.apps.timers.options import TimersOptions
from towpath.apps.timers.plugin import Timers
from towpath.apps.timers.service import TimerService
from towpath.clock import ServerClock, hours, instant, seconds, wall_ms
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.engine.states import State
from towpath.errors import ServerError
from towpath.ledger.errors import LedgerMissing
from towpath.ledger.ledger import Ledger
from towpath.telemetry.logs import Log

KEY = TypeKey("t")


@pytest.fixture
def clock() -> ServerClock:
    return ServerClock()


@pytest.fixture
def url(prepared_file_url: str) -> str:
    return prepared_file_url


@pytest.fixture
async def timers(engine: Engine, ledger: Ledger) -> AsyncIterator[TimerService]:
    async with ledger.relayed(engine, log=Log()):
        yield TimerService(engine, TimersOptions(), jobs=ledger.jobs)


def a_timer(task_id: str = "x", params: object = None, *, delay: float = 3600) -> NewTimer:
    return new_timer("t", params, task_id=task_id, delay=delay, record=True)


class TestARecordedTimer:
    async def test_is_a_row_that_can_be_read(self, timers: TimerService, ledger: Ledger) -> None:
        made = await timers.submit(a_timer("x", {"a": 1}))
        assert (made.record, made.state, made.existed) == (True, State.DELAYED, False)
        assert abs(made.due - instant(wall_ms()) - timedelta(hours=1)) < seconds(60)
        seen = await timers.get(KEY, "x")
        assert (seen.params, seen.due, seen.record) == ({"a": 1}, made.due, True)
        assert (await ledger.jobs.get("timers.t", "x")).due_at == made.due
        [listed] = (await timers.list(TimerQuery())).timers
        assert (listed.task_id, listed.record) == ("x", True)

    async def test_submitted_again_is_the_same_timer(self, timers: TimerService) -> None:
        await timers.submit(a_timer())
        assert (await timers.submit(a_timer())).existed
        with pytest.raises(TimerDiffers):
            await timers.submit(a_timer(delay=1800))
        with pytest.raises(TimerDiffers):
            await timers.submit(a_timer(params=2))

    async def test_has_an_id_that_no_timer_without_a_record_has(self, timers: TimerService) -> None:
        plain = new_timer("t", task_id="plain", delay=3600)
        await timers.submit(plain)
        with pytest.raises(TimerDiffers):
            await timers.submit(a_timer("plain"))
        await timers.submit(a_timer("x", 1))
        same = await timers.submit(new_timer("t", 1, task_id="x", delay=3600))
        assert (same.existed, same.record) == (True, True)
        with pytest.raises(TimerDiffers):
            await timers.submit(new_timer("t", 2, task_id="x", delay=3600))

    async def test_is_moved_set_and_cancelled_in_its_row(
        self, timers: TimerService, ledger: Ledger
    ) -> None:
        await timers.submit(a_timer("x", 1))
        moved = await timers.move(KEY, "x", when(due="2040-01-01T00:00:00Z"))
        assert moved.due.isoformat() == "2040-01-01T00:00:00+00:00"
        assert (await ledger.jobs.get("timers.t", "x")).due_at == moved.due
        replaced = await timers.set(a_timer("x", 2))
        assert (replaced.existed, replaced.params) == (True, 2)
        assert (await timers.cancel(KEY, "x")).state is State.CANCELLED
        with pytest.raises(TimerEnded, match="cancelled"):
            await timers.submit(a_timer("x", 2))
        with pytest.raises(TimerEnded, match="cancelled"):
            await timers.move(KEY, "x", when(delay=1))
        again = await timers.set(a_timer("x", 3))
        assert (again.existed, again.state, again.record) == (False, State.DELAYED, True)

    async def test_is_explained_after_a_move(self, timers: TimerService) -> None:
        await timers.submit(a_timer())
        await timers.move(KEY, "x", when(delay=7200))

        async def explained() -> bool:
            try:
                return (await timers.explain(KEY, "x")).why == "not_due"
            except TimerNotFound:
                return False  # it is being enqueued

        await eventually_async(explained)
        [listed] = (await timers.list(TimerQuery(state=State.DELAYED))).timers
        assert listed.task_id == "x"

    async def test_without_a_ledger_is_refused(self, engine: Engine) -> None:
        timers = TimerService(engine, TimersOptions())
        with pytest.raises(LedgerMissing):
            await timers.submit(a_timer())


async def test_a_recorded_timer_is_accepted_while_redis_is_away(
    tmp_path: Path, ledger: Ledger
) -> None:
    limits = Limits(answer=seconds(0.2), give_up=seconds(0.4))
    with EmbeddedServer(data=tmp_path / "valkey") as server:
        async with (
            Engine(server.url, limits=limits) as engine,
            ledger.relayed(engine, log=Log()),
        ):
            timers = TimerService(engine, TimersOptions(), jobs=ledger.jobs)
            server.stop()
            made = await timers.submit(a_timer())
            assert (made.state, made.record) == (State.DELAYED, True)
            server.start()

            async def queued() -> bool:
                with suppress(ServerError):
                    return (await engine.inspect.counts("timers.t")).delayed == 1
                return False

            await eventually_async(queued)


async def test_a_recorded_timer_does_not_wait_for_a_redis_that_is_frozen(
    tmp_path: Path, ledger: Ledger
) -> None:
    """The row is enough, however long calls to Redis may take."""
    limits = Limits(answer=hours(1), give_up=hours(1))
    with EmbeddedServer(data=tmp_path / "valkey") as server:
        async with Engine(server.url, limits=limits) as engine:
            timers = TimerService(engine, TimersOptions(), jobs=ledger.jobs)
            server.pause()
            try:
                assert (await timers.submit(a_timer())).state is State.DELAYED
                assert (await timers.cancel(KEY, "x")).state is State.CANCELLED
            finally:
                server.unpause()


class TestWorkersOfRecordedTimers:
    async def test_with_a_ledger_run_them(
        self, server: EmbeddedServer, prepared_file_url: str
    ) -> None:
        seen: list[object] = []
        timers = Timers(Towpath(server.url, ledger=prepared_file_url))

        @timers.worker("t")
        async def work(number: int) -> None:
            seen.append(number)

        async with timers.working():
            await timers.submit("t", 1, task_id="recorded", delay=0, record=True)
            await timers.submit("t", 2, task_id="plain", delay=0)

            async def ended() -> bool:
                states = [(await timers.get("t", id)).state for id in ("recorded", "plain")]
                return states == [State.DONE, State.DONE]

            await eventually_async(ended)

            async def logged() -> bool:
                found = (await timers.log("t")).firings
                return {firing.task_id for firing in found} == {"recorded", "plain"}

            await eventually_async(logged)
        assert sorted(map(str, seen)) == ["1", "2"]

    async def test_without_a_ledger_leave_recorded_timers_to_others(
        self, server: EmbeddedServer, prepared_file_url: str
    ) -> None:
        def failing(number: int) -> None:
            raise AssertionError

        poor = Timers(server.url)
        poor.add(failing, task_type="t")
        rich = Timers(Towpath(server.url, ledger=prepared_file_url))
        async with poor.working(), rich:
            await rich.submit("t", 1, task_id="x", delay=0, record=True)

            async def put_off() -> bool:
                return (await rich.app.engine.inspect.counts("timers.t")).totals["released"] > 0

            await eventually_async(put_off)
            assert (await rich.get("t", "x")).attempts == 0
            assert (await rich.get("t", "x")).state is State.READY
