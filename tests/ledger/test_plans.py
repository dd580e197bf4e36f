"""I26: background work reads no more when there is much history. The query plans show it."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import Connection
from sqlalchemy.engine import Engine as Database

from tests.ledger.memory_sinks import MemorySink
from tests.ledger.numbered_events import an_event
from tests.ledger.records import lease
from tests.waiting import eventually_async
from towpath import Engine
from towpath.embedded import EmbeddedServer
from towpath.engine.model import Complete
from towpath.ledger.ledger import Ledger
from towpath.ledger.outbox.courier import Courier
from towpath.ledger.outbox.outbox import COUNTED_MOST
from towpath.ledger.records.attempts import Ending, Standing
from towpath.ledger.records.record import RecordState
from towpath.ledger.records.relay import Relay
from towpath.telemetry.logs import Log

HISTORY, REFUSED, MANY = 20_000, 12_000, 1_500
LARGE = {"towpath_jobs", "towpath_outbox", "towpath_logins", "before", "newer", "j"}
"""The tables that grow, and what statements call them."""
_ROWS = """
    WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {rows})
    INSERT INTO {table} ({columns}) SELECT {values} FROM n"""
_JOBS = {
    "queue": "'mails'", "id": "'h' || n", "job": "'h' || n", "state": "'completed'",
    "payload": f"'{'x' * 400}'", "priority": "50", "lane": "'lane' || (n % 100)",
    "subject": "'s' || (n % 500)", "version": "n", "attempts": "1", "fence": "n",
    "created_at": "1", "started_at": "1", "finished_at": "{now}",
    "cancel_requested": "{false}",
}  # fmt: skip
_EVENTS = {
    "sink": "'old'", "id": "'e' || n", "type": "'t'", "source": "'s'", "key": "'k' || n",
    "data": "'1'", "at": "1", "created_at": "1", "attempts": "0", "refused_at": "1",
}  # fmt: skip

_LOGINS = {
    "digest": "{digest}", "kind": "'session'", "key_id": "'k' || (n % 500)", "created_at": "n",
    "expires_at": "{now}",
}  # fmt: skip


def fill(connection: Connection) -> None:
    """A table full of ended records, refused events, and other logins."""
    postgres = connection.dialect.name == "postgresql"
    words = {
        "false": "false" if postgres else "0",
        "now": "9000000000000",
        "digest": "decode(md5(n::text), 'hex')" if postgres else "randomblob(32)",
    }
    for table, columns, rows in (
        ("towpath_jobs", _JOBS, HISTORY),
        ("towpath_outbox", _EVENTS, REFUSED),
        ("towpath_logins", _LOGINS, HISTORY),
    ):
        values = ", ".join(columns.values()).format(**words)
        connection.execute(
            text(_ROWS.format(rows=rows, table=table, columns=", ".join(columns), values=values))
        )


@pytest.fixture
async def ledger(ledger: Ledger, url: str, request: pytest.FixtureRequest) -> AsyncIterator[Ledger]:
    """A ledger with that history, and a sink."""
    await ledger.write(fill)
    if url.startswith("postgresql"):
        # as the database does by itself, a little later
        request.getfixturevalue("running_postgres").tell("prepared", "VACUUM ANALYZE")
    async with Ledger(url, sinks=["shelf"]) as aged:
        yield aged


@pytest.fixture
def sent_statements() -> Iterator[dict[str, Any]]:
    """Every statement that is sent, with its parameters."""
    statements: dict[str, Any] = {}

    def note(*told: Any) -> None:
        _, _, words, parameters, _, many = told
        statements[words] = parameters[0] if many else parameters

    event.listen(Database, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(Database, "before_cursor_execute", note)


async def everything_by_itself(ledger: Ledger, engine: Engine, server: EmbeddedServer) -> None:
    """The background work of relays, workers and couriers."""
    relay = ledger.jobs.relay = Relay(ledger, engine, log=Log())
    await relay.look()
    for id in ("a", "b", "c"):
        await ledger.jobs.submit("mails", b"1", id=id, lane="anna", subject=id, version=1)
    due = text("UPDATE towpath_jobs SET relay_at = 1 WHERE id = 'a'")
    await ledger.write(lambda connection: connection.execute(due))
    await relay.look()
    server.ask("FLUSHALL")
    await relay.look()
    await relay.reconcile()
    first, later = [await ledger.jobs.get("mails", id) for id in ("a", "b")]
    begun = await ledger.jobs.begin(lease(first, 7))
    early = await ledger.jobs.begin(lease(later, 8))
    await ledger.jobs.begin(lease(later, 9))  # a name it no longer has
    assert (begun.standing, early.standing) == (Standing.BEGUN, Standing.EARLY)
    await ledger.jobs.end(Ending(lease(first, 7), Complete(lease(first, 7)), cancelled=False))
    await ledger.write(lambda connection: ledger.outbox.put(connection, [an_event("p")]))
    shelf = MemorySink("shelf")
    async with Courier(ledger, [shelf]):

        async def has_both() -> bool:
            return len(shelf.bodies) == 2

        await eventually_async(has_both)
    await ledger.outbox.counts()


async def shown_to_people(ledger: Ledger) -> None:
    await ledger.jobs.list("mails")
    await ledger.jobs.list("mails", state=RecordState.DEAD)
    await ledger.jobs.list("mails", subject="s7")
    await ledger.jobs.list("mails", subject=["s7", "s8"], state=RecordState.COMPLETED)
    await ledger.jobs.counts("mails")
    key = (await ledger.keys.create("k", scopes=["read"])).info
    cookie = await ledger.logins.open(key)
    for _ in range(2):  # each ends the one before
        cookie = await ledger.logins.open(key, most=1)
    assert await ledger.logins.find(cookie) is not None
    await ledger.logins.redeem(await ledger.logins.link(key))
    await ledger.logins.close(cookie)


def wrong_steps_of_sqlite(connection: Connection, words: str, parameters: Any) -> list[str]:
    plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {words}", parameters)
    told = [str(row[3]) for row in plan]
    by_state = "(queue=? AND state=?)"  # all of one state may be all
    wrong = [step for step in told if step.startswith("SCAN ") and step.split()[1] in LARGE]
    return wrong + [step for step in told if by_state in step and "subject IN" in words]


def wrong_steps_of_postgres(connection: Connection, words: str, parameters: Any) -> list[str]:
    """The steps that read too much: an index may be used, and read to its end.

    Only a count for people may do that. A count in the background has a limit.
    """
    most = COUNTED_MOST if "count(" in words else MANY
    most = HISTORY + MANY if is_for_people(words) else most
    undo = connection.begin_nested()
    explained = f"EXPLAIN (ANALYZE, FORMAT JSON) {words}"
    told: Any = connection.exec_driver_sql(explained, parameters).scalar()
    undo.rollback()
    whole: Any = json.loads(told) if isinstance(told, str) else told
    return [
        f"{node['Node Type']} on {node['Relation Name']}: {rows_read(node)}"
        for node in nodes(whole[0]["Plan"])
        if "Scan" in node["Node Type"] and node.get("Relation Name") in LARGE
        if node["Node Type"] == "Seq Scan" or rows_read(node) > most
    ]


def is_for_people(words: str) -> bool:
    """Whether it counts all records of a queue."""
    return "count(" in words and "towpath_jobs" in words


def rows_read(node: dict[str, Any]) -> int:
    passed = [value for name, value in node.items() if name.startswith("Rows Removed")]
    return int((node["Actual Rows"] + sum(passed)) * node["Actual Loops"])


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A step of a plan and those under it."""
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes(part)


