"""Faults for users' tests: workers killed and frozen, replies cut, Redis stopped."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.testing import shop
from tests.testing.conftest import NewBench
from tests.testing.shop import Gate, bill, hold
from tests.waiting import HANGS, eventually
from towpath import State, milliseconds, seconds
from towpath.embedded import EmbeddedServer
from towpath.errors import InvalidOption
from towpath.testing import Bench, NeverHappened, WorkerEnded, faults, running

SHOP = "tests.testing.shop:app"


class HeldJob:
    """A job that a worker process holds and cannot finish until the test allows it."""

    def __init__(self, folder: Path) -> None:
        self.begun, self.go = folder / "begun", folder / "go"

    @property
    def gate(self) -> Gate:
        return Gate(str(self.begun), str(self.go))

    def has_begun(self) -> bool:
        return self.begun.exists()

    def let_go(self) -> None:
        self.go.touch()


@pytest.fixture
def held(tmp_path: Path) -> HeldJob:
    return HeldJob(tmp_path)


@pytest.fixture
async def worker(bench: Bench) -> AsyncIterator[faults.WorkerProcess]:
    async with bench.worker_process(SHOP) as worker:
        yield worker


class TestAWorkerProcess:
    async def test_runs_jobs(self, bench: Bench, worker: faults.WorkerProcess) -> None:
        job = await bill.submit(3)
        assert await job.result(within=seconds(HANGS)) == 3
        worker.stop()
        assert worker.exit_code == 0
        assert "job.completed" in worker.log

    async def test_uses_the_clock_of_its_bench(
        self, bench: Bench, worker: faults.WorkerProcess
    ) -> None:
        job = await bill.submit(3, delay=seconds(3600))
        assert await job.state() is State.DELAYED
        bench.advance(hours=1)
        assert await job.result(within=seconds(HANGS)) == 3

    async def test_that_is_killed_leaves_its_job_to_other_workers(
        self, bench: Bench, worker: faults.WorkerProcess, held: HeldJob
    ) -> None:
        """They get it once the lease is over, and not before."""
        job = await hold.submit(held.gate)
        await worker.wait_for(held.has_begun)
        worker.kill()
        assert worker.exit_code == -signal.SIGKILL
        held.let_go()
        bench.advance(seconds=14)
        assert await bench.drain() == []
        bench.advance(seconds=2)
        assert await bench.drain() == [(job.ref, State.DONE)]
        [seen] = await bench.jobs(hold)
        assert seen.attempts == 2

    async def test_that_was_frozen_past_its_lease_changes_nothing(
        self, bench: Bench, worker: faults.WorkerProcess, held: HeldJob
    ) -> None:
        """It wakes up, finishes, and is refused: another worker has the job by then."""
        job = await hold.submit(held.gate)
        await worker.wait_for(held.has_begun)
        first = int(held.begun.read_text())
        worker.freeze()
        held.let_go()
        bench.advance(seconds=16)
        assert await bench.drain() == [(job.ref, State.DONE)]
        result = (await bench.jobs(hold))[0].result
        worker.thaw()
        await worker.wait_for(lambda: "job.stale_refused" in worker.log or "job.lost" in worker.log)
        [seen] = await bench.jobs(hold)
        assert (seen.state, seen.result) == (State.DONE, result)
        assert seen.job.token is not None
        assert seen.job.token > first

    async def test_keeps_its_job_in_real_time(self, bench: Bench, held: HeldJob) -> None:
        """Its heartbeats renew its lease, even while the manual clock stands still."""
        async with bench.worker_process(SHOP, lease=seconds(1)) as worker:
            job = await hold.submit(held.gate)
            await worker.wait_for(held.has_begun)
            [before] = await bench.jobs(hold)
            bench.advance(milliseconds=500)

            async def renewed() -> bool:
                [now] = await bench.jobs(hold)
                assert now.job.expires_at is not None
                assert before.job.expires_at is not None
                return now.job.expires_at > before.job.expires_at

            await worker.wait_for(renewed)
            held.let_go()
            assert await job.result(within=seconds(HANGS))

    async def test_that_is_stopped_finishes_its_jobs(
        self, bench: Bench, worker: faults.WorkerProcess, held: HeldJob
    ) -> None:
        job = await hold.submit(held.gate)
        await worker.wait_for(held.has_begun)
        stopping = asyncio.create_task(asyncio.to_thread(worker.stop))
        await worker.wait_for(lambda: "worker.stopping" in worker.log)
        held.let_go()
        await stopping
        assert worker.exit_code == 0
        assert await job.state() is State.DONE

    async def test_that_has_ended_is_not_waited_for(
        self, bench: Bench, worker: faults.WorkerProcess
    ) -> None:
        worker.kill()
        with pytest.raises(WorkerEnded) as refusal:
            await worker.wait_for(lambda: False)
        assert refusal.value.exit_code == -9
        assert "worker.started" in refusal.value.said
        with pytest.raises(WorkerEnded):
            worker.freeze()

    async def test_is_not_waited_for_for_ever(
        self, bench: Bench, worker: faults.WorkerProcess
    ) -> None:
        with pytest.raises(NeverHappened, match=r"worker\.started"):
            await worker.wait_for(lambda: False, within=milliseconds(50))

    @pytest.mark.parametrize(
        ("app", "said"),
        [("no_such_module:app", "ModuleNotFoundError"), ("tests.testing.shop:bill", "Towpath")],
    )
    def test_that_cannot_start_says_why(self, towpath_url: str, app: str, said: str) -> None:
        worker = faults.WorkerProcess(app, url=towpath_url)
        with pytest.raises(WorkerEnded, match=said):
            worker.start()
        assert not worker.running

    async def test_ends_with_its_block(self, bench: Bench) -> None:
        with bench.worker_process(SHOP) as worker:
            pid = worker.pid
            worker.freeze()
        assert not worker.running
        eventually(lambda: not Path(f"/proc/{pid}").exists())


class TestCutReplies:
    async def test_that_are_cut_once_are_made_up_for(
        self, towpath_server: EmbeddedServer, towpath_url: str
    ) -> None:
        """Redis has accepted the job; there is one job, though the client repeated its call."""
        with faults.cut_replies(towpath_server) as proxy:
            async with running(shop.app, url=proxy.url) as bench:
                await bill.submit(1)
                proxy.cut_next()
                job = await bill.submit(2)
                assert proxy.cuts == 1
                assert not job.existed
                assert [seen.payload for seen in await bench.jobs(bill)] == [1, 2]
                proxy.cut_next(2)
                assert [attempt.state for attempt in await bench.drain()] == [
                    State.DONE,
                    State.DONE,
                ]
                assert proxy.cuts == 3

    async def test_that_are_cut_again_and_again_cost_no_job(
        self, towpath_server: EmbeddedServer, towpath_url: str
    ) -> None:
        with faults.cut_replies(towpath_server) as proxy:
            async with running(shop.app, url=proxy.url) as bench:
                proxy.cut_every(2)
                for number in range(20):
                    await bill.submit(number)
                ran = await bench.drain(concurrency=2)
                proxy.cut_no_more()
                assert proxy.cuts >= 10
                assert [attempt.state for attempt in ran] == [State.DONE] * 20
                assert bench.submitted(bill) == list(range(20))
                assert {job.attempts for job in await bench.jobs(bill)} == {1}

    async def test_are_cut_for_blocking_code_too(
        self, towpath_server: EmbeddedServer, towpath_url: str
    ) -> None:
        with faults.cut_replies(towpath_server) as proxy:
            async with running(shop.app, url=proxy.url) as bench:
                await bill.submit(1)
                proxy.cut_next()
                await asyncio.to_thread(bill.blocking.submit, 2)
                assert proxy.cuts == 1
                assert bench.submitted(bill) == [1, 2]

    async def test_cannot_all_be_cut(
        self, towpath_server: EmbeddedServer, towpath_url: str
    ) -> None:
        with faults.cut_replies(towpath_server) as proxy, pytest.raises(InvalidOption):
            proxy.cut_every(1)


class TestAStoppedRedis:
    async def test_comes_back_with_all_its_data(
        self, bench: Bench, towpath_server: EmbeddedServer
    ) -> None:
        before = await bill.submit(1)
        async with faults.server_down(towpath_server):
            assert not towpath_server.running
            waiting = asyncio.create_task(bill.submit(2))
            await asyncio.sleep(0)
        during = await waiting
        assert {attempt.job for attempt in await bench.drain()} == {before.ref, during.ref}

    async def test_leaves_no_data_for_the_next_stop(
        self, towpath_bench: NewBench, towpath_server: EmbeddedServer
    ) -> None:
        """Data that was saved during one stop is not read after another."""
        async with towpath_bench(shop.app) as bench:
            await bill.submit(1)
            async with faults.server_down(towpath_server):
                pass
            await bench.drain()
        towpath_server.kill()
        towpath_server.restart()
        async with towpath_bench(shop.app) as bench:
            assert await bench.jobs(bill) == []
