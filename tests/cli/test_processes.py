"""`towpath worker --processes` and `--reload`: real processes, killed, stopped and restarted."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Command
from tests.programs import COMMAND, Bounded, Program
from tests.waiting import eventually, eventually_async
from towpath import Engine
from towpath.embedded import EmbeddedServer
from towpath.engine.model import JobRef, job_ref

APP = """
import asyncio
from pathlib import Path
from towpath import Towpath

app = Towpath({url!r})

@app.handler("mails")
async def mail(to: str) -> str:
    return f"sent to {{to}}"

@app.handler("parcels")
async def pack(door: str) -> str:
    while not Path(door).exists():
        await asyncio.sleep(0.01)
    return "packed"
"""


class WorkerProcesses:
    """A `towpath worker` with child processes, and their log lines."""

    def __init__(self, process: Program[str] | Bounded[str]) -> None:
        self.process = process
        self.said: list[dict[str, Any]] = []

    def until(self, event: str, times: int = 1) -> list[dict[str, Any]]:
        """The next lines about *event*. Fails if all of them have ended before."""
        assert self.process.stderr is not None
        found: list[dict[str, Any]] = []
        while len(found) < times:
            line = self.process.stderr.readline()
            assert line, f"no {event} in {self.said}"
            self.said.append(json.loads(line))
            found += [fields for fields in self.said[-1:] if fields.get("event") == event]
        return found

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        assert self.process.stderr is not None
        self.said += [json.loads(line) for line in self.process.stderr.read().splitlines()]
        return self.process.wait()


@pytest.fixture
def towpath(server: EmbeddedServer, tmp_path: Path) -> Command:
    (tmp_path / "shop.py").write_text(APP.format(url=server.url))
    return Command(server.url, tmp_path)


@pytest.fixture
def workers(towpath: Command) -> Iterator[WorkerProcesses]:
    """Two processes that take jobs."""
    with towpath.start(
        "worker", "shop:app", "--processes", "2", "--name", "w", "--json"
    ) as process:
        program = WorkerProcesses(process)
        try:
            program.until("worker.started", times=2)
            yield program
        finally:
            process.kill()


async def pids(engine: Engine) -> dict[str, int]:
    return {worker.name: worker.report.pid for worker in await engine.workers.list()}


class TestSeveralProcesses:
    async def test_restart_one_that_is_killed(
        self, workers: WorkerProcesses, engine: Engine, towpath: Command
    ) -> None:
        """It is said; listings show each; a signal ends all of them."""
        await eventually_async(lambda: _are_there(engine, {"w.1", "w.2"}))
        before = await pids(engine)
        os.kill(before["w.2"], signal.SIGKILL)
        [died] = workers.until("worker.child_died")
        assert (died["pid"], died["code"]) == (before["w.2"], -signal.SIGKILL)
        assert died["pause"] > 0
        [again] = workers.until("worker.child_started")
        assert again["pid"] != before["w.2"]
        workers.until("worker.started")

        async def is_listed() -> bool:
            return await pids(engine) == {"w.1": before["w.1"], "w.2": again["pid"]}

        await eventually_async(is_listed)
        assert {row["pid"] for row in towpath("workers", "--json").objects} == {
            before["w.1"], again["pid"],
        }  # fmt: skip
        workers.signal()
        assert workers.ended() == 0
        assert not any(map(_runs, (before["w.1"], again["pid"])))

    async def test_a_signal_lets_running_jobs_finish(
        self, workers: WorkerProcesses, engine: Engine, tmp_path: Path
    ) -> None:
        door = tmp_path / "door"
        job = (await engine.submit("parcels", json.dumps(str(door)).encode())).job
        await eventually_async(lambda: _leased(engine))
        workers.signal(signal.SIGINT)
        workers.until("worker.stopping", times=2)
        door.touch()
        assert workers.ended() == 0
        assert (await engine.inspect.job(job)).result == b'"packed"'

    async def test_ctrl_c_in_a_terminal_counts_as_one_signal(
        self, towpath: Command, engine: Engine, tmp_path: Path
    ) -> None:
        """A terminal sends it to the whole group: what runs finishes all the same."""
        door = tmp_path / "door"
        job = (await engine.submit("parcels", json.dumps(str(door)).encode())).job
        with Bounded[str](
            [COMMAND, "worker", "shop:app", "-p", "2", "--json"], env=towpath.env, cwd=tmp_path,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        ) as process:  # fmt: skip
            workers = WorkerProcesses(process)
            workers.until("worker.started", times=2)
            await eventually_async(lambda: _leased(engine))
            os.killpg(process.pid, signal.SIGINT)
            workers.until("worker.stopping", times=2)
            door.touch()
            assert workers.ended() == 0
        assert (await engine.inspect.job(job)).result == b'"packed"'
        assert "job.released" not in [line.get("event") for line in workers.said]

    async def test_a_second_signal_releases_running_jobs_at_once(
        self, workers: WorkerProcesses, engine: Engine, tmp_path: Path
    ) -> None:
        payload = json.dumps(str(tmp_path / "door")).encode()
        await engine.submit("parcels", payload, id="p-1")
        await eventually_async(lambda: _leased(engine))
        workers.signal()
        workers.until("worker.stopping", times=2)
        workers.signal()
        assert workers.ended() == 0
        job = await engine.inspect.job(job_ref("parcels", "p-1"))
        assert (job.state, job.attempts) == ("ready", 0)

    async def test_one_that_is_killed_while_all_drain_makes_the_exit_code_75(
        self, workers: WorkerProcesses, engine: Engine, tmp_path: Path
    ) -> None:
        """Its jobs come back when their lease ends; nobody is started for them."""
        payload = json.dumps(str(tmp_path / "door")).encode()
        job = (await engine.submit("parcels", payload)).job
        await eventually_async(lambda: _are_there(engine, {"w.1", "w.2"}))
        await eventually_async(lambda: _leased(engine))
        holder = (await pids(engine))[(await engine.inspect.job(job)).worker or ""]
        workers.signal()
        workers.until("worker.stopping", times=2)
        os.kill(holder, signal.SIGKILL)
        assert workers.ended() == 75
        assert "worker.child_died" not in [line.get("event") for line in workers.said]

    async def test_all_end_when_their_parent_is_killed(
        self, workers: WorkerProcesses, engine: Engine
    ) -> None:
        await eventually_async(lambda: _are_there(engine, {"w.1", "w.2"}))
        children = (await pids(engine)).values()
        workers.signal(signal.SIGKILL)
        eventually(lambda: not any(map(_runs, children)))


class TestADrain:
    async def test_ends_when_no_process_has_a_job_left(
        self, towpath: Command, engine: Engine
    ) -> None:
        for n in range(20):
            await engine.submit("mails", b'"anna"', id=f"m-{n}")
        ran = towpath("worker", "shop:app", "-p", "2", "--drain", "--queues", "mails", "--json")
        assert (ran.code, ran.out) == (0, "")
        assert (await engine.inspect.counts("mails")).totals["completed"] == 20


class TestRefusals:
    @pytest.mark.parametrize(
        ("words", "code", "refused", "named"),
        [
            (["shop:ap"], 5, "app_not_found", "shop:ap"),
            (["shop:app", "--queues", "mials"], 2, "handler_invalid", "mials"),
            (["shop:app", "--metrics-port", "65535"], 2, "invalid_option", "worker.metrics_port"),
            (["shop:app", "--processes", "0"], 2, "invalid_option", "worker.processes"),
        ],
    )
    def test_several_processes_refuse_what_one_worker_would_refuse(
        self, words: list[str], code: int, refused: str, named: str, towpath: Command
    ) -> None:
        ran = towpath("worker", "--processes", "2", *words, "--json")
        assert (ran.code, ran.refusal["refused"]) == (code, refused)
        assert named in ran.refusal["message"]
        assert "worker.child_started" not in ran.err

    def test_a_port_that_is_taken_ends_all_processes(self, towpath: Command) -> None:
        """Another start would be refused, too."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            ran = towpath("worker", "shop:app", "-p", "2", "--metrics-port", port)
        assert ran.code == 2
        assert "worker.metrics_port" in ran.err


