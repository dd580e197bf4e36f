"""`towpath workers`: who is alive, and what they run."""

from tests.cli.command import Command
from towpath import Engine
from towpath.engine.living import Doing, RunningJob
from towpath.engine.model import job_ref


class TestListingWorkers:
    async def test_says_who_is_alive_and_what_they_run(
        self, towpath: Command, engine: Engine
    ) -> None:
        runs = [RunningJob(job_ref("mails", f"m-{n}"), 1_767_225_600_000 + n) for n in range(4)]
        doing = Doing(
            host="build-3", pid=77, queues=["mails"], serving=1, slots=10, running=4, jobs=runs
        )
        await engine.workers.tell("anna", doing)
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

    def test_says_that_nobody_is(self, towpath: Command) -> None:
        ran = towpath("workers")
        assert (ran.code, ran.out) == (0, "")
        assert "no worker is alive" in ran.err
