"""`towpath jobs`: list, show, cancel, move, retry, delete."""

import pytest

from tests.cli.command import Command
from tests.cli.jobs import KEEPING, bury
from towpath import Engine, State, hours, seconds
from towpath.app.jobs import AllJobs, no_ledger
from towpath.cli.listing import PageQuery, find_page, places_of
from towpath.engine.model import job_ref, new_job
from towpath.errors import InvalidOption


class TestListing:
    async def test_goes_page_by_page_through_queues_and_states(
        self, towpath: Command, engine: Engine
    ) -> None:
        """Each page names the next one; together they show every job once."""
        await engine.submit_many("b", [new_job(b"1", id=f"r-{n}") for n in range(3)])
        await engine.submit("a", b"1", id="later", delay=hours(1))
        await bury(engine, "a", "dead-1")
        seen: list[str] = []
        after: list[str] = []
        while True:
            ran = towpath("jobs", "list", "--limit", "2", "--json", *after)
            assert len(ran.objects) <= 2
            seen += [f"{job['queue']}/{job['id']}/{job['state']}" for job in ran.objects]
            if not ran.err:
                break
            after = ["--after", ran.refusal["after"]]
        assert seen == [
            "a/later/delayed", "a/dead-1/dead", "b/r-0/ready", "b/r-1/ready", "b/r-2/ready",
        ]  # fmt: skip

    async def test_shows_a_table_with_one_line_per_job(
        self, towpath: Command, engine: Engine
    ) -> None:
        await bury(engine, "mails", "m-1", reason="line one\nline \x1b[31mtwo [bold]x[/bold]")
        await engine.submit("mails", b"1", id="m-2")
        ran = towpath("jobs", "list", "--queue", "mails", "--state", "dead", "--all")
        header, line = ran.out.splitlines()
        assert header.split() == [
            "JOB", "STATE", "PRIORITY", "LANE", "ATTEMPTS", "SUBMITTED", "ABOUT",
        ]  # fmt: skip
        assert line.split()[:3] == ["mails/m-1", "dead", "100"]
        assert line.endswith(r"line one line \x1b[31mtwo [bold]x[/bold]")

    async def test_of_a_lane_shows_its_head_and_the_waiting_jobs(
        self, towpath: Command, engine: Engine
    ) -> None:
        for id, lane in (("a1", "anna"), ("b1", "ben"), ("a2", "anna"), ("a3", "anna")):
            await engine.submit("mails", b"1", id=id, lane=lane)
        ran = towpath("jobs", "list", "--lane", "anna", "--json")
        assert [(job["id"], job["state"]) for job in ran.objects] == [
            ("a1", "ready"), ("a2", "waiting"), ("a3", "waiting"),
        ]  # fmt: skip

    async def test_refuses_unknown_states_and_cursors(
        self, towpath: Command, engine: Engine
    ) -> None:
        wrong = towpath("jobs", "list", "--state", "lost")
        assert (wrong.code, wrong.out) == (2, "")
        assert "state = 'lost'" in wrong.err
        await engine.submit("mails", b"1")
        places = await places_of(engine, None, [])
        for after in ("nonsense", "mails/lost/x", "reports/ready/", "mails/ready/nonsense"):
            with pytest.raises(InvalidOption):
                await find_page(
                    AllJobs(engine, no_ledger), PageQuery(places, lane=None, limit=1, after=after)
                )


