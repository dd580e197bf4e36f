"""`towpath ledger reconcile`, on a database and a Redis of its own."""

import asyncio

import pytest

from tests.cli.command import Command
from towpath import Engine, seconds
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.record import RecordState


@pytest.fixture
def records(towpath: Command, prepared_file_url: str) -> Command:
    """The command, with a migrated database that has three open records."""
    url = towpath.env["DATABASE_URL"] = prepared_file_url

    async def make() -> None:
        async with Ledger(url) as ledger:
            for id in ("a", "b"):
                await ledger.jobs.submit("mails", b"1", id=id)
            await ledger.jobs.submit("letters", b"1", id="c")

    asyncio.run(make())
    return towpath


def test_reconcile_queues_records_that_redis_does_not_have(records: Command) -> None:
    ran = records("ledger", "reconcile", "--json")
    assert ran.code == 0
    assert ran.objects == [
        {"queue": "letters", "open": 1, "queued": 1, "ended": 0},
        {"queue": "mails", "open": 2, "queued": 2, "ended": 0},
    ]
    again = records("ledger", "reconcile")
    assert again.code == 0
    told = [line.split() for line in again.out.splitlines()]
    assert told[0] == ["QUEUE", "OPEN", "QUEUED", "ENDED"]
    assert told[1:] == [["letters", "1", "0", "0"], ["mails", "2", "0", "0"]]


def test_reconcile_ends_records_whose_jobs_have_ended_in_redis(records: Command) -> None:
    """As after a restore of an older database: its rows do not show it yet."""
    records("ledger", "reconcile")

    async def die() -> None:
        async with Engine(records.env["TOWPATH_URL"]) as engine:
            [lease] = await engine.claim("letters", worker="w", lease=seconds(30))
            await engine.bury(lease, "poison")

    asyncio.run(die())
    ran = records("ledger", "reconcile", "--json")
    assert {"queue": "letters", "open": 1, "queued": 0, "ended": 1} in ran.objects

    async def state() -> RecordState:
        async with Ledger(records.env["DATABASE_URL"]) as ledger:
            return (await ledger.jobs.get("letters", "c")).state

    assert asyncio.run(state()) is RecordState.DEAD


def test_reconcile_is_refused_while_redis_is_away(records: Command) -> None:
    words = ("ledger", "reconcile", "--timeout", "1s", "--json")
    away = records(*words, TOWPATH_URL="unix:///nobody.sock")
    assert (away.code, away.refusal["refused"]) == (75, "server_unreachable")
    assert records("ledger").code == 2
