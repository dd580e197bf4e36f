"""Changes: on disk when they return, joined where a commit is expensive, and independent."""

import asyncio
import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import Connection, Engine

from tests.fixtures import LEDGER_LIMIT
from towpath import milliseconds
from towpath.ledger.database.writing import Write
from towpath.ledger.errors import (
    LedgerBusy,
    LedgerClosed,
    LedgerRefused,
    LedgerUnwritable,
)
from towpath.ledger.ledger import Ledger

KEEP = text("INSERT INTO kept (name) VALUES (:name)")


class ChangeFailed(Exception):
    """Raised by a change."""


@pytest.fixture
async def kept(ledger: Ledger) -> Ledger:
    """A ledger with a table to write to; a name can be stored once."""
    table = text("CREATE TABLE kept (name VARCHAR(20) PRIMARY KEY)")
    await ledger.write(lambda connection: connection.execute(table))
    return ledger


async def keep(ledger: Ledger, name: str) -> str:
    def change(connection: Connection) -> str:
        connection.execute(KEEP, {"name": name})
        if name.startswith("bad"):
            raise ChangeFailed(name)
        return name

    return await ledger.write(change)


async def names(ledger: Ledger) -> list[str]:
    query = text("SELECT name FROM kept ORDER BY name")
    return await ledger.read(lambda connection: list(connection.execute(query).scalars()))


