"""`towpath schedules`: what is on a schedule; making, changing, firing and removing it."""

from datetime import datetime, timedelta

import pytest

from tests.cli.command import Command
from towpath import Engine
from towpath.engine.model import new_job


async def plant(engine: Engine) -> None:
    """Declares a schedule as a worker does for its app."""
    now = (await engine.schedules.of("reports")).now
    await engine.submit("reports", b"1")
    await engine.schedules.fire_due(
        "reports", "nightly", [], after=None, upto=now, about="0 3 * * * UTC"
    )


class TestADeclaredSchedule:
    async def test_is_listed_for_people(self, towpath: Command, engine: Engine) -> None:
        await plant(engine)
        header, line = towpath("schedules").out.splitlines()
        assert header.split() == ["QUEUE", "SCHEDULE", "WHEN", "SOURCE", "NEXT", "LAST"]
        assert line.split()[:9] == ["reports", "nightly", "0", "3", "*", "*", "*", "UTC", "code"]

    async def test_is_shown_with_its_next_and_last_firing(
        self, towpath: Command, engine: Engine
    ) -> None:
        """What was only seen so far was never fired."""
        now = (await engine.schedules.of("reports")).now
        await plant(engine)
        told = towpath("schedules", "--json").object
        coming = datetime.fromisoformat(told["next"])
        assert (coming.hour, coming.minute, told.get("last")) == (3, 0, None)
        assert timedelta(0) < coming - now <= timedelta(days=1)
        last = (await engine.schedules.of("reports")).last["nightly"].at
        later = (await engine.schedules.of("reports")).now
        await engine.schedules.fire_due(
            "reports", "nightly", [new_job(b"1")], after=last, upto=later, about="every 0:00:05"
        )
        told = towpath("schedules", "--json").object
        assert datetime.fromisoformat(told["last"]) == later
        assert timedelta(0) < datetime.fromisoformat(told["next"]) - later <= timedelta(seconds=5)

    async def test_is_listed_for_programs_and_deleted(
        self, towpath: Command, engine: Engine
    ) -> None:
        await plant(engine)
        told = towpath("schedules", "list", "--queue", "reports", "--json").object
        assert (told["queue"], told["name"], told["source"]) == ("reports", "nightly", "code")
        assert towpath("schedules", "delete", "reports", "nightly", "--declared").code == 0
        assert (await engine.schedules.of("reports")).last == {}

    async def test_that_does_not_exist_cannot_be_deleted(
        self, towpath: Command, engine: Engine
    ) -> None:
        await plant(engine)
        ran = towpath("schedules", "delete", "reports", "weekly", "--declared")
        assert ran.code == 5
        assert "schedule_not_found" in ran.err

    async def test_can_neither_be_replaced_nor_deleted(
        self, towpath: Command, engine: Engine
    ) -> None:
        await plant(engine)
        for ran in (
            towpath("schedules", "set", "reports", "nightly", "--every", "1h"),
            towpath("schedules", "delete", "reports", "nightly"),
        ):
            assert ran.code == 4
            assert "schedule_declared" in ran.err

    def test_is_mentioned_if_there_is_no_schedule(self, towpath: Command) -> None:
        ran = towpath("schedules")
        assert ran.code == 0
        assert "@app.recurring" in ran.err


class TestASchedule:
    async def test_is_created_shown_and_deleted(self, towpath: Command, engine: Engine) -> None:
        made = towpath(
            "schedules", "set", "reports", "nightly", '{"kind": "full"}', "--cron", "0 3 * * *",
            "--tz", "Europe/Berlin", "--priority", "high", "--handler", "rerun", "--retry", "never",
        )  # fmt: skip
        assert made.out.startswith("reports/nightly  ")
        told = towpath("schedules", "show", "reports", "nightly", "--json").object
        assert told["payload"] == {"kind": "full"}
        assert told["schedule"] == "0 3 * * * Europe/Berlin"
        assert (told["priority"], told["retry"], told["source"]) == (100, "never", "stored")
        assert told["headers"] == {"handler": "rerun"}
        assert "full" in towpath("schedules", "show", "reports", "nightly").out
        again = towpath("schedules", "set", "reports", "nightly", "--every", "1h", "--json").object
        assert again["new"] is False
        assert "1:00:00" in again["schedule"]
        assert towpath("schedules", "delete", "reports", "nightly").code == 0
        assert (await engine.schedules.list()).schedules == []
        anew = towpath("schedules", "set", "reports", "nightly", "--every", "1h", "--json").object
        assert anew["new"] is True

    async def test_is_paused_resumed_and_fired(self, towpath: Command, engine: Engine) -> None:
        towpath("schedules", "set", "reports", "hourly", "--every", "1h")
        assert towpath("schedules", "pause", "reports", "hourly", "--json").object["paused"]
        assert "(paused)" in towpath("schedules").out
        fired = towpath("schedules", "fire", "reports", "hourly", "--json").object
        assert fired["id"].startswith("hourly!")
        assert (await engine.inspect.counts("reports")).ready == 1
        assert not towpath("schedules", "resume", "reports", "hourly", "--json").object["paused"]

    @pytest.mark.parametrize("command", ["show", "delete", "fire", "pause", "resume"])
    def test_that_does_not_exist_is_refused(self, towpath: Command, command: str) -> None:
        ran = towpath("schedules", command, "reports", "weekly")
        assert ran.code == 5
        assert "schedule_not_found" in ran.err

    @pytest.mark.parametrize(
        ("words", "facts"),
        [
            ((), ("cron = ", "--cron", "--every")),
            (("--cron", "0 3 * * *", "--every", "1h"), ("cron = ", "--cron", "--every")),
            (("--cron", "0 0 30 2 *"), ("cron = '0 0 30 2 *'",)),
            (("--cron", "often"), ("cron = 'often'",)),
            (("--cron", "0 3 * * *", "--tz", "Mars/Crater"), ("tz = 'Mars/Crater'",)),
            (("--every", "1h", "--tz", "UTC"), ("tz = 'UTC'", "--cron")),
            (("--every", "0"), ("every = ",)),
            (("--every", "200000d"), ("every = ", "36525 days")),
            (("--every", "1h", "--missed", "never"), ("missed = 'never'",)),
        ],
    )
    def test_that_is_invalid_is_refused(
        self, towpath: Command, words: tuple[str, ...], facts: tuple[str, ...]
    ) -> None:
        ran = towpath("schedules", "set", "reports", "x", *words, "--json")
        assert (ran.code, ran.refusal["refused"]) == (2, "invalid_option")
        assert all(fact in ran.refusal["message"] for fact in facts), ran.refusal

    def test_has_a_payload_that_is_json(self, towpath: Command) -> None:
        ran = towpath("schedules", "set", "reports", "x", "no json", "--every", "1h", "--json")
        assert (ran.code, ran.refusal["refused"]) == (2, "invalid_option")
        assert all(fact in ran.refusal["message"] for fact in ("payload = ", "JSON"))


class TestPreview:
    def test_shows_the_next_firings_and_the_clock_changes(self, towpath: Command) -> None:
        words = ("--cron", "30 2 * * *", "--tz", "Europe/Berlin", "--count", "3")
        ran = towpath("schedules", "preview", *words)
        assert [line[10:] in ("T02:30:00+01:00", "T02:30:00+02:00", "T03:00:00+02:00")
                for line in ran.out.splitlines()] == [True] * 3  # fmt: skip
        assert all(time in ran.err for time in ("02:30", "03:00"))
        told = towpath("schedules", "preview", *words, "--json").objects
        assert sorted(change["effect"] for change in told[3:]) == ["moved", "once"]
