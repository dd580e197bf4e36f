"""`towpath submit`: one job, or one per line; waiting for the end."""

import asyncio
import re

from tests.cli.command import Command, ProgramResult
from tests.waiting import HANGS
from towpath import Engine, Listed, QueueOptions, State, hours, seconds
from towpath.engine.model import job_ref


class TestOneJob:
    async def test_is_submitted_with_all_its_options(
        self, towpath: Command, engine: Engine
    ) -> None:
        ran = towpath(
            "submit", "mails", '{"to": "anna"}', "--priority", "high", "--delay", "10m",
            "--lane", "anna", "--id", "m-1", "--max-attempts", "2", "--header", "a=b=c",
            "--handler", "rerun", "--keep", "1h", "--selector", "o/n|dev",
        )  # fmt: skip
        assert (ran.code, ran.out) == (0, "mails/m-1  delayed\n")
        job = await engine.inspect.job(job_ref("mails", "m-1"))
        assert (job.payload, job.priority, job.lane, job.max_attempts) == (
            b'{"to": "anna"}', 100, "anna", 2,
        )  # fmt: skip
        assert (job.headers, job.selector) == ({"a": "b=c", "handler": "rerun"}, "o/n|dev")
        assert job.due_at is not None
        assert 590 < (job.due_at - job.submitted_at).total_seconds() < 610

    async def test_has_a_retry_policy_and_a_lease_time_of_its_own(
        self, towpath: Command, engine: Engine
    ) -> None:
        told = towpath("submit", "mails", "1", "--retry", "listed:1s,5s", "--lease", "2h", "--json")
        ref = job_ref("mails", told.object["id"])
        job = await engine.inspect.job(ref)
        assert (job.retry, job.max_attempts) == (Listed((seconds(1), seconds(5))), 3)
        [lease] = await engine.claim("mails", worker="w", lease=seconds(9))
        assert lease.expires_at - lease.claimed_at == hours(2)
        assert towpath("jobs", "show", str(ref), "--json").object["retry"] == "listed:1s,5s"

    async def test_under_the_same_id_is_the_same_job(
        self, towpath: Command, engine: Engine
    ) -> None:
        await engine.submit("mails", b"1", id="m-1")
        told = towpath("submit", "mails", "1", "--id", "m-1", "--json").object
        assert (told["existed"], told["same_payload"]) == (True, True)
        assert (await engine.inspect.counts("mails")).ready == 1

    async def test_with_another_payload_is_refused_unless_it_is_asked_for(
        self, towpath: Command, engine: Engine
    ) -> None:
        await engine.submit("mails", b"1", id="m-1")
        words = ("submit", "mails", "2", "--id", "m-1", "--json")
        assert (towpath(*words).code, towpath(*words).refusal["refused"]) == (4, "job_differs")
        told = towpath(*words, "--keep-existing").object
        assert (told["existed"], told["same_payload"]) == (True, False)
        await engine.submit("mails", b"1", id="line.2")
        lines = ("submit", "mails", "--lines", "--id", "line", "--json")
        ran = towpath(*lines, input=b"7\n8\n9\n")
        assert (ran.code, [row["id"] for row in ran.objects]) == (4, ["line.1", "line.3"])
        assert towpath(*lines, "--keep-existing", input=b"7\n8\n9\n").code == 0

    async def test_comes_from_a_file_or_from_standard_input(
        self, towpath: Command, engine: Engine
    ) -> None:
        (towpath.directory / "mail.json").write_text('{"n": 1}\n')
        first = towpath("submit", "mails", "@mail.json", "--due", "2100-01-01T00:00:00", "--json")
        second = towpath("submit", "mails", "--raw", input=b"\xff\x00", TOWPATH_TIMEOUT="9s")
        job = await engine.inspect.job(job_ref("mails", first.object["id"]))
        assert job.payload == b'{"n": 1}'
        assert str(job.due_at) == "2100-01-01 00:00:00+00:00"
        raw = await engine.inspect.job(
            job_ref("mails", second.out.split()[0].removeprefix("mails/"))
        )
        assert raw.payload == b"\xff\x00"

    async def test_that_is_invalid_is_refused_and_not_sent(
        self, towpath: Command, engine: Engine
    ) -> None:
        for words, named in (
            (["mails", "hello"], "payload = "),
            (["mails", "@nowhere", "--delay", "1s"], "payload = '@nowhere'"),
            (["mails", "1", "--retry", "soon"], "retry = 'soon'"),
            (["mails", "1", "--lease", "0s"], "lease = 0 s"),
            (["mails", "1", "--max-attempts", "0"], "max_attempts = 0"),
        ):
            ran = towpath("submit", *words, "--json")
            assert (ran.code, ran.out) == (2, ""), words
            assert ran.refusal["refused"] == "invalid_option", words
            assert named in ran.refusal["message"], words
        assert await engine.queues.list() == {}