class TestReloading:
    @pytest.fixture
    def reloading(self, towpath: Command) -> Iterator[WorkerProcesses]:
        with towpath.start("worker", "shop:app", "--reload", "--json") as process:
            program = WorkerProcesses(process)
            try:
                program.until("worker.started")
                yield program
            finally:
                process.kill()

    async def test_lets_running_jobs_finish_and_then_runs_the_new_code(
        self, reloading: WorkerProcesses, engine: Engine, tmp_path: Path
    ) -> None:
        door = tmp_path / "door"
        old = (await engine.submit("parcels", json.dumps(str(door)).encode())).job
        await eventually_async(lambda: _leased(engine))
        source = tmp_path / "shop.py"
        source.write_text(source.read_text().replace('"packed"', '"packed anew"'))
        [changed] = reloading.until("reload.changed")
        assert changed["files"] == [str(source)]
        reloading.until("worker.stopping")
        door.touch()
        reloading.until("worker.started")
        new = (await engine.submit("parcels", json.dumps(str(door)).encode())).job
        await eventually_async(lambda: _done(engine, new))
        assert (await engine.inspect.job(old)).result == b'"packed"'
        assert (await engine.inspect.job(new)).result == b'"packed anew"'
        reloading.signal()
        assert reloading.ended() == 0

    async def test_a_file_that_python_cannot_read_is_reported_and_waited_for(
        self, reloading: WorkerProcesses, engine: Engine, tmp_path: Path
    ) -> None:
        """Meanwhile the worker goes on with the old code."""
        source = tmp_path / "shop.py"
        good = source.read_text()
        source.write_text(good + "\ndef broken(:\n")
        [refused] = reloading.until("reload.refused")
        assert refused["place"] == str(source)
        assert "line" in refused["reason"]
        before = (await engine.submit("mails", b'"anna"')).job
        await eventually_async(lambda: _done(engine, before))
        source.write_text(good.replace("sent to", "posted to"))
        reloading.until("worker.started")
        after = (await engine.submit("mails", b'"anna"')).job
        await eventually_async(lambda: _done(engine, after))
        assert (await engine.inspect.job(after)).result == b'"posted to anna"'
        reloading.signal()
        assert reloading.ended() == 0

    async def test_a_worker_that_cannot_start_waits_for_a_change(
        self, towpath: Command, engine: Engine, tmp_path: Path
    ) -> None:
        source = tmp_path / "shop.py"
        good = source.read_text()
        source.write_text("import nowhere_at_all\n")
        with towpath.start("worker", "shop:app", "--reload", "--json") as process:
            reloading = WorkerProcesses(process)
            reloading.until("reload.waiting")
            source.write_text(good)
            reloading.until("worker.started")
            reloading.signal()
            assert reloading.ended() == 0


async def _are_there(engine: Engine, names: set[str]) -> bool:
    return set(await pids(engine)) == names


async def _leased(engine: Engine) -> bool:
    return (await engine.inspect.counts("parcels")).leased == 1


async def _done(engine: Engine, job: JobRef) -> bool:
    return await engine.inspect.state(job) == "done"


def _runs(pid: int) -> bool:
    """Whether it has not ended; one that was not collected yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
