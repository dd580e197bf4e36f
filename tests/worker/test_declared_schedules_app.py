"""Handlers that an app declares with a schedule: a worker fires and runs them."""

import asyncio
import logging
from typing import Any

import pytest

from tests.waiting import HANGS, eventually_async
from towpath import Context, Towpath, Worker
from towpath.clock import ManualClock, hours, minutes, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.retry import Fixed
from towpath.engine.schedule import Cron, Every, Missed
from towpath.errors import HandlerInvalid, InvalidName, InvalidOption, PayloadInvalid


@pytest.fixture
def app(server: EmbeddedServer) -> Towpath:
    return Towpath(server.url, clock=ManualClock())


class TestARecurringHandler:
    async def test_is_fired_and_run_by_a_worker(self, server: EmbeddedServer) -> None:
        clock, ran = ManualClock(), asyncio.Queue[str]()
        app = Towpath(server.url, clock=clock)

        @app.recurring("0 3 * * *", tz="Europe/Berlin")
        async def nightly(ctx: Context) -> None:
            ran.put_nowait(ctx.headers["scheduled"])

        worker = Worker(app, grace=seconds(5))
        running = asyncio.create_task(worker.run())
        async with app:

            async def seen() -> bool:
                return "nightly" in (await app.engine.schedules.of("recurring")).last

            await eventually_async(seen)
            clock.advance(hours(2))
            async with asyncio.timeout(HANGS):
                assert await ran.get() == "2026-01-01T02:00:00.000Z"
        worker.stop()
        assert await running == 0
        assert nightly.named == "nightly"

    async def test_shares_its_queue_with_other_handlers(self, app: Towpath) -> None:
        @app.recurring(Every(minutes(5)), missed=Missed.SKIP, retry=Fixed(), max_attempts=2)
        async def pulse() -> None: ...

        @app.recurring("0 3 * * *", name="cleanup")
        async def other() -> None: ...

        first, second = app.declared_schedules
        assert (first.name, first.queue, first.missed) == ("pulse", "recurring", Missed.SKIP)
        assert first.options == {
            "headers": {"handler": "pulse"}, "retry": Fixed(), "max_attempts": 2,
        }  # fmt: skip
        assert (second.name, second.when) == ("cleanup", Cron("0 3 * * *"))
        assert [handler.named for handler in (pulse, other)] == ["pulse", "cleanup"]

    @pytest.mark.parametrize(
        ("given", "error"),
        [
            ({"when": "often"}, InvalidOption),
            ({"when": "* * * * *", "tz": "Berlin"}, InvalidOption),
            ({"when": "* * * * *", "name": "No Name"}, InvalidName),
            ({"when": "* * * * *", "queue": "No Queue"}, InvalidName),
            ({"when": "* * * * *", "missed": "once"}, InvalidOption),
        ],
    )
    def test_is_checked_where_it_is_declared(
        self, app: Towpath, given: dict[str, Any], error: type[Exception]
    ) -> None:
        async def work() -> None: ...

        with pytest.raises(error):
            app.recurring(**given)(work)

    def test_accepts_no_payload(self, app: Towpath) -> None:
        with pytest.raises(PayloadInvalid):

            @app.recurring("* * * * *")
            async def work(payload: int) -> None: ...

    def test_must_have_a_name_that_no_other_has(self, app: Towpath) -> None:
        async def work() -> None: ...

        app.recurring("* * * * *")(work)
        with pytest.raises(HandlerInvalid):
            app.recurring("0 * * * *")(work)


class TestARecurringHandlerWithAPayload:
    async def test_gets_its_payload_at_each_firing(self, app: Towpath) -> None:
        @app.handler("reports")
        async def report(payload: dict[str, int]) -> None: ...

        app.recur(report, Every(hours(1)), {"depth": 2}, name="hourly", priority=90)
        app.recur(report, "0 0 * * SUN", {"depth": 9}, tz="Asia/Tokyo", missed=Missed.ALL)
        hourly, weekly = app.declared_schedules
        assert (hourly.name, hourly.payload) == ("hourly", b'{"depth":2}')
        assert hourly.options == {"priority": 90}
        assert (weekly.name, weekly.queue, weekly.missed) == ("report", "reports", Missed.ALL)

    def test_is_checked_where_it_is_declared(self, app: Towpath) -> None:
        @app.handler("reports")
        async def report(payload: dict[str, int]) -> None: ...

        wrong: Any = {"depth": "deep"}
        with pytest.raises(PayloadInvalid):
            app.recur(report, Every(hours(1)), wrong)
        app.recur(report, Every(hours(1)), {})
        with pytest.raises(InvalidOption, match="reports") as refusal:
            app.recur(report, Every(hours(2)), {})
        assert (refusal.value.option, refusal.value.value) == ("name", "report")


async def test_a_worker_fires_only_schedules_of_its_own_queues(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "towpath")
    app = Towpath(server.url)

    @app.recurring(Every(seconds(1)), queue="mine")
    async def mine() -> None: ...

    @app.recurring(Every(seconds(1)), queue="theirs")
    async def theirs() -> None: ...

    assert mine.queue != theirs.queue
    worker = Worker(app, queues=["mine"], grace=seconds(5))
    running = asyncio.create_task(worker.run())
    async with app:

        async def fired() -> bool:
            return (await app.engine.inspect.counts("mine")).totals["completed"] > 0

        await eventually_async(fired)
        assert (await app.engine.schedules.of("theirs")).last == {}
    worker.stop()
    assert await running == 0