class TestShowing:
    async def test_shows_everything_about_a_job(self, towpath: Command, engine: Engine) -> None:
        await engine.queues.configure("mails", KEEPING)
        job = await engine.submit("mails", b'{"n": 1}', id="m/1", headers={"handler": "x"})
        [lease] = await engine.claim("mails", worker="w1", lease=seconds(60))
        await engine.progress(lease, b"half")

        lines = towpath("jobs", "show", "mails/m/1").out.splitlines()
        told = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}
        assert told["payload"] == '{"n": 1}'
        assert told["progress"] == "half"
        assert told["worker"] == "w1"
        assert told["headers"] == "handler=x"
        assert told["why"].startswith("leased by w1 until")

        await engine.complete(lease, b"\xff\x00")
        found = towpath("jobs", "show", job.id, "--json").object
        assert (found["state"], found["attempts"]) == ("done", 1)
        assert found["payload"] == {"n": 1}
        assert found["result_base64"] == "/wA="
        assert found["progress_text"] == "half"

    async def test_shows_the_last_failures(self, towpath: Command, engine: Engine) -> None:
        await engine.submit("mails", b"", id="m-1")
        for n in range(2):
            [lease] = await engine.claim("mails", worker=f"w{n}", lease=seconds(60))
            await engine.fail(lease, f"no disk {n}", delay=0)
        shown = towpath("jobs", "show", "mails/m-1").out
        assert "w0: no disk 0; " in shown
        assert "w1: no disk 1" in shown
        told = towpath("jobs", "show", "m-1", "--json").object["failures"]
        assert [(failure["worker"], failure["reason"]) for failure in told] == [
            ("w0", "no disk 0"), ("w1", "no disk 1"),
        ]  # fmt: skip

    async def test_asks_for_the_queue_if_an_id_is_in_several(
        self, towpath: Command, engine: Engine
    ) -> None:
        for queue in ("a", "b"):
            await engine.submit(queue, b"1", id="twice")
        ran = towpath("jobs", "show", "twice")
        assert ran.code == 2
        assert "a/twice, b/twice" in ran.err
        assert towpath("jobs", "show", "twice", "--queue", "b", "--json").object["queue"] == "b"

    def test_of_an_unknown_job_is_refused(self, towpath: Command) -> None:
        ran = towpath("jobs", "show", "mails/m-1")
        assert (ran.code, ran.out) == (5, "")
        refused, do = ran.err.splitlines()
        assert refused.startswith("refused  job_not_found: ")
        assert "mails/m-1" in refused
        assert do.startswith("do       ")


class TestChanging:
    async def test_cancel_ends_waiting_jobs_and_asks_running_ones_to_stop(
        self, towpath: Command, engine: Engine
    ) -> None:
        await engine.queues.configure("mails", KEEPING)
        await engine.submit("mails", b"1", id="runs")
        await engine.claim("mails", worker="w1", lease=seconds(60))
        await engine.submit("mails", b"1", id="waits")
        ran = towpath("jobs", "cancel", "waits", "runs")
        assert [line.split()[:2] for line in ran.out.splitlines()] == [
            ["mails/waits", "cancelled"],
            ["mails/runs", "leased,"],
        ]
        [told] = towpath("jobs", "cancel", "mails/runs", "--json").objects
        assert (told["state"], told["cancel_requested"]) == ("leased", True)
        assert (await engine.inspect.job(job_ref("mails", "runs"))).cancel_requested

    async def test_several_jobs_continues_after_a_refusal_and_exits_with_the_first_one(
        self, towpath: Command, engine: Engine
    ) -> None:
        await bury(engine, "mails", "dead")
        await engine.submit("mails", b"1", id="waits")
        ran = towpath("jobs", "retry", "nobody", "waits", "dead")
        assert (ran.code, ran.out) == (5, "mails/dead  ready\n")
        assert ran.err.index("job_not_found") < ran.err.index("job_not_dead")

    async def test_retry_accepts_only_dead_jobs(self, towpath: Command, engine: Engine) -> None:
        await bury(engine, "mails", "m-1")
        assert towpath("jobs", "retry", "m-1", "--json").object == {
            "queue": "mails", "id": "m-1", "state": "ready",
        }  # fmt: skip
        refused = towpath("jobs", "retry", "m-1", "--json")
        assert (refused.code, refused.out) == (4, "")
        assert refused.refusal["refused"] == "job_not_dead"

    async def test_delete_needs_a_confirmation(self, towpath: Command, engine: Engine) -> None:
        await bury(engine, "mails", "m-1")
        ref = job_ref("mails", "m-1")

        piped = towpath("jobs", "delete", "m-1")
        assert piped.code == 2
        assert "not_confirmed" in piped.err
        assert "--yes" in piped.err
        terminal = towpath.in_terminal("jobs", "delete", "m-1")
        terminal.read_until("Go on?")
        terminal.type("n\n")
        assert terminal.end().code == 2
        assert await engine.inspect.state(ref) is State.DEAD

        assert towpath("jobs", "delete", "m-1", "--yes").out == "mails/m-1  gone\n"
        assert await engine.inspect.state(ref) is State.GONE


