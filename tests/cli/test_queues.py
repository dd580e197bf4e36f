"""`towpath queues`: counts for people and programs, one queue, its options."""

import re

import pytest

from tests.cli.command import Command
from tests.cli.jobs import bury
from towpath import Engine, QueueOptions, hours, minutes, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.keys import REGISTRY, keys_of
from towpath.engine.model import new_job
from towpath.engine.options import LanePolicy
from towpath.engine.retry import Fixed
from towpath.ids import QueueName


class TestTheTable:
    async def test_shows_counts_and_what_to_do(self, towpath: Command, engine: Engine) -> None:
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

    async def test_has_the_same_fields_as_json(self, towpath: Command, engine: Engine) -> None:
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

    async def test_that_does_not_exist_is_not_created(
        self, towpath: Command, engine: Engine
    ) -> None:
        await engine.submit("mails", b"1")
        ran = towpath("queues", "show", "mail", "--json")
        assert ran.code == 5
        assert ran.refusal["refused"] == "queue_not_found"
        assert set(re.findall(r"\bmails?\b", ran.refusal["message"])) == {"mail", "mails"}
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

    async def test_refuses_unknown_options(self, towpath: Command, engine: Engine) -> None:
        ran = towpath("queues", "configure", "mails", "--set", "kep=1h")
        assert ran.code == 2
        assert re.search(r"\bkeep\b", ran.err)
        assert await engine.queues.list() == {}

    async def test_gets_its_declared_options_back(self, towpath: Command, engine: Engine) -> None:
        await engine.queues.declare("mails", keep=hours(1))
        towpath("queues", "configure", "mails", "--set", "keep=9h", "--set", "max_length=7")
        ran = towpath("queues", "reset", "mails", "--option", "kep")
        assert ran.code == 2
        assert all(option in ran.err for option in ("'kep'", "max_attempts"))
        assert towpath("queues", "reset", "mail").code == 5
        towpath("queues", "reset", "mails", "--option", "keep")
        assert await engine.queues.options("mails") == QueueOptions(keep=hours(1), max_length=7)
        assert "1h" in towpath("queues", "reset", "mails").out
        assert await engine.queues.options("mails") == QueueOptions(keep=hours(1))


@pytest.mark.parametrize("words", [["queues"], ["queues", "--json"]], ids=" ".join)
async def test_a_queue_that_cannot_be_read_is_reported_and_hides_no_other(
    towpath: Command, engine: Engine, server: EmbeddedServer, words: list[str]
) -> None:
    for queue in ("mails", "spoilt"):
        await engine.submit(queue, b"1")
    key = keys_of(QueueName("spoilt")).queue
    server.ask("DEL", key)
    server.ask("SET", key, "not a sorted set")
    ran = towpath(*words)
    assert (ran.code, "mails" in ran.out, "spoilt" in ran.out) == (0, True, False)
    assert "towpath queues show spoilt" in ran.err


async def test_options_that_only_a_newer_release_knows_hide_no_others(
    towpath: Command, engine: Engine, server: EmbeddedServer
) -> None:
    """They stay as they are when others are changed."""
    await engine.queues.declare("mails", max_length=70)
    for key, field in ((keys_of(QueueName("mails")).meta, "whole"), (REGISTRY, "mails")):
        server.ask("HSET", key, field, '[1,{"max_length":70,"zeal":5}]')
    assert "mails" in towpath("queues").out
    shown = [line.split() for line in towpath("queues", "show", "mails").out.splitlines()]
    assert ["option", "max_length", "70"] in shown
    assert towpath("queues", "configure", "mails", "--set", "max_length=80").code == 0
    stored = server.ask("HGET", keys_of(QueueName("mails")).meta, "whole")
    assert stored == b'[1,{"max_length":80,"zeal":5}]'


class TestPurging:
    async def test_counts_first_and_deletes_what_was_confirmed(
        self, towpath: Command, engine: Engine
    ) -> None:
        await bury(engine, "mails", "d-1", "d-2")
        await engine.submit_many("mails", [new_job(b"1", lane="ann") for _ in range(3)])
        await engine.submit("mails", b"1", id="runs", priority=100)
        await engine.claim("mails", worker="w1", lease=minutes(5))

        ran = towpath("queues", "purge", "mails", "--json")
        assert (ran.code, ran.refusal["refused"]) == (2, "not_confirmed")
        assert "5 jobs" in ran.refusal["message"]
        assert (await engine.inspect.counts("mails")).dead == 2

        ran = towpath("queues", "purge", "mails", "--state", "dead", "--yes", "--json")
        assert ran.object == {"queue": "mails", "deleted": 2, "states": {"dead": 2}}
        ran = towpath("queues", "purge", "mails", "--yes", "--json")
        assert ran.object["states"] == {"waiting": 2, "ready": 1}
        found = await engine.inspect.counts("mails")
        assert (found.ready, found.waiting, found.dead, found.leased) == (0, 0, 0, 1)

    async def test_asks_for_confirmation_in_a_terminal(
        self, towpath: Command, engine: Engine
    ) -> None:
        await engine.submit("mails", b"1")
        terminal = towpath.in_terminal("queues", "purge", "mails")
        terminal.read_until("Go on?")
        terminal.type("y\n")
        assert terminal.end().code == 0
        assert (await engine.inspect.counts("mails")).ready == 0

    async def test_without_matching_jobs_asks_for_no_confirmation(
        self, towpath: Command, engine: Engine
    ) -> None:
        await engine.submit("mails", b"1")
        ran = towpath("queues", "purge", "mails", "--older-than", "1h", "--json")
        assert (ran.code, ran.object["deleted"]) == (0, 0)
        assert (await engine.inspect.counts("mails")).ready == 1

    async def test_refuses_running_jobs_and_unknown_queues(
        self, towpath: Command, engine: Engine
    ) -> None:
        await engine.submit("mails", b"1")
        assert towpath("queues", "purge", "mails", "--state", "leased").code == 2
        ran = towpath("queues", "purge", "mail", "--json")
        assert (ran.code, ran.refusal["refused"]) == (5, "queue_not_found")
        assert list(await engine.queues.list()) == ["mails"]


class TestDeleting:
    async def test_removes_the_queue_with_its_jobs(self, towpath: Command, engine: Engine) -> None:
        await engine.queues.configure("mails", QueueOptions(max_attempts=9, keep=hours(1)))
        await bury(engine, "mails", "d-1")
        await engine.submit("mails", b"1", id="a")
        assert towpath("queues", "delete", "mails").code == 2
        ran = towpath("queues", "delete", "mails", "--yes", "--json")
        assert ran.object == {"queue": "mails", "state": "gone", "deleted": 2}
        assert await engine.queues.names() == []
        assert towpath("queues", "delete", "mails", "--yes").code == 5

    async def test_is_refused_while_a_job_runs(self, towpath: Command, engine: Engine) -> None:
        await engine.submit("mails", b"1", id="runs")
        await engine.claim("mails", worker="w1", lease=minutes(5))
        await engine.submit("mails", b"1", id="waits")
        ran = towpath("queues", "delete", "mails", "--yes", "--json")
        assert (ran.code, ran.refusal["refused"]) == (4, "queue_not_empty")
        assert (await engine.inspect.counts("mails")).ready == 1
