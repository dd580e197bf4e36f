"""Several texts in one parameter: the statement is the same for any number, and uses an index."""

from typing import Any

import pytest
from sqlalchemy import event, select
from sqlalchemy.engine import Connection
from sqlalchemy.sql import Select

from towpath.ledger.database.bulk import named
from towpath.ledger.database.schema import jobs
from towpath.ledger.ledger import Ledger

REVIEWS = "reviews"


def query(column: str) -> Select[Any]:
    return select(jobs.c.id).where(named(jobs.c[column])).order_by(jobs.c.seq)


async def found(ledger: Ledger, names: list[str]) -> list[str]:
    asked = {"in_queue": REVIEWS, "names": names}
    return await ledger.read(lambda connection: list(connection.scalars(query("id"), asked)))


async def test_a_condition_on_several_values_finds_them_and_no_others(ledger: Ledger) -> None:
    ids = ["a", 'b"]', "ü", "c"]
    for id in ids:
        await ledger.jobs.submit(REVIEWS, b"", id=id)
    await ledger.jobs.submit("others", b"", id="a")
    assert await found(ledger, []) == []
    assert await found(ledger, ["c", "ü", "nobody"]) == ["ü", "c"]
    assert await found(ledger, ids * 500) == ids


async def test_a_condition_on_several_values_has_the_same_text_for_any_number(
    ledger: Ledger,
) -> None:
    texts: set[str] = set()

    def ask(connection: Connection) -> None:
        def heard(*words: Any) -> None:
            if words[2] != "BEGIN":
                texts.add(words[2])

        event.listen(connection, "before_cursor_execute", heard)
        for count in (1, 2, 50):
            names = [str(number) for number in range(count)]
            connection.execute(query("id"), {"in_queue": REVIEWS, "names": names})

    await ledger.read(ask)
    assert len(texts) == 1


@pytest.mark.parametrize("column", ["id", "job", "subject"])
async def test_a_condition_on_several_values_uses_an_index_on_sqlite(
    file_url: str, column: str
) -> None:
    """A plan that reads all rows of a queue is correct, and slow once there are many."""

    def plan(connection: Connection) -> str:
        asked = {"in_queue": REVIEWS, "names": ["a"]}
        written = str(query(column).compile(connection.engine))
        told = connection.exec_driver_sql(
            f"EXPLAIN QUERY PLAN {written}", (asked["in_queue"], '["a"]')
        )
        return " ".join(row.detail for row in told)

    async with Ledger(file_url) as ledger:
        await ledger.migrate()
        assert f"queue=? AND {column}=?" in await ledger.read(plan)