class TestMoving:
    async def test_gives_jobs_another_due_time(self, towpath: Command, engine: Engine) -> None:
        await engine.submit("mails", b"1", id="a", delay=hours(1))
        await engine.submit("mails", b"1", id="b")
        ran = towpath("jobs", "move", "mails/a", "mails/b", "--delay", "10m", "--json")
        assert ran.objects == [
            {"queue": "mails", "id": id, "state": "delayed"} for id in ("a", "b")
        ]
        past = towpath("jobs", "move", "a", "--queue", "mails", "--due", "2020-01-01T00:00:00Z")
        assert past.out.split() == ["mails/a", "ready"]
        assert await engine.inspect.state(job_ref("mails", "a")) is State.READY

    async def test_refuses_jobs_that_do_not_wait(self, towpath: Command, engine: Engine) -> None:
        await engine.submit("mails", b"1", id="a")
        await engine.claim("mails", worker="w", lease=seconds(60))
        ran = towpath("jobs", "move", "mails/a", "--delay", "10m", "--json")
        assert (ran.code, ran.refusal["refused"]) == (4, "job_not_waiting")
        assert "leased" in ran.refusal["message"]
        assert towpath("jobs", "move", "mails/nobody", "--delay", "10m").code == 5

    @pytest.mark.parametrize(
        "when",
        [
            [],
            ["--delay", "10m", "--due", "2030-01-01T00:00:00Z"],
            ["--delay", "10"],
            ["--delay", "-1s"],
            ["--due", "tomorrow"],
            ["--due", "9999-01-01T00:00:00Z"],
        ],
        ids=str,
    )
    async def test_refuses_an_invalid_time(
        self, towpath: Command, engine: Engine, when: list[str]
    ) -> None:
        await engine.submit("mails", b"1", id="a")
        assert towpath("jobs", "move", "mails/a", *when).code == 2
        assert await engine.inspect.state(job_ref("mails", "a")) is State.READY


class TestCancellingMany:
    async def test_selects_by_state_handler_lane_and_age(
        self, towpath: Command, engine: Engine
    ) -> None:
        mails = [new_job(b"1", headers={"handler": "mail"}) for _ in range(2)]
        of_ann = [new_job(b"1", lane="ann") for _ in range(2)]
        await engine.submit_many("mails", [*mails, *of_ann, new_job(b"1", delay=hours(1))])

        ran = towpath("jobs", "cancel", "--queue", "mails", "--handler", "mail", "--json")
        assert (ran.code, ran.refusal["refused"]) == (2, "not_confirmed")
        assert "2 jobs" in ran.refusal["message"]

        def cancelled(*words: str) -> dict[str, int]:
            ran = towpath("jobs", "cancel", "--queue", "mails", *words, "--yes", "--json")
            assert ran.code == 0, ran.err
            return ran.object["states"]

        assert cancelled("--all", "--older-than", "1h") == {}
        assert cancelled("--handler", "mail") == {"ready": 2}
        assert cancelled("--lane", "ann", "--state", "waiting") == {"waiting": 1}
        assert cancelled("--all") == {"delayed": 1, "ready": 1}

    async def test_asks_running_jobs_to_stop(self, towpath: Command, engine: Engine) -> None:
        await engine.submit("mails", b"1", id="runs")
        await engine.claim("mails", worker="w1", lease=seconds(60))
        ran = towpath("jobs", "cancel", "--queue", "mails", "--state", "leased", "--yes", "--json")
        assert ran.object["states"] == {"leased": 1}
        assert (await engine.inspect.job(job_ref("mails", "runs"))).cancel_requested

    @pytest.mark.parametrize(
        ("words", "code"),
        [
            ((), 2),
            (("--all",), 2),
            (("--queue", "mails"), 2),
            (("mails/a", "--all", "--queue", "mails"), 2),
            (("--queue", "mails", "--state", "dead"), 2),
            (("--queue", "mail", "--all"), 5),
        ],
    )
    async def test_refuses_an_unclear_selection(
        self, towpath: Command, engine: Engine, words: tuple[str, ...], code: int
    ) -> None:
        await engine.submit("mails", b"1", id="a")
        assert towpath("jobs", "cancel", *words).code == code
        assert (await engine.inspect.counts("mails")).ready == 1


async def test_a_mistyped_queue_is_answered_with_the_nearest_name(
    towpath: Command, engine: Engine
) -> None:
    await engine.submit("mails", b"1", id="a")
    ran = towpath("jobs", "show", "mial/a", "--json")
    assert (ran.code, ran.refusal["refused"]) == (5, "job_not_found")
    assert "mails" in ran.refusal["message"]
