"""`towpath recurring`: what recurs, and forgetting it."""

from datetime import datetime, timedelta

from tests.cli.command import Command
from towpath import Engine, new_job


async def plant(engine: Engine) -> None:
    now = (await engine.recurring("reports")).now
    await engine.submit("reports", b"1")
    await engine.fire("reports", "nightly", [], after=None, upto=now, about="0 3 * * * UTC")


class TestRecurring:
    async def test_is_listed_for_people(self, towpath: Command, engine: Engine) -> None:
        await plant(engine)
        header, line = towpath("recurring").out.splitlines()
        assert header.split() == ["QUEUE", "RECURRING", "SCHEDULE", "NEXT", "LAST"]
        assert line.split()[:7] == ["reports", "nightly", "0", "3", "*", "*", "*"]

    async def test_says_when_it_comes_next_and_came_last(
        self, towpath: Command, engine: Engine
    ) -> None:
        """What was only seen so far was never fired."""
        now = (await engine.recurring("reports")).now
        await plant(engine)
        told = towpath("recurring", "--json").object
        coming = datetime.fromisoformat(told["next"])
        assert (coming.hour, coming.minute, told.get("last")) == (3, 0, None)
        assert timedelta(0) < coming - now <= timedelta(days=1)
        last = (await engine.recurring("reports")).last["nightly"].at
        later = (await engine.recurring("reports")).now
        await engine.fire(
            "reports", "nightly", [new_job(b"1")], after=last, upto=later, about="every 0:00:05"
        )
        told = towpath("recurring", "--json").object
        assert datetime.fromisoformat(told["last"]) == later
        assert timedelta(0) < datetime.fromisoformat(told["next"]) - later <= timedelta(seconds=5)

    async def test_is_listed_for_programs_and_forgotten(
        self, towpath: Command, engine: Engine
    ) -> None:
        await plant(engine)
        told = towpath("recurring", "--json").object
        assert (told["queue"], told["recurring"]) == ("reports", "nightly")
        assert towpath("recurring", "forget", "reports", "nightly").code == 0
        assert (await engine.recurring("reports")).last == {}

    async def test_that_is_not_there_can_not_be_forgotten(
        self, towpath: Command, engine: Engine
    ) -> None:
        await plant(engine)
        ran = towpath("recurring", "forget", "reports", "weekly")
        assert ran.code == 4
        assert "recurrence_not_found" in ran.err

    def test_none_is_a_hint(self, towpath: Command) -> None:
        ran = towpath("recurring")
        assert ran.code == 0
        assert "@app.recurring" in ran.err
