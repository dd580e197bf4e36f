"""A handler hands its lease over: somebody else ends the attempt, with the fencing token alone."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.waiting import eventually_in_loop
from tests.worker.in_process_worker import SOON, LogLines, ended, job_once, until_slots, working
from towpath.app.app import Towpath
from towpath.clock import Duration, milliseconds, minutes, seconds, steady
from towpath.embedded import EmbeddedServer
from towpath.engine.leases import lease_by_token
from towpath.engine.model import Complete, Lease
from towpath.engine.retry import Fixed
from towpath.engine.states import State
from towpath.errors import InvalidOption, JobDone, LeaseLost, TowpathError
from towpath.ledger.records.attempts import Ending
from towpath.ledger.records.record import RecordState
from towpath.worker.context import Context, HandOver
from towpath.worker.handler import HandlerOptions
from towpath.worker.worker import Worker

importable = Towpath("")


@importable.handler("processes", processes=1)
def in_a_process(ctx: Context) -> None:
    ctx.progress(int(ctx.token))
    raise HandOver(minutes(10))


class HandOverHandler:
    """A handler of queue `shop` that hands every attempt over, and the leases that it gave away."""

    def __init__(self, app: Towpath, lease: Duration, **options: Any) -> None:
        self.leases: list[Lease] = []
        self.attempts: list[int] = []

        async def sell(ctx: Context) -> str:
            self.attempts.append(ctx.attempt)
            lease_of = lease_by_token(ctx.job, ctx.token, worker="elsewhere", attempt=ctx.attempt)
            self.leases.append(lease_of)
            raise HandOver(lease)

        self.handler = app.add("shop", sell, HandlerOptions(**options))


class TestHandingOver:
    async def test_frees_the_slot_and_settles_nothing(self, app: Towpath, lines: LogLines) -> None:
        hand_over = HandOverHandler(app, minutes(10))
        async with working(app, concurrency=1) as worker:
            jobs = await hand_over.handler.submit_many([None] * 5)
            await eventually_in_loop(lambda: len(lines.of("job.handed_over")) == 5)
            await until_slots(worker, busy=0, free=1)
            counts = await app.engine.inspect.counts("shop")
            assert (counts.leased, counts.totals["released"]) == (5, 0)
            line = lines.of("job.handed_over")[0]
            assert (line["queue"], line["handler"], line["attempt"]) == ("shop", "sell", 1)
            labels = {"queue": "shop", "handler": "sell"}
            counted = worker.metrics.registry.get_sample_value(
                "towpath_jobs_handed_over_total", labels
            )
            assert counted == 5
            for job in jobs:
                assert not isinstance(job, TowpathError)
                assert await _leased_for(job) > seconds(500)

    async def test_lets_the_holder_of_the_token_complete_the_job(
        self, app: Towpath, lines: LogLines
    ) -> None:
        hand_over = HandOverHandler(app, minutes(10))
        async with working(app):
            job = await hand_over.handler.submit()
            await lines.next("job.handed_over")
            await app.engine.complete(hand_over.leases[0], b'"sold"')
            assert await job.result(within=SOON) == "sold"
            with pytest.raises(JobDone):
                await app.engine.fail(hand_over.leases[0], "too late")

    @pytest.mark.parametrize("verb", ["complete", "fail"])
    async def test_may_be_completed_before_the_worker_has_logged_it(
        self, app: Towpath, lines: LogLines, verb: str
    ) -> None:
        """The new holder of the token was faster: that is no stale attempt."""

        @app.handler("shop", retry=Fixed(minutes(1)))
        async def sell(ctx: Context) -> None:
            lease = lease_by_token(ctx.job, ctx.token, worker="elsewhere", attempt=ctx.attempt)
            if verb == "complete":
                await app.engine.complete(lease)
            else:
                await app.engine.fail(lease, "out of paper")
            raise HandOver(minutes(10))

        async with working(app):
            job = await sell.submit()
            await lines.next("job.handed_over")
            assert lines.of("job.stale_refused") == []
            assert await job.state() is (State.DONE if verb == "complete" else State.DELAYED)

    async def test_lets_the_job_fail_by_the_queues_policy(
        self, app: Towpath, lines: LogLines
    ) -> None:
        hand_over = HandOverHandler(app, minutes(10), retry=Fixed(milliseconds(1)), max_attempts=2)
        async with working(app):
            job = await hand_over.handler.submit()
            for number in (1, 2):
                await eventually_in_loop(
                    lambda number=number: len(lines.of("job.handed_over")) == number
                )
                await app.engine.fail(hand_over.leases[-1], "out of paper")
            found = await ended(job)
        assert (found.state, found.reason, hand_over.attempts) == (
            State.DEAD,
            "out of paper",
            [1, 2],
        )

    async def test_lets_the_lease_be_renewed(self, app: Towpath, lines: LogLines) -> None:
        hand_over = HandOverHandler(app, minutes(1))
        async with working(app):
            job = await hand_over.handler.submit()
            await lines.next("job.handed_over")
            await app.engine.renew(hand_over.leases[0], minutes(30))
            assert await _leased_for(job) > minutes(29)

    async def test_ends_with_the_lease_if_nobody_settles_it(
        self, app: Towpath, lines: LogLines
    ) -> None:
        """The heartbeat no longer renews the lease; a late settle is refused."""
        hand_over = HandOverHandler(app, seconds(1))
        async with working(app, lease=seconds(1)):
            await hand_over.handler.submit()
            await eventually_in_loop(lambda: hand_over.attempts[:2] == [1, 2])
            with pytest.raises(LeaseLost):
                await app.engine.complete(hand_over.leases[0])
            app.remove(hand_over.handler)

    @pytest.mark.usefixtures("quick_heartbeat")
    async def test_survives_a_renewal_that_is_under_way(
        self, app: Towpath, lines: LogLines
    ) -> None:
        """The handlers end while the heartbeat renews their leases."""

        @app.handler("shop")
        async def sell(n: int) -> None:
            over = steady() + 0.3 + n / 200
            await eventually_in_loop(lambda: steady() >= over)
            raise HandOver(minutes(10))

        async with working(app, lease=minutes(5)):
            jobs = await sell.submit_many(range(80))
            await eventually_in_loop(lambda: len(lines.of("job.handed_over")) == 80)
        for job in jobs:
            assert not isinstance(job, TowpathError)
            assert await _leased_for(job) > minutes(8)

    async def test_works_from_a_thread(self, app: Towpath, lines: LogLines) -> None:
        @app.handler("shop")
        def sell() -> None:
            raise HandOver(minutes(10))

        async with working(app):
            job = await sell.submit()
            await lines.next("job.handed_over")
            assert await job.state() is State.LEASED

    async def test_works_from_a_process(self, app: Towpath, lines: LogLines) -> None:
        handler = app.add("shop", in_a_process.function, HandlerOptions(processes=1))
        async with working(app):
            job = await handler.submit()
            await lines.next("job.handed_over")
            note = (await job_once(job, lambda info: info.progress)).progress
            assert note is not None
            await app.engine.complete(lease_by_token(job.ref, int(note), worker="elsewhere"))
            assert await job.state() is State.DONE

    async def test_for_a_duration_of_zero_is_a_failed_attempt(
        self, app: Towpath, lines: LogLines
    ) -> None:
        with pytest.raises(InvalidOption):
            HandOver(seconds(0))

        @app.handler("shop", max_attempts=1)
        async def sell() -> None:
            raise HandOver(seconds(-1))

        async with working(app):
            found = await ended(await sell.submit())
        assert "InvalidOption" in str(found.reason)


class TestAWorkerThatStops:
    async def test_does_not_release_jobs_that_were_handed_over(
        self, app: Towpath, lines: LogLines
    ) -> None:
        hand_over = HandOverHandler(app, minutes(10))
        worker = Worker(app)
        running = asyncio.create_task(worker.run())
        job = await hand_over.handler.submit()
        await lines.next("job.handed_over")
        worker.stop()
        worker.stop()
        assert await running == 0
        assert await job.state() is State.LEASED
        assert lines.of("worker.stopped")[0]["released"] == 0
        await app.engine.complete(hand_over.leases[0])

    async def test_hands_over_jobs_that_end_during_the_drain(
        self, app: Towpath, lines: LogLines
    ) -> None:
        go = asyncio.Event()

        @app.handler("shop")
        async def sell() -> None:
            await go.wait()
            raise HandOver(minutes(10))

        worker = Worker(app)
        running = asyncio.create_task(worker.run())
        job = await sell.submit()
        await lines.next("job.started")
        worker.stop()
        await lines.next("worker.stopping")
        go.set()
        assert await running == 0
        assert await job.state() is State.LEASED


class TestARecordedHandler:
    @pytest.fixture
    async def app(self, server: EmbeddedServer, prepared_file_url: str) -> AsyncIterator[Towpath]:
        async with Towpath(server.url, ledger=prepared_file_url) as app:
            yield app

    async def test_leaves_its_row_running_for_the_holder_of_the_token(
        self, app: Towpath, lines: LogLines
    ) -> None:
        hand_over = HandOverHandler(app, minutes(10), record=True)
        async with working(app):
            job = await hand_over.handler.submit(id="a")
            await lines.next("job.handed_over")
            assert (await app.ledger.jobs.get("shop", "a")).state is RecordState.RUNNING
            sold = Complete(hand_over.leases[0], b'"sold"')
            ending = Ending(hand_over.leases[0], sold, cancelled=False)
            assert await app.ledger.jobs.end(ending) is RecordState.COMPLETED
            await app.engine.settle([sold])
            assert await job.result(within=SOON) == "sold"
            assert await job.state() is State.DONE


async def _leased_for(job: Any) -> Duration:
    """How long the lease lasts from its beginning, as Redis has it."""
    found = await job_once(job, lambda info: info.expires_at)
    assert found.expires_at is not None
    assert found.claimed_at is not None
    return found.expires_at - found.claimed_at
