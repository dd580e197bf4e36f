"""`towpath explain`, `pause`, `resume`, `lanes drop` and `top`."""

import re
import signal
import socket

import pytest

from tests.cli.command import Command
from towpath import Engine, QueueOptions, State, hours, seconds
from towpath.engine.model import job_ref
from towpath.engine.options import LanePolicy


class TestExplain:
    async def test_says_why_a_job_is_not_running(self, towpath: Command, engine: Engine) -> None:
        await engine.submit("mails", b"1", id="first", lane="anna")
        await engine.submit("mails", b"1", id="second", lane="anna")
        ran = towpath("explain", "mails/second")
        because, place = ran.out.splitlines()
        assert because.startswith("mails/second: ")
        assert {"first", "anna", "ready"} <= set(re.findall(r"\w+", because))
        assert re.findall(r"\d+", place) == ["1"]
        for id, why, ahead in (("first", "no_worker", 0), ("second", "behind_lane", 1)):
            told = towpath("explain", id, "--json").object
            assert (told["queue"], told["why"], told["ahead"]) == ("mails", why, ahead)

    async def test_says_times_to_the_second(self, towpath: Command, engine: Engine) -> None:
        await engine.submit("mails", b"1", id="later", delay=hours(1))
        said = r"[a-z ]+ \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\n"
        assert re.fullmatch(f"mails/later: {said}", towpath("explain", "later").out)
        assert re.search(f"why +{said}", towpath("jobs", "show", "later").out)

    def test_of_an_unknown_job_is_not_found(self, towpath: Command) -> None:
        assert towpath("explain", "nowhere").code == 5


class TestPause:
    async def test_stops_claims_until_the_queue_is_resumed(
        self, towpath: Command, engine: Engine
    ) -> None:
        for queue in ("mails", "reports"):
            await engine.submit(queue, b"1")
        assert towpath("pause", "mails", "reports").out == "mails  paused\nreports  paused\n"
        assert await engine.claim("mails", worker="w1", lease=seconds(1)) == []
        assert towpath("resume", "mails", "--json").object == {"queue": "mails", "paused": False}
        assert len(await engine.claim("mails", worker="w1", lease=seconds(1))) == 1

    async def test_does_nothing_if_one_name_is_wrong(
        self, towpath: Command, engine: Engine
    ) -> None:
        await engine.submit("mails", b"1")
        assert towpath("pause", "mails", "reprots").code == 5
        assert not (await engine.inspect.counts("mails")).paused
        assert list(await engine.queues.list()) == ["mails"]


class TestLanes:
    async def test_a_parked_lane_continues_after_drop(
        self, towpath: Command, engine: Engine
    ) -> None:
        await engine.queues.configure("mails", QueueOptions(lanes=LanePolicy.PARK))
        for id in ("head", "next"):
            await engine.submit("mails", b"1", id=id, lane="anna")
        [lease] = await engine.claim("mails", worker="w1", lease=seconds(60))
        await engine.bury(lease, "no such address")

        told = towpath("lanes", "drop", "mails", "anna", "--json").object
        assert told == {"queue": "mails", "lane": "anna", "dropped": "head"}
        assert await engine.inspect.state(job_ref("mails", "next")) is State.READY
        assert towpath("lanes", "drop", "mails", "anna").code == 4


class TestTop:
    async def test_shows_the_queues_until_it_is_interrupted(
        self, towpath: Command, engine: Engine
    ) -> None:
        await engine.submit("mails", b"1")
        terminal = towpath.in_terminal("top", "--every", "20ms")
        terminal.read_until("mails")
        await engine.submit("reports", b"1")
        terminal.read_until("reports")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end().code == 0

    async def test_prints_one_table_to_scripts(self, towpath: Command, engine: Engine) -> None:
        await engine.submit("mails", b"1")
        header, line = towpath("top", "--every", "20ms").out.splitlines()
        assert header.split()[-3:] == ["IN/S", "DONE/S", "FAILED/S"]
        assert line.split()[:2] == ["mails", "1"]
        told = towpath("top", "--once", "--json", "--every", "20ms").object
        assert (told["queue"], told["submitted_per_second"]) == ("mails", 0)


def test_a_refusal_names_the_redis_of_towpath_up_that_runs_here(towpath: Command) -> None:
    """Where nobody said which server, and none is at the usual address."""
    with socket.socket() as probe:
        if probe.connect_ex(("localhost", 6379)) == 0:
            pytest.skip("a server is at the usual address")
    del towpath.env["TOWPATH_URL"]
    words = ("queues", "--timeout", "100ms", "--json")
    assert "--url" not in towpath(*words).refusal["do"]
    own = towpath.directory / "towpath-data" / "valkey" / "server.sock"
    own.parent.mkdir(parents=True)
    own.touch()
    ran = towpath(*words)
    assert ran.code == 75
    assert f"--url unix://{own}" in ran.refusal["do"]
