"""Timers on a bench: each test has an event loop of its own; the app and its timers outlive it."""

import asyncio
from pathlib import Path

import pytest

from tests.testing.conftest import NewBench
from towpath import State, Towpath
from towpath.apps.timers.plugin import Timers
from towpath.embedded import EmbeddedServer


@pytest.fixture(params=["plain", "recorded"])
def timers(request: pytest.FixtureRequest, tmp_path: Path) -> Timers:
    ledger = f"sqlite:///{tmp_path}/ledger.db" if request.param == "recorded" else None
    return Timers(Towpath("redis://production.invalid", ledger=ledger))


@pytest.fixture
def called(timers: Timers) -> list[int]:
    """The payloads that the worker of the type `order` was called with."""
    calls: list[int] = []

    @timers.worker("order")
    async def note(number: int) -> None:
        calls.append(number)

    return calls


async def fire(timers: Timers, new_bench: NewBench, number: int) -> None:
    async with new_bench(timers.app) as bench:
        recorded = timers.app.keeps_records
        await timers.submit("order", number, task_id=f"o{number}", delay="3h", record=recorded)
        assert await bench.drain() == []
        bench.advance(hours=3)
        assert [ran.state for ran in await bench.drain()] == [State.DONE]
        page = await timers.log("order")
        assert [firing.task_id for firing in page.firings] == [f"o{number}"]


def test_a_timer_fires_in_one_event_loop_after_the_other(
    timers: Timers, called: list[int], towpath_bench: NewBench, towpath_server: EmbeddedServer
) -> None:
    for number in range(3):
        towpath_server.ask("FLUSHALL")
        asyncio.run(fire(timers, towpath_bench, number))
    assert called == [0, 1, 2]


def test_several_tasks_enter_an_app_in_one_event_loop_after_the_other(towpath_url: str) -> None:
    app = Towpath(towpath_url)

    async def enter() -> None:
        async with app:
            await app.engine.check()

    async def enter_three_times() -> None:
        await asyncio.gather(*(enter() for _ in range(3)))

    for _ in range(2):
        asyncio.run(enter_three_times())