class TestWritingToTheLedger:
    async def test_returns_what_the_change_returned(self, kept: Ledger) -> None:
        assert await keep(kept, "one") == "one"
        assert await names(kept) == ["one"]

    async def test_leaves_nothing_of_a_change_that_raises(self, kept: Ledger) -> None:
        with pytest.raises(ChangeFailed):
            await keep(kept, "bad")
        assert await names(kept) == []

    async def test_of_a_change_that_fails_does_not_fail_others(self, kept: Ledger) -> None:
        """This includes one that the database refuses, in the middle of 30 that come at once."""
        wanted = [f"{'bad' if n % 5 == 0 else 'good'}{n}" for n in range(30)] + ["good1"]
        outcomes = await asyncio.gather(
            *(keep(kept, name) for name in wanted), return_exceptions=True
        )
        failed = [type(outcome) for outcome in outcomes if isinstance(outcome, BaseException)]
        # The database decides which of the two with one name comes first.
        assert Counter(failed) == {ChangeFailed: 6, LedgerRefused: 1}
        assert await names(kept) == sorted(
            outcome for outcome in outcomes if isinstance(outcome, str)
        )
        assert len(await names(kept)) == 24

    async def test_goes_on_for_others_when_a_caller_is_cancelled(self, kept: Ledger) -> None:
        tasks = [asyncio.create_task(keep(kept, f"n{n}")) for n in range(10)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        done = [outcome for outcome in outcomes if isinstance(outcome, str)]
        assert done == ["n1", "n3", "n5", "n7", "n9"]
        assert set(done) <= set(await names(kept))

    async def test_is_refused_outside_of_the_ledgers_life(self, url: str) -> None:
        ledger = Ledger(url)
        for _ in range(2):
            with pytest.raises(LedgerClosed):
                await ledger.keys.list()
            with pytest.raises(LedgerClosed):
                await ledger.migrate()
            async with ledger:
                await ledger.migrate()
                assert await ledger.keys.list() == []
            await ledger.close()

    async def test_ends_before_the_ledger_closes(self, kept: Ledger, url: str) -> None:
        async with Ledger(url) as leaving:
            tasks = [asyncio.create_task(keep(leaving, f"n{n}")) for n in range(20)]
            await asyncio.sleep(0)
        assert all(task.done() for task in tasks)
        assert await asyncio.gather(*tasks) == [f"n{n}" for n in range(20)]
        assert len(await names(kept)) == 20


class TestASharedChange:
    async def test_of_concurrent_calls_is_decided_once_for_all_items(self, kept: Ledger) -> None:
        batches: list[list[str]] = []

        def decide(_: Connection, items: list[str]) -> Write[list[str]]:
            batches.append(items)

            def write(connection: Connection) -> list[str]:
                connection.execute(KEEP, [{"name": item} for item in items])
                return [item.upper() for item in items]

            return write

        ask = kept.decide_together(decide, list[str])
        wanted = [f"n{number}" for number in range(10)]
        assert await asyncio.gather(*map(ask, wanted)) == [name.upper() for name in wanted]
        assert await names(kept) == wanted
        assert batches == [wanted]

    async def test_whose_answers_fail_does_not_fail_other_changes(self, kept: Ledger) -> None:
        def finish(_: list[str]) -> list[str]:
            raise ChangeFailed

        ask = kept.decide_together(lambda _, items: lambda _: items, finish)
        *failed, name = await asyncio.gather(
            ask("a"), ask("b"), keep(kept, "c"), return_exceptions=True
        )
        assert [type(error) for error in failed] == [ChangeFailed, ChangeFailed]
        assert name == "c"

    async def test_that_fails_is_raised_to_all_its_callers_and_no_others(
        self, kept: Ledger
    ) -> None:
        def decide(_: Connection, items: list[str]) -> Write[list[str]]:
            raise ChangeFailed(*items)

        ask = kept.decide_together(decide, list[str])
        *failed, name = await asyncio.gather(
            ask("a"), ask("b"), keep(kept, "c"), return_exceptions=True
        )
        assert [type(error) for error in failed] == [ChangeFailed, ChangeFailed]
        assert (name, await names(kept)) == ("c", ["c"])


class TestOnSqlite:
    @pytest.fixture
    def url(self, file_url: str) -> str:
        return file_url

    async def test_changes_that_come_at_once_share_a_commit(self, kept: Ledger) -> None:
        """50 come at once: the first is committed alone, the others gather behind it."""
        commits: list[Connection] = []

        def committed(connection: Connection) -> None:
            commits.append(connection)

        event.listen(Engine, "commit", committed)
        try:
            await asyncio.gather(*(keep(kept, f"n{n}") for n in range(50)))
        finally:
            event.remove(Engine, "commit", committed)
        assert len(commits) <= 2
        assert len(await names(kept)) == 50

    async def test_a_commit_is_on_disk_and_readers_do_not_wait(self, kept: Ledger) -> None:
        """The settings behind that guarantee, in each connection."""

        def settings(connection: Connection) -> list[object]:
            asked = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            return [connection.exec_driver_sql(f"PRAGMA {setting}").scalar() for setting in asked]

        assert await kept.write(settings) == ["wal", 2, 1, 0]  # it waits by itself
        assert await kept.read(settings) == ["wal", 2, 1, LEDGER_LIMIT / milliseconds(1)]

    async def test_a_read_cannot_write(self, kept: Ledger) -> None:
        with pytest.raises(LedgerUnwritable, match="readonly"):
            await kept.read(lambda connection: connection.execute(KEEP, {"name": "x"}))

    async def test_a_decision_cannot_write(self, kept: Ledger) -> None:
        def decide(connection: Connection) -> Write[None]:
            connection.execute(KEEP, {"name": "too early"})
            return lambda writer: writer.execute(KEEP, {"name": "in time"}).close()

        with pytest.raises(LedgerRefused):
            await kept.decide(decide)
        assert await names(kept) == []

    async def test_reads_go_on_while_another_process_writes(
        self, kept: Ledger, tmp_path: Path
    ) -> None:
        await keep(kept, "before")
        other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert await names(kept) == ["before"]
        other.close()

    async def test_a_write_waits_for_another_process(self, kept: Ledger, tmp_path: Path) -> None:
        other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(keep(kept, "after"))
        assert await names(kept) == []
        other.execute("COMMIT")
        other.close()
        assert await waiting == "after"

    async def test_a_write_gives_up_after_the_time_limit(
        self, file_url: str, tmp_path: Path
    ) -> None:
        """LedgerBusy, which may be tried again, and nothing is written."""
        async with Ledger(file_url, limit=milliseconds(50)) as ledger:
            await ledger.migrate()
            other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(LedgerBusy):
                await ledger.keys.create("anna", scopes=["read"])
            other.close()
            assert await ledger.keys.list() == []

    async def test_a_change_that_makes_sqlite_roll_back_does_not_fail_others(
        self, kept: Ledger
    ) -> None:
        """SQLite may roll back a whole transaction, as on a full disk. OR ROLLBACK makes it
        do so.
        """
        ruin = text("INSERT OR ROLLBACK INTO kept (name) VALUES ('one')")
        outcomes = await asyncio.gather(
            keep(kept, "one"),
            keep(kept, "two"),
            kept.write(lambda connection: connection.execute(ruin)),
            keep(kept, "three"),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [str, str, LedgerRefused, str]
        assert "UNIQUE" in str(outcomes[2])
        assert await names(kept) == ["one", "three", "two"]