class TestReplacing:
    async def test_replaces_a_waiting_job(self, towpath: Command, engine: Engine) -> None:
        words = ("submit", "mails", "--id", "m-1", "--replace")
        assert towpath(*words, "1", "--delay", "10m").out.split() == ["mails/m-1", "delayed"]
        assert towpath(*words, "2").out.split()[:2] == ["mails/m-1", "ready"]
        told = towpath(*words, "3", "--json").object
        assert told == {"queue": "mails", "id": "m-1", "state": "ready", "replaced": True}
        [lease] = await engine.claim("mails", worker="w", lease=seconds(60))
        assert lease.payload == b"3"
        refused = towpath(*words, "4", "--json")
        assert (refused.code, refused.refusal["refused"]) == (4, "job_not_waiting")

    async def test_creates_a_cancelled_job_again(self, towpath: Command, engine: Engine) -> None:
        job = (await engine.submit("mails", b"1", id="m-1")).job
        await engine.cancel(job)
        assert towpath("submit", "mails", "1", "--id", "m-1").code == 0
        assert await engine.inspect.state(job) is State.GONE
        assert towpath("submit", "mails", "1", "--id", "m-1", "--replace").code == 0
        assert await engine.inspect.state(job) is State.READY

    async def test_needs_an_id_and_a_single_job(self, towpath: Command, engine: Engine) -> None:
        assert towpath("submit", "mails", "1", "--replace").code == 2
        words = ("submit", "mails", "1", "--replace", "--id", "a")
        assert towpath(*words, "--keep-existing").code == 2
        assert towpath(*words, "--lines").code == 2


class TestManyJobs:
    async def test_are_one_per_line_and_can_be_repeated(
        self, towpath: Command, engine: Engine
    ) -> None:
        lines = "".join(f'{{"n": {n}}}\n\n' for n in range(1200))
        first = towpath("submit", "mails", "--lines", "--id", "import-7", input=lines)
        assert re.findall(r"\d+", first.out) == ["1200", "0"]
        again = towpath("submit", "mails", "--lines", "--id", "import-7", input=lines)
        assert re.findall(r"\d+", again.out) == ["1200", "1200"]
        assert (await engine.inspect.counts("mails")).ready == 1200
        assert (await engine.inspect.job(job_ref("mails", "import-7.3"))).payload == b'{"n": 1}'

    async def test_are_submitted_with_a_progress_bar(
        self, towpath: Command, engine: Engine
    ) -> None:
        file = "".join(f"{n}\n" for n in range(1000))
        (towpath.directory / "mails.jsonl").write_text(file)
        ran = towpath.in_terminal("submit", "mails", "@mails.jsonl", "--lines").end()
        assert f"{len(file)}/{len(file)}" in ran.out
        assert re.findall(r"\d+", ran.out.splitlines()[-1]) == ["1000", "0"]

    async def test_end_at_the_first_invalid_line(self, towpath: Command, engine: Engine) -> None:
        await engine.queues.configure("small", QueueOptions(max_length=2))
        wrong = towpath("submit", "mails", "--lines", input="1\n2\nthree\n4\n")
        assert wrong.code == 2
        assert re.search(r"invalid_option: .*\b3\b", wrong.err)
        assert (await engine.inspect.counts("mails")).ready == 0
        full = towpath("submit", "small", "--lines", "--json", input="1\n2\n3\n")
        assert full.code == 75
        assert len(full.objects) == 2
        assert full.refusal["refused"] == "queue_full"


class TestWaiting:
    async def test_shows_the_result(self, towpath: Command, engine: Engine) -> None:
        waiting = asyncio.create_task(self.submit_and_wait(towpath, "done"))
        [lease] = await engine.claim("mails", worker="w1", lease=seconds(60), wait=seconds(HANGS))
        await engine.complete(lease, b'{"sent": true}')
        ran = await waiting
        assert (ran.code, ran.out) == (0, '{"sent": true}\n')

    async def test_shows_that_the_job_died(self, towpath: Command, engine: Engine) -> None:
        waiting = asyncio.create_task(self.submit_and_wait(towpath, "dies", "--json"))
        [lease] = await engine.claim("mails", worker="w1", lease=seconds(60), wait=seconds(HANGS))
        await engine.bury(lease, "no such address")
        ran = await waiting
        assert ran.code == 4
        assert (ran.object["state"], ran.object["reason"]) == ("dead", "no such address")
        assert ran.refusal["refused"] == "job_failed"

    async def test_ends_when_the_time_is_over(self, towpath: Command, engine: Engine) -> None:
        ran = towpath("submit", "mails", "1", "--id", "slow", "--wait", "50ms")
        assert (ran.code, ran.out) == (75, "")
        assert "still_open" in ran.err
        assert await engine.inspect.state(job_ref("mails", "slow")) is State.READY

    async def submit_and_wait(self, towpath: Command, id: str, *more: str) -> ProgramResult:
        words = ("submit", "mails", "1", "--id", id, "--wait", "1m", *more)
        return await asyncio.to_thread(towpath, *words)
