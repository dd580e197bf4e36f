"""I17, I12: what a worker program leaves behind when it is stopped, killed or frozen."""

import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.queue_contents import contents_of
from tests.programs import Program
from tests.waiting import HANGS, eventually
from tests.worker import worker_program
from tests.worker.in_process_worker import SOON, ended
from tests.worker.worker_programs import is_gone, programs
from towpath.app.app import Towpath
from towpath.app.submitting import AppHandler
from towpath.clock import minutes, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.states import State


@pytest.fixture
async def submitting_app(server: EmbeddedServer) -> AsyncIterator[Towpath]:
    """The app of the worker programs, for a test that submits."""
    worker_program.app.url = server.url
    async with worker_program.app:
        yield worker_program.app


LONG = minutes(2)
"""A grace that no program of these tests waits for."""


def exit_code(program: Program[bytes]) -> int:
    """The exit code; the limit is for busy machines, and well below a long grace time."""
    return program.wait(timeout=HANGS)


async def test_sigterm_lets_running_jobs_finish_and_claims_no_more(
    server: EmbeddedServer, submitting_app: Towpath, tmp_path: Path
) -> None:
    first = [await worker_program.wait_for.submit(str(tmp_path / "go")) for _ in range(2)]
    with programs(server.url, tmp_path, concurrency=2) as workers:
        program = workers.start()
        workers.began(2)
        later = await worker_program.sell.submit()
        program.send_signal(signal.SIGTERM)
        eventually(lambda: workers.entries("worker.stopping"))
        (tmp_path / "go").touch()
        assert exit_code(program) == 0
        assert len(workers.entries("began")) == 2
    found = await contents_of(submitting_app.engine, worker_program.QUEUE)
    assert found.ids(State.DONE) == {entry.id for entry in first}
    assert found.ids(State.READY) == {later.id}
    assert found.counts.totals["released"] == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_releases_all_jobs_at_once(
    server: EmbeddedServer, submitting_app: Towpath, tmp_path: Path, second: signal.Signals
) -> None:
    """An async handler, one in a thread and one in a process, none of which ever returns."""
    never = str(tmp_path / "never")
    held = [
        await worker_program.wait_for.submit(never),
        *[await worker_program.wait_in_executor.submit(never) for _ in range(40)],
        await worker_program.wait_in_thread.submit(never),
        await worker_program.wait_in_process.submit(never),
    ]
    with programs(server.url, tmp_path, grace=LONG, concurrency=100) as workers:
        program = workers.start()
        children = {entry.pid for entry in workers.began(len(held))} - {program.pid}
        program.send_signal(signal.SIGTERM)
        eventually(lambda: workers.entries("worker.stopping"))
        program.send_signal(second)
        assert exit_code(program) == 0
        assert len(children) == 1
        assert all(is_gone(pid) for pid in children)
    jobs = [await submitting_app.engine.inspect.job(job.ref) for job in held]
    assert [(job.state, job.attempts) for job in jobs] == [(State.READY, 0)] * len(held)


async def test_a_job_that_is_not_done_within_the_grace_time_is_released(
    server: EmbeddedServer, submitting_app: Towpath, tmp_path: Path
) -> None:
    held = await worker_program.wait_for.submit(str(tmp_path / "never"))
    with programs(server.url, tmp_path, grace=seconds(0.5)) as workers:
        program = workers.start()
        workers.began(1)
        program.send_signal(signal.SIGTERM)
        assert exit_code(program) == 0
    assert await held.state() is State.READY
    assert (await submitting_app.engine.inspect.job(held.ref)).attempts == 0


@pytest.mark.parametrize("signals", [1, 2])
async def test_a_worker_whose_loop_is_blocked_ends_as_well(
    server: EmbeddedServer, submitting_app: Towpath, tmp_path: Path, signals: int
) -> None:
    """It ends after the grace time, or at the second signal, and releases all its jobs."""
    grace = LONG if signals == 2 else seconds(0.5)
    beside = await worker_program.wait_for.submit(str(tmp_path / "never"))
    with programs(server.url, tmp_path, grace=grace) as workers:
        program = workers.start()
        workers.began(1)
        held = [beside, await worker_program.block_the_loop.submit(str(tmp_path / "never"))]
        workers.began(2)
        for _ in range(signals):
            program.send_signal(signal.SIGTERM)
            # The blocked loop logs nothing, so the test waits until the signal is no longer
            # pending.
            eventually(lambda: not _pending(program.pid))
        assert exit_code(program) == 75
        assert {entry.id for entry in workers.entries("job.released")} == {job.id for job in held}
        assert len(workers.entries("worker.stopped")) == 1
    jobs = [await submitting_app.engine.inspect.job(job.ref) for job in held]
    assert [(job.state, job.attempts) for job in jobs] == [(State.READY, 0)] * 2
    assert await submitting_app.engine.workers.list() == []


