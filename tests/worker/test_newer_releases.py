"""What a newer release, or another program, has written into a queue affects only itself."""

from tests.waiting import eventually_async, eventually_in_loop
from tests.worker.in_process_worker import SOON, LogLines, job_once, spoil, working
from towpath.app.app import Towpath
from towpath.clock import ZERO, milliseconds, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.retry import Fixed
from towpath.engine.schedule import Every
from towpath.engine.states import State
from towpath.telemetry.logs import Log
from towpath.worker.duties import _OtherQueues  # pyright: ignore[reportPrivateUsage] -- one round


class TestWhatANewerReleaseWrote:
    async def test_as_a_jobs_retry_policy_is_replaced_by_the_queues_policy(
        self, app: Towpath, server: EmbeddedServer
    ) -> None:
        @app.handler("good")
        async def good(n: int) -> int:
            return 1 // n

        bad = await good.submit(0, retry=Fixed(seconds(77)))
        key = f"{{good}}:job:{bad.id}"
        record = server.ask("GET", key)
        assert isinstance(record, bytes)
        assert b'"fixed"' in record
        server.ask("SET", key, record.replace(b'"fixed"', b'"moody"'))
        async with working(app):
            assert await (await good.submit(1)).result(within=SOON) == 1
            job = await job_once(bad, lambda info: info.state is State.DELAYED)
        assert job.retry is None
        assert "ZeroDivisionError" in (job.reason or "")

    async def test_as_headers_ends_only_that_job(
        self, app: Towpath, server: EmbeddedServer
    ) -> None:
        @app.handler("good")
        async def good(n: int) -> int:
            return n

        bad = await good.submit(0, headers={"x": "1"})
        key = f"{{good}}:job:{bad.id}"
        record = server.ask("GET", key)
        assert isinstance(record, bytes)
        server.ask("SET", key, record.replace(b'{"x":"1"}', b'{"x":[1]}'))
        async with working(app, unhandled_for=ZERO):
            assert await (await good.submit(1)).result(within=SOON) == 1
            job = await job_once(bad, lambda info: info.state is State.DEAD)
        assert (job.reason or "").startswith("HandlerNotFound: ")

    async def test_as_a_schedule_stops_no_other_schedule(
        self, app: Towpath, server: EmbeddedServer, lines: LogLines
    ) -> None:
        ran: list[str] = []

        @app.recurring(Every(seconds(1)), queue="good")
        async def quick() -> None:
            ran.append("quick")

        @app.recurring(Every(seconds(1)), queue="good")
        async def spoilt() -> None:
            ran.append("spoilt")

        for name, value in (("spoilt", b"9" * 30), (b"\xff", b"x"), ("other", b"?")):
            server.ask("HSET", "{good}:recurring", name, value)
        async with working(app):
            await eventually_in_loop(lambda: "quick" in ran)
        assert "spoilt" not in ran
        assert "spoilt" in lines.of("duty.failed")[0]["reason"]

    async def test_in_the_directory_of_queues_stops_no_sweep(
        self, app: Towpath, server: EmbeddedServer, lines: LogLines
    ) -> None:
        await app.engine.submit("idle", b"", delay=milliseconds(1))
        foreign = (("a{b", b"{}"), (b"\xff", b"?"), ("newer", b'{"retry": {"type": "moody"}}'))
        for name, value in foreign:
            server.ask("HSET", "towpath:queues", name, value)
        spoil(server, "{newer}:meta")
        others = _OtherQueues(app.engine, {"mine"}, Log())

        async def promoted() -> bool:
            await others.sweep()
            return (await app.engine.inspect.counts("idle")).ready == 1

        await eventually_async(promoted)
        assert "idle" in await app.engine.queues.list()
        assert lines.of("duty.failed")[0]["queue"] == "newer"
