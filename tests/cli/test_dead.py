"""`towpath dead`: list, retry, purge."""

import re

from tests.cli.command import Command
from tests.cli.jobs import bury
from towpath import Engine


async def test_dead_jobs_are_listed_with_their_reasons(towpath: Command, engine: Engine) -> None:
    await bury(engine, "mails", "m-1", reason="no such address")
    await engine.submit("mails", b"1", id="alive")
    found = towpath("dead", "list", "--json").object
    assert (found["id"], found["reason"]) == ("m-1", "no such address")


async def test_dead_jobs_are_searched_by_their_reasons(towpath: Command, engine: Engine) -> None:
    await bury(engine, "mails", "m-1", reason="no such address")
    await bury(engine, "mails", "m-2", reason="Disk is full")
    ran = towpath("dead", "search", "disk", "--queue", "mails")
    assert ran.code == 0
    assert "mails/m-2" in ran.out
    assert "m-1" not in ran.out
    assert re.findall(r"\b[\d,]+\b", ran.err) == ["2", "10,000"]  # searched, and covered at most
    found = towpath("dead", "search", "ADDRESS", "--queue", "mails", "--json").object
    assert (found["id"], found["reason"]) == ("m-1", "no such address")


async def test_dead_jobs_are_counted_by_error_and_retried_and_deleted_by_group(
    towpath: Command, engine: Engine
) -> None:
    for n in range(3):
        await bury(engine, "mails", f"m-{n}", reason=f"no user {n}")
    await bury(engine, "mails", "m-9", reason="Disk is full")
    shown = towpath("dead", "groups").out
    assert "no user #" in shown
    late, full = towpath("dead", "groups", "--queue", "mails", "--json").objects
    assert (late["error"], late["count"], full["count"]) == ("no user #", 3, 1)
    assert towpath("dead", "retry", "--group", late["group"]).code == 2
    ran = towpath("dead", "retry", "mails", "--group", late["group"])
    assert ran.out.splitlines()[-1] == "mails  3 retried"
    assert (await engine.inspect.counts("mails")).dead == 1
    assert towpath("dead", "delete", "mails", "--group", full["group"]).code == 2
    ran = towpath("dead", "delete", "mails", "--group", full["group"], "--yes", "--json")
    assert ran.objects == [{"queue": "mails", "deleted": 1}]


async def test_all_dead_jobs_are_retried_with_a_progress_bar(
    towpath: Command, engine: Engine
) -> None:
    """In a terminal there is a bar; the result is printed on stdout."""
    await bury(engine, "mails", *(f"m-{n}" for n in range(250)))
    await bury(engine, "other", "o-1")
    ran = towpath.in_terminal("dead", "retry", "mails", "--all").end()
    assert "250/250" in ran.out
    assert ran.out.splitlines()[-1] == "mails  250 retried"
    counts = await engine.inspect.counts("mails")
    assert (counts.ready, counts.dead) == (250, 0)
    assert (await engine.inspect.counts("other")).dead == 1


async def test_some_dead_jobs_are_retried_by_id(towpath: Command, engine: Engine) -> None:
    await bury(engine, "mails", "m-1", "m-2")
    assert towpath("dead", "retry", "m-2").out == "mails/m-2  ready\n"
    assert (await engine.inspect.counts("mails")).dead == 1


async def test_purging_all_needs_a_confirmation(towpath: Command, engine: Engine) -> None:
    await bury(engine, "mails", "m-1", "m-2")
    await bury(engine, "other", "o-1")
    assert towpath("dead", "delete", "--all").code == 2
    assert (await engine.inspect.counts("mails")).dead == 2
    ran = towpath("dead", "delete", "--all", "--yes", "--json")
    assert ran.objects == [{"queue": "mails", "deleted": 2}, {"queue": "other", "deleted": 1}]
    assert (await engine.inspect.counts("mails")).totals["deleted"] == 2


def test_a_retry_without_jobs_and_an_unknown_queue_are_refused(towpath: Command) -> None:
    assert towpath("dead", "retry").code == 2
    assert towpath("dead", "delete", "mials", "--all", "--yes").code == 5


async def test_a_search_in_a_queue_that_does_not_exist_is_refused(
    towpath: Command, engine: Engine
) -> None:
    await bury(engine, "mails", "m-1")
    ran = towpath("dead", "search", "disk", "--queue", "mail", "--json")
    assert (ran.code, ran.refusal["refused"]) == (5, "queue_not_found")
