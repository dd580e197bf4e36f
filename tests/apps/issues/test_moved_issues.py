"""An issue that moves to a repository whose row for it changes at the same moment."""

import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy.engine import Connection

from tests.apps.issues.services import REPOSITORY, IssueServices
from towpath.apps.issues import tables
from towpath.apps.issues.model import Issue
from towpath.apps.issues.tables import changes
from towpath.ledger.database.writing import Decide, Write

NEW = "octo/renamed"


@contextmanager
def another_process(database: str) -> Generator[sqlite3.Connection]:
    path = database.removeprefix("sqlite:///")
    assert Path(path).exists()
    with closing(sqlite3.connect(path)) as connection, connection:
        yield connection


def between(decide: Decide[str], happens: Callable[[], None]) -> Decide[str]:
    """The change, with what another process does once: after the reads, before the writes."""
    waiting = [happens]

    def decide_then_wait(connection: Connection) -> Write[str]:
        write = decide(connection)
        if waiting:
            waiting.pop()()
        return write

    return decide_then_wait


async def row(issues: IssueServices, repository: str, number: int = 1) -> Issue | None:
    return await issues.ledger.read(tables.issue_by_id(f"{repository}#{number}"))


async def test_a_row_that_gets_a_holder_during_a_move_is_kept(
    issues: IssueServices, url: str
) -> None:
    moving = await issues.put(1)
    there = await issues.put(1, repository=NEW)

    def hold() -> None:
        with another_process(url) as connection:
            connection.execute(
                "UPDATE towpath_issues_issues SET agent = 'ann', token = 7, revision = revision + 1"
                " WHERE id = ?",
                (there.id,),
            )

    withdrawn = await issues.ledger.decide(between(changes.move_issue(moving.id, NEW), hold))
    kept = await row(issues, NEW)
    assert kept is not None
    assert (kept.agent, kept.token, kept.task_id) == ("ann", 7, there.task_id)
    assert withdrawn == moving.task_id
    assert await row(issues, REPOSITORY) is None


async def test_a_row_that_appears_during_a_move_is_replaced(
    issues: IssueServices, url: str
) -> None:
    moving = await issues.put(1)

    def appear() -> None:
        with another_process(url) as connection:
            columns = connection.execute(
                "SELECT name FROM pragma_table_info('towpath_issues_issues')"
            )
            names = [str(name) for (name,) in columns]
            values = {"id": f"'{NEW}#1'", "place": f"'{NEW}'", "task_id": "'other'"}
            chosen = ", ".join(values.get(name, name) for name in names)
            connection.execute(
                f"INSERT INTO towpath_issues_issues ({', '.join(names)}) SELECT {chosen}"  # noqa: S608 -- names of columns
                " FROM towpath_issues_issues WHERE id = ?",
                (moving.id,),
            )

    withdrawn = await issues.ledger.decide(between(changes.move_issue(moving.id, NEW), appear))
    moved = await row(issues, NEW)
    assert moved is not None
    assert (moved.task_id, withdrawn) == (moving.task_id, "other")


async def test_an_issue_that_is_given_another_task_during_a_move_has_that_task_withdrawn(
    issues: IssueServices, url: str
) -> None:
    moving = await issues.put(1)
    held = await issues.put(1, repository=NEW)
    with another_process(url) as connection:
        connection.execute(
            "UPDATE towpath_issues_issues SET agent = 'ann' WHERE id = ?", (held.id,)
        )

    def offer_again() -> None:
        with another_process(url) as connection:
            connection.execute(
                "UPDATE towpath_issues_issues SET task_id = 'newer', revision = revision + 1"
                " WHERE id = ?",
                (moving.id,),
            )

    move = changes.move_issue(moving.id, NEW)
    assert await issues.ledger.decide(between(move, offer_again)) == "newer"
    assert await row(issues, REPOSITORY) is None
