"""`towpath workers`: the live workers, and what they run."""

import msgspec

from tests.cli.command import Command
from towpath import Engine
from towpath.engine.model import job_ref
from towpath.engine.worker_registry import BlockedLoop, HandlerReport, RunningJob, WorkerReport


class TestListingWorkers:
    async def test_shows_workers_and_what_they_run(self, towpath: Command, engine: Engine) -> None:
        runs = [RunningJob(job_ref("mails", f"m-{n}"), 1_767_225_600_000 + n) for n in range(4)]
        report = WorkerReport(
            host="build-3", pid=77, queues=["mails"], serving=1, slots=10, running=4, jobs=runs
        )
        await engine.workers.report("anna", report)
        ran = towpath("workers")
        assert ran.code == 0
        head, row = ran.out.splitlines()
        assert head.split() == [
            "WORKER", "HOST", "PID", "SINCE", "SLOTS", "RUNNING", "QUEUES", "RUNS",
        ]  # fmt: skip
        assert row.startswith("anna")
        assert "mails/m-0, mails/m-1, mails/m-2 and 1 more" in row
        told = towpath("workers", "--json").object
        assert (told["name"], told["host"], told["pid"], told["slots"]) == (
            "anna", "build-3", 77, 10,
        )  # fmt: skip
        assert [job["id"] for job in told["jobs"]] == ["m-0", "m-1", "m-2", "m-3"]
        assert told["blocked"] is None
        assert (told["release"], told["handlers"]) == (None, None)

    async def test_lists_release_and_handlers(self, towpath: Command, engine: Engine) -> None:
        report = WorkerReport(
            host="a", pid=7, queues=["mails"], serving=1, slots=1, running=0, jobs=[],
            release="1.2", handlers=[HandlerReport("mails", None, "1f")], handling=1,
        )  # fmt: skip
        await engine.workers.report("anna", report)
        told = towpath("workers", "--json").object
        assert (told["release"], told["handling"]) == ("1.2", 1)
        assert told["handlers"] == [{"queue": "mails", "name": None, "digest": "1f"}]

    async def test_marks_a_worker_whose_loop_is_blocked(
        self, towpath: Command, engine: Engine
    ) -> None:
        free = WorkerReport(
            host="a", pid=7, queues=["mails"], serving=1, slots=1, running=0, jobs=[]
        )
        job = job_ref("mails", "m-1")
        stuck = msgspec.structs.replace(free, blocked=BlockedLoop(41.7, "send", job))
        unknown = msgspec.structs.replace(free, blocked=BlockedLoop(3.0))
        for name, report in {"anna": free, "berta": stuck, "carla": unknown}.items():
            await engine.workers.report(name, report)
        head, *rows = towpath("workers").out.splitlines()
        assert head.split()[-1] == "BLOCKED"
        assert [("send" in row, "mails/m-1" in row) for row in rows] == [
            (False, False), (True, True), (False, False),
        ]  # fmt: skip
        assert [worker["blocked"] for worker in towpath("workers", "--json").objects] == [
            None,
            {"seconds": 41.7, "handler": "send", "queue": "mails", "id": "m-1"},
            {"seconds": 3.0, "handler": None, "queue": None, "id": None},
        ]

    def test_shows_a_hint_when_no_worker_is_alive(self, towpath: Command) -> None:
        ran = towpath("workers")
        assert (ran.code, ran.out) == (0, "")
        assert ran.err
