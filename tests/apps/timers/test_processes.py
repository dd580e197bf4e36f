"""Plug-in workers in processes of their own: killed, frozen, at the same time, and after a
restart.
"""

import random
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from tests.waiting import eventually, eventually_async
from towpath.apps.timers.listing import TimerQuery
from towpath.apps.timers.model import TypeKey, new_timer
from towpath.apps.timers.options import TimersOptions
from towpath.apps.timers.service import TimerService
from towpath.clock import ServerClock, instant, seconds, wall_ms
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.states import State
from towpath.testing.process import WorkerProcess

APP = "tests.apps.timers.programs:app"
ORDERED = "tests.apps.timers.programs:ordered"
TIMERS = 300


@pytest.fixture
def clock() -> ServerClock:
    return ServerClock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file that workers write to."""
    path = tmp_path / "seen"
    path.touch()
    return path


def lines(file: Path) -> list[str]:
    return file.read_text().split()


def has_lines(file: Path, count: int) -> bool:
    return len(lines(file)) >= count


async def done(timers: TimerService, task_type: str, task_id: str) -> None:
    async def is_done() -> bool:
        return (await timers.get(TypeKey(task_type), task_id)).state is State.DONE

    await eventually_async(is_done)


class TestSeveralWorkersOfATypeInProcesses:
    @pytest.mark.parametrize("fault", ["kill", "freeze"])
    async def test_that_succeeded_are_not_invoked_again_in_another_process(
        self, timers: TimerService, engine_url: str, file: Path, fault: str
    ) -> None:
        """The process ends after the first worker; another process invokes the second one."""
        hold = file.with_name("seen.hold")
        hold.touch()
        with WorkerProcess(APP, url=engine_url, lease=seconds(1)) as broken:
            await timers.submit(new_timer("two", str(file), task_id="x", delay=0))
            eventually(lambda: lines(file) == ["first", "second"])
            getattr(broken, fault)()
            hold.unlink()
            with WorkerProcess(APP, url=engine_url, lease=seconds(1)):
                await done(timers, "two", "x")
                assert lines(file) == ["first", "second", "second"]


class TestSeveralProcesses:
    async def test_share_the_timers(
        self, timers: TimerService, engine_url: str, file: Path
    ) -> None:
        with (
            WorkerProcess(APP, url=engine_url),
            WorkerProcess(APP, url=engine_url),
        ):
            count = 0
            while len(set(lines(file))) < 2:
                some = [new_timer("shared", str(file), delay=0) for _ in range(20)]
                await timers.submit_many(some)
                count += len(some)
                eventually(partial(has_lines, file, count))
                assert count < 2000
            [view] = [shown for shown in await timers.all_types() if shown.task_type == "shared"]
            assert (view.status, view.alive) == ("served", 2)
        assert len(lines(file)) == count


class TestARestartOfAllWorkers:
    @pytest.fixture
    async def kept(self, tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
        with EmbeddedServer(data=tmp_path / "valkey") as server:
            yield server

    async def test_runs_timers_that_fell_due_meanwhile_in_the_order_of_due_times(
        self, kept: EmbeddedServer, file: Path
    ) -> None:
        """Types whose workers are gone wait, and are listed as unserved."""
        now = wall_ms()
        dues = {str(n): now + 3000 + n * 7 for n in range(TIMERS)}
        ids = random.sample(list(dues), TIMERS)
        async with Engine(kept.url) as engine:
            timers = TimerService(engine, TimersOptions())
            made = await timers.submit_many(
                [
                    new_timer("restart", [str(file), id], task_id=id, due=instant(dues[id]))
                    for id in ids
                ]
            )
            assert {getattr(answer, "state", answer) for answer in made} <= {
                State.DELAYED,
                State.READY,
            }
            assert getattr(made[-1], "state", None) is State.DELAYED
        kept.stop()
        kept.start()
        async with Engine(kept.url) as engine:
            timers = TimerService(engine, TimersOptions())
            [view] = await timers.all_types()
            assert (view.task_type, view.status) == ("restart", "no_worker")
            assert view.waiting == TIMERS

            async def all_due() -> bool:
                return wall_ms() > max(dues.values())

            await eventually_async(all_due)
            with WorkerProcess(ORDERED, url=kept.url):
                eventually(lambda: len(lines(file)) >= TIMERS)
            page = await timers.list(TimerQuery(state=State.DONE), size=1000)
            assert len(page.timers) == TIMERS
        assert lines(file) == sorted(dues, key=lambda id: dues[id])
