"""`towpath queues`: counts for people and programs, one queue, its options."""

from tests.cli.command import Command
from tests.cli.jobs import bury
from towpath import Engine, QueueOptions, hours, minutes, seconds
from towpath.engine.model import new_job
from towpath.engine.options import LanePolicy
from towpath.engine.retry import Fixed


class TestTheTable:
    async def test_tells_where_jobs_are_and_what_to_do(
        self, towpath: Command, engine: Engine
    ) -> None:
        """In a terminal, as people see it: columns in line, hints below."""
        await bury(engine, "uploads", "u-1")
        await engine.submit_many("reviews", [new_job(b"1", lane="a") for _ in range(3)])
        await engine.submit("reviews", b"1", delay=hours(1))
        await engine.queues.pause("reviews")
        await engine.submit("mails", b"1")

        terminal = towpath.in_terminal("queues", "--over", "10ms")
        ran = terminal.end()

        header, *lines = ran.out.splitlines()
        assert header.split() == [
            "QUEUE", "READY", "DELAYED", "WAITING", "LEASED", "DEAD", "OLDEST", "DONE/MIN",
        ]  # fmt: skip
        assert lines.pop(0).split()[:2] == ["mails", "1"]
        assert lines[0].split()[:6] == ["reviews", "1", "1", "2", "0", "0"]
        assert lines[0].endswith("0  paused")
        assert lines[1].split() == ["uploads", "0", "0", "0", "0", "1", "–", "0"]  # noqa: RUF001 -- a dash, as in the table
        assert lines[2:] == [
            "1 dead job: towpath dead list --queue uploads",
            "paused: towpath resume reviews",
            "no worker for mails: towpath workers",
        ]
        assert ran.code == 0

    async def test_says_the_same_to_programs(self, towpath: Command, engine: Engine) -> None:
        await engine.submit("reviews", b"1")
        ran = towpath("--json", "queues", "--over", "10ms")
        told = ran.object
        assert (told["queue"], told["ready"], told["dead"], told["paused"]) == (
            "reviews", 1, 0, False,
        )  # fmt: skip
        assert told["done_per_minute"] == 0
        assert told["totals"]["submitted"] == 1
        assert told["no_worker"] is True
        assert 0 <= told["oldest_seconds"] < 60
        assert ran.err == ""

    def test_of_no_queues_is_a_hint_and_no_data(self, towpath: Command) -> None:
        ran = towpath("queues", "--over", "0")
        assert (ran.code, ran.out) == (0, "")
        assert "towpath submit" in ran.err


class TestOneQueue:
    async def test_is_shown_with_its_totals_and_options(
        self, towpath: Command, engine: Engine
    ) -> None:
        await engine.queues.configure(
            "mails", QueueOptions(keep=minutes(90), lanes=LanePolicy.PARK)
        )
        await engine.submit("mails", b"1")
        lines = [line.split() for line in towpath("queues", "show", "mails").out.splitlines()]
        assert ["ready", "1"] in lines
        assert ["total", "submitted", "1"] in lines
        assert ["option", "keep", "1h30m"] in lines
        assert ["option", "lanes", "park"] in lines

    async def test_that_is_not_there_is_not_made(self, towpath: Command, engine: Engine) -> None:
        await engine.submit("mails", b"1")
        ran = towpath("queues", "show", "mail", "--json")
        assert ran.code == 5
        assert ran.refusal["refused"] == "queue_not_found"
        assert ran.refusal["message"] == "no queue mail; did you mean mails?"
        assert list(await engine.queues.list()) == ["mails"]

    async def test_gets_other_options_and_keeps_the_rest(
        self, towpath: Command, engine: Engine
    ) -> None:
        await engine.queues.configure("mails", QueueOptions(max_attempts=9))
        ran = towpath(
            "queues", "configure", "mails", "--set", "keep=1h", "--set", "retry=fixed:30s", "--json"
        )
        assert ran.object["options"]["retry"] == "fixed:30s"
        stored = await engine.queues.options("mails")
        assert stored == QueueOptions(max_attempts=9, keep=hours(1), retry=Fixed(seconds(30)))

    async def test_refuses_options_that_are_none(self, towpath: Command, engine: Engine) -> None:
        ran = towpath("queues", "configure", "mails", "--set", "kep=1h")
        assert ran.code == 2
        assert "did you mean keep?" in ran.err
        assert await engine.queues.list() == {}

    async def test_takes_back_what_was_changed(self, towpath: Command, engine: Engine) -> None:
        await engine.queues.declare("mails", keep=hours(1))
        towpath("queues", "configure", "mails", "--set", "keep=9h", "--set", "max_length=7")
        ran = towpath("queues", "reset", "mails", "--option", "kep")
        assert (ran.code, "must be one of max_attempts" in ran.err) == (2, True)
        assert towpath("queues", "reset", "mail").code == 5
        towpath("queues", "reset", "mails", "--option", "keep")
        assert await engine.queues.options("mails") == QueueOptions(keep=hours(1), max_length=7)
        assert "1h" in towpath("queues", "reset", "mails").out
        assert await engine.queues.options("mails") == QueueOptions(keep=hours(1))