async def test_no_statement_reads_the_history(
    ledger: Ledger, url: str, server: EmbeddedServer, sent_statements: dict[str, Any]
) -> None:
    async with Engine(server.url) as engine:
        await everything_by_itself(ledger, engine, server)
    assert not [statement for statement in sent_statements if is_for_people(statement)]
    await shown_to_people(ledger)
    assert [statement for statement in sent_statements if is_for_people(statement)]
    words = {
        statement: parameters
        for statement, parameters in sent_statements.items()
        if _reads(statement)
    }
    assert len(words) > 20
    postgres = url.startswith("postgresql")
    wrong_steps = wrong_steps_of_postgres if postgres else wrong_steps_of_sqlite

    def look(connection: Connection) -> dict[str, list[str]]:
        # On an empty table any plan is as good as another; this one has its history.
        return {
            statement: wrong_steps(connection, statement, values)
            for statement, values in words.items()
        }

    found = {statement: wrong for statement, wrong in (await ledger.write(look)).items() if wrong}
    assert not found, "\n\n".join(f"{wrong}: {statement}" for statement, wrong in found.items())


def _reads(words: str) -> bool:
    """Whether it is a statement of the ledger on a table that grows; not one of this test."""
    ours = any(table in words for table in ("towpath_jobs", "towpath_outbox", "towpath_logins"))
    return (
        ours and "EXPLAIN" not in words and "WHERE id = 'a'" not in words and "CREATE" not in words
    )