def _pending(pid: int) -> bool:
    """Whether a signal to the process is still pending."""
    status = Path(f"/proc/{pid}/status").read_text()
    return any(
        int(line.split()[1], 16) for line in status.splitlines() if line.startswith("ShdPnd")
    )


async def test_an_idle_worker_ends_at_once(
    server: EmbeddedServer, submitting_app: Towpath, tmp_path: Path
) -> None:
    with programs(server.url, tmp_path, grace=LONG) as workers:
        program = workers.start()
        await (await worker_program.sell.submit()).result(within=SOON)
        program.send_signal(signal.SIGINT)
        assert exit_code(program) == 0


async def test_the_jobs_of_a_killed_worker_run_again(
    server: EmbeddedServer, submitting_app: Towpath, tmp_path: Path
) -> None:
    jobs = [await worker_program.wait_for.submit(str(tmp_path / "go")) for _ in range(5)]
    with programs(server.url, tmp_path) as workers:
        first, _ = workers.start(), workers.start()
        workers.began(5)
        ours = [entry for entry in workers.entries("began") if entry.pid == first.pid]
        first.kill()
        workers.began(5 + len(ours))
        (tmp_path / "go").touch()
        tokens = [await job.result(within=SOON) for job in jobs]
        entries = workers.entries("began")
    assert len(entries) == 5 + len(ours)
    assert set(tokens) <= {entry.token for entry in entries}


async def test_a_worker_frozen_past_its_lease_settles_nothing(
    server: EmbeddedServer, submitting_app: Towpath, tmp_path: Path
) -> None:
    """It finds its jobs with another worker; its late results are refused, and that is logged."""
    job = await worker_program.wait_in_thread.submit(str(tmp_path / "go"))
    with programs(server.url, tmp_path) as workers:
        frozen = workers.start()
        [old] = workers.began(1)
        frozen.send_signal(signal.SIGSTOP)
        workers.start()
        new = workers.began(2)[-1]
        (tmp_path / "go").touch()
        token = await job.result(within=SOON)
        frozen.send_signal(signal.SIGCONT)
        eventually(lambda: workers.entries("job.stale_refused"))
        eventually(lambda: workers.entries("worker.frozen"))
        done = workers.entries("job.completed")
        assert not workers.entries("loop.blocked")
    assert [entry.id for entry in done] == [job.id]
    assert token == new.token > old.token
    assert (await submitting_app.engine.inspect.counts(worker_program.QUEUE)).totals[
        "completed"
    ] == 1


@pytest.mark.parametrize("handler", [worker_program.leave, worker_program.leave_in_thread])
async def test_a_job_that_kills_its_workers_is_dead_after_its_attempts(
    server: EmbeddedServer,
    submitting_app: Towpath,
    tmp_path: Path,
    handler: AppHandler[int, None, Any],
) -> None:
    job = await handler.submit(7)
    with programs(server.url, tmp_path, lease=seconds(1)) as workers:
        for _ in range(2):
            assert exit_code(workers.start()) == 7
        workers.start()
        dead = await ended(job)
        assert len(workers.entries("began")) == 2
    assert dead.state is State.DEAD
    assert dead.reason is not None
    assert dead.reason.startswith("LEASE_ENDED")


async def test_a_handlers_process_that_ends_during_a_job_costs_one_attempt(
    server: EmbeddedServer, submitting_app: Towpath, tmp_path: Path
) -> None:
    """The worker goes on; the reason says how the process ended."""
    job = await worker_program.leave_in_process.submit(7)
    with programs(server.url, tmp_path) as workers:
        program = workers.start()
        dead = await ended(job)
        await (await worker_program.sell.submit()).result(within=SOON)
        pids = {entry.pid for entry in workers.entries("began") if entry.id == job.id}
        assert program.poll() is None
    assert (dead.state, dead.attempts) == (State.DEAD, 2)
    assert (dead.reason or "").startswith("ProcessDied: ")
    assert re.findall(r"\d+", dead.reason or "") == ["7"]
    assert len(pids - {program.pid}) == 2


async def test_processes_of_handlers_end_with_their_worker(
    server: EmbeddedServer, submitting_app: Towpath, tmp_path: Path
) -> None:
    """The worker is killed: its processes must not go on beside the next attempt."""
    for _ in range(2):
        await worker_program.wait_in_process.submit(str(tmp_path / "never"))
    with programs(server.url, tmp_path) as workers:
        program = workers.start()
        children = {entry.pid for entry in workers.began(2)}
        program.kill()
        program.wait()
        eventually(lambda: all(is_gone(pid) for pid in children))
    assert len(children) == 2
