"""Counts statements of the database and scripts of Redis."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine

from towpath.embedded import EmbeddedServer
from towpath.embedded.process import ask_fields
from towpath.ledger.ledger import Ledger


@contextmanager
def statements() -> Generator[list[tuple[str, Any]]]:
    """Collects the statements that are executed in the block, with their parameters. One statement
    with many rows counts once.
    """
    executed: list[tuple[str, Any]] = []

    def note(_: object, __: object, statement: str, parameters: Any, *___: Any) -> None:
        executed.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield executed
    finally:
        event.remove(Engine, "before_cursor_execute", note)


async def full_scans(ledger: Ledger, executed: Iterable[tuple[str, Any]]) -> list[str]:
    """Returns those of the queries that scan all issues on SQLite."""
    found: list[str] = []
    for statement, parameters in executed:
        if statement.startswith("SELECT") and "towpath_issues_issues" in statement:
            plan = await ledger.read(_query_plan(statement, parameters))
            if any("SCAN towpath_issues_issues" in step or "(id>?)" in step for step in plan):
                found.append(f"{statement}: {plan}")
    return found


def _query_plan(statement: str, parameters: Any) -> Callable[[Connection], list[str]]:
    explain = f"EXPLAIN QUERY PLAN {statement}"
    return lambda connection: [
        str(row[-1]) for row in connection.exec_driver_sql(explain, parameters)
    ]


def scripts_run(server: EmbeddedServer) -> int:
    """Number of scripts that Redis was asked to run since it started."""
    stats = ask_fields(server.address, "INFO", "commandstats")
    counted = [
        numbers for name, numbers in stats.items() if name in ("cmdstat_evalsha", "cmdstat_eval")
    ]
    return sum(int(numbers.partition("calls=")[2].partition(",")[0]) for numbers in counted)
