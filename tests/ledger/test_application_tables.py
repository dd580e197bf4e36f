"""Tables of applications: each application has versions of its own, migrated together with the
ledger's or not at all.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, Table, insert, inspect, select, text

from tests.ledger.lending import DUE, FIRST, package, release
from tests.programs import Bounded
from tests.waiting import HANGS
from towpath.errors import InvalidOption
from towpath.ledger.database.migrate import Migration
from towpath.ledger.database.schema import LEDGER, SCHEMA
from towpath.ledger.database.tables import Tables
from towpath.ledger.errors import LedgerAhead, LedgerError, LedgerOutdated, MigrationFailed
from towpath.ledger.ledger import Ledger
from towpath.testing import drift

MIGRATE = """
import asyncio, sys
from pathlib import Path
from tests.ledger.lending import LendingRelease
from towpath.ledger.ledger import Ledger

async def main():
    async with Ledger(sys.argv[1], tables=[LendingRelease("0003", sys.argv[2])]) as ledger:
        print("here", flush=True)
        sys.stdin.readline()
        print((await ledger.migrate())[1].before)

asyncio.run(main())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder for releases, on the path of Python until the test ends."""
    yield tmp_path
    if str(tmp_path) in sys.path:
        sys.path.remove(str(tmp_path))


def with_folder_on_path(folder: Path) -> dict[str, str]:
    """The environment of a process that finds the releases, and the tests."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(Path.cwd())])}


async def tables_of(ledger: Ledger) -> set[str]:
    return set(await ledger.read(lambda connection: inspect(connection).get_table_names()))


class TestMigrating:
    async def test_brings_the_ledger_up_to_date_first_and_then_each_application(
        self, url: str, folder: Path
    ) -> None:
        async with Ledger(url, tables=[release(folder, 3)]) as ledger:
            assert await ledger.migrate() == [
                Migration("ledger", None, SCHEMA),
                Migration("lending", None, "0003"),
            ]
            assert await ledger.migrate() == [
                Migration("ledger", SCHEMA, SCHEMA),
                Migration("lending", "0003", "0003"),
            ]
            assert await ledger.drift() == []

    async def test_keeps_existing_rows_and_runs_only_missing_steps(
        self, url: str, folder: Path
    ) -> None:
        """This holds for steps that make a table anew, as SQLite needs it: foreign keys to it
        stay.
        """
        first, third = release(folder, 1), release(folder, 3)
        async with Ledger(url, tables=[first]) as ledger:
            await ledger.migrate()
            key, _ = await ledger.keys.create("anna", scopes=["read"])
            await ledger.write(
                lambda connection: connection.execute(insert(first.books), {"id": 7, "title": "x"})
            )
            await ledger.write(
                lambda connection: connection.execute(insert(first.loans), {"id": 1, "book": 7})
            )
        async with Ledger(url, tables=[third]) as ledger:
            assert (await ledger.migrate())[1] == Migration("lending", "0001", "0003")
            books, loans = select(third.books), select(third.loans)
            assert await ledger.read(lambda connection: connection.execute(books).all()) == [
                (7, "X")
            ]
            assert await ledger.read(lambda connection: connection.execute(loans).all()) == [
                (1, 7, None)
            ]
            assert await ledger.keys.list() == [key]
            assert await ledger.drift() == []

    def test_by_several_processes_at_once_happens_once(self, url: str, folder: Path) -> None:
        steps, pipe, found = release(folder, 3).steps, subprocess.PIPE, with_folder_on_path(folder)
        at_once = [
            Bounded[str](
                [sys.executable, "-W", "error", "-c", MIGRATE, url, steps],
                stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=found,
            )
            for _ in range(3)
        ]  # fmt: skip
        for process in at_once:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
        ended = [process.communicate("now\n", timeout=HANGS) for process in at_once]
        assert [err for _, err in ended] == [""] * 3
        assert sorted(out.strip() for out, _ in ended) == ["0003", "0003", "None"]

    async def test_that_is_killed_half_way_is_done_by_the_next_one(
        self, url: str, folder: Path
    ) -> None:
        """Neither tables nor a lock of the killed one are left."""
        stuck = f"{DUE}\n    print('half way', flush=True)\n    input()"
        steps, found = package(folder, ("", FIRST), ("", stuck)), with_folder_on_path(folder)
        process = Bounded[str](
            [sys.executable, "-c", MIGRATE.replace("0003", "0002"), url, steps],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=found,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("now\n")
        process.stdin.flush()
        assert [process.stdout.readline() for _ in range(2)] == ["here\n", "half way\n"]
        process.kill()
        process.communicate()
        async with Ledger(url, tables=[release(folder, 3)]) as ledger:
            assert [migration.before for migration in await ledger.migrate()] == [None, None]
            assert await ledger.drift() == []

    async def test_is_required_before_an_application_uses_its_tables(
        self, url: str, folder: Path
    ) -> None:
        """A server that was started too early goes on by itself once they exist."""
        lending = release(folder, 1)
        async with Ledger(url) as ledger, Ledger(url, tables=[lending]) as with_lending:
            await ledger.migrate()
            assert await ledger.keys.list() == []
            with pytest.raises(LedgerOutdated) as refusal:
                await with_lending.keys.list()
            missing = refusal.value
            assert (missing.of, missing.found, missing.wanted) == ("lending", None, "0001")
            assert "towpath migrate" in refusal.value.remedy
            async with Ledger(url, tables=[lending]) as other:
                await other.migrate()
            assert await with_lending.keys.list() == []

    async def test_adds_the_oldest_release_to_a_database_without_it(self, url: str) -> None:
        async with Ledger(url) as ledger:
            await ledger.migrate()
            await ledger.write(
                lambda connection: connection.execute(
                    text("ALTER TABLE towpath_schema DROP oldest")
                )
            )
            assert await ledger.keys.list() == []
        async with Ledger(url) as ledger:
            assert await ledger.keys.list() == []
            assert await ledger.migrate() == [Migration("ledger", SCHEMA, SCHEMA)]
            assert await ledger.drift() == []


class TestTwoReleases:
    async def test_work_side_by_side_where_the_newer_one_has_only_added(
        self, url: str, folder: Path
    ) -> None:
        older, newer = release(folder, 1), release(folder, 2)
        async with Ledger(url, tables=[older]) as before, Ledger(url, tables=[newer]) as after:
            await before.migrate()
            await before.write(
                lambda connection: connection.execute(insert(older.books), {"id": 1, "title": "x"})
            )
            await after.migrate()
            late = {"id": 1, "book": 1, "due_at": 5}
            await after.write(lambda connection: connection.execute(insert(newer.loans), late))
            await before.write(
                lambda connection: connection.execute(insert(older.loans), {"id": 2, "book": 1})
            )
            await before.probe()
            rows = await before.read(
                lambda connection: connection.execute(select(older.loans)).all()
            )
            assert rows == [(1, 1), (2, 1)]
        async with Ledger(url, tables=[older]) as again:
            # One that is started now, and migrates as `towpath up` does: nothing to do.
            assert (await again.migrate())[1] == Migration("lending", "0002", "0002")
            assert (
                await again.read(
                    lambda connection: len(connection.execute(select(older.loans)).all())
                )
                == 2
            )
        async with Ledger(url, tables=[newer]) as after:
            assert (await after.migrate())[1] == Migration("lending", "0002", "0002")

    async def test_do_not_work_side_by_side_where_the_newer_one_has_changed_a_table(
        self, url: str, folder: Path
    ) -> None:
        """There is no downgrade: the older release neither changes the table back nor writes
        to it.
        """
        second, third = release(folder, 2), release(folder, 3)
        async with Ledger(url, tables=[second]) as before, Ledger(url, tables=[third]) as after:
            await before.migrate()
            await before.probe()
            await after.migrate()
            for use in (before.probe, before.migrate):
                with pytest.raises(LedgerAhead) as refusal:
                    await use()
                ahead = refusal.value
                assert (ahead.of, ahead.found, ahead.wanted) == ("lending", "0003", "0002")
            assert (await after.migrate())[1] == Migration("lending", "0003", "0003")

    async def test_of_the_ledger_itself_follow_the_same_rule(
        self, ledger: Ledger, url: str
    ) -> None:
        """A later release names the earlier ones that can go on working."""
        newer = LEDGER.versions.update().values(version_num="0999", oldest=SCHEMA)
        await ledger.write(lambda connection: connection.execute(newer))
        async with Ledger(url) as later:
            assert await later.migrate() == [Migration("ledger", "0999", "0999")]
            assert await later.keys.list() == []


class TestAMigrationThatFails:
    async def fails(self, url: str, tables: Tables, named: str) -> None:
        """Checks that nothing of it is left, nor of the ledger's steps, and that the server cannot
        start.
        """
        async with Ledger(url, tables=[tables]) as ledger:
            with pytest.raises(MigrationFailed, match=named) as refusal:
                await ledger.migrate()
            assert refusal.value.line == "lending"
            with pytest.raises(LedgerOutdated):
                await ledger.probe()
        async with Ledger(url) as ledger:
            with pytest.raises(LedgerOutdated) as outdated:
                await ledger.keys.list()
            assert (outdated.value.of, outdated.value.found) == ("ledger", None)

    async def test_half_way_leaves_nothing_behind(self, url: str, folder: Path) -> None:
        half = """
    op.create_table("towpath_lending_shelves", sa.Column("id", sa.Integer(), primary_key=True))
    op.execute("INSERT INTO towpath_lending_shelves VALUES (1)")
    op.execute("INSERT INTO towpath_lending_shelves VALUES (1)")"""
        await self.fails(url, release(folder, 2, ("", half)), r"0003.*(?i:unique)")
        async with Ledger(url, tables=[release(folder, 2)]) as mended:
            await mended.migrate()
            assert "towpath_lending_shelves" not in await tables_of(mended)
            assert await mended.drift() == []

    @pytest.mark.parametrize(
        ("more", "body", "named"),
        [
            ("", "    raise ValueError('no such book')", "0002.*ValueError: no such book"),
            ("", "    nonsense(", "SyntaxError"),
            ("import nonsense", "    pass", "ModuleNotFoundError"),
            ("revision = '0007'", "    pass", "v0001_step, v0002_step"),
            ("", "    op.drop_table('towpath_outbox')", "0002.*towpath_outbox"),
            (
                "",
                "    op.add_column('towpath_jobs', sa.Column('mine', sa.Integer()))",
                "0002.*towpath_jobs",
            ),
            (
                "additive = True",
                "    op.drop_column('towpath_lending_books', 'title')",
                r"0002.*towpath_lending_books\.title",
            ),
            (
                "additive = True",
                "    op.drop_table('towpath_lending_loans')",
                r"0002.*towpath_lending_loans\.book",
            ),
            (
                "additive = True",
                """
    with op.batch_alter_table('towpath_lending_loans') as loans:
        loans.add_column(sa.Column('by', sa.Integer(), nullable=False))""",
                r"0002.*towpath_lending_loans\.by",
            ),
        ],
    )
    async def test_names_the_cause(
        self, file_url: str, folder: Path, more: str, body: str, named: str
    ) -> None:
        await self.fails(file_url, release(folder, 1, (more, body)), named)

    async def test_for_a_missing_or_uncounted_step_changes_nothing(
        self, file_url: str, folder: Path
    ) -> None:
        tables = release(folder, 2)
        (folder / tables.steps / "v0001_step.py").unlink()
        await self.fails(file_url, tables, r"^(?!.*v0001).*0002.*v0002_step")
        uncounted = Tables("lending", version="0001", steps=package(folder, ("", FIRST), ("", DUE)))
        await self.fails(file_url, uncounted, "0001.*v0001_step, v0002_step")
        nowhere = Tables("lending", version="0001", steps="lending_nowhere")
        await self.fails(file_url, nowhere, "lending_nowhere")

    async def test_for_rows_without_their_target_changes_nothing(
        self, url: str, folder: Path
    ) -> None:
        orphan = '    op.execute("INSERT INTO towpath_lending_loans VALUES (1, 99, 0)")'
        async with Ledger(url, tables=[release(folder, 2, ("", orphan))]) as ledger:
            with pytest.raises(LedgerError, match="towpath_lending_loans"):
                await ledger.migrate()
            with pytest.raises(LedgerOutdated):
                await ledger.probe()

    async def test_for_an_unknown_version_names_it(self, file_url: str, folder: Path) -> None:
        lending = release(folder, 1)
        async with Ledger(file_url, tables=[lending]) as ledger:
            await ledger.migrate()
            strange = lending.versions.update().values(version_num="0000")
            await ledger.write(lambda connection: connection.execute(strange))
            with pytest.raises(MigrationFailed, match="0000") as refusal:
                await ledger.migrate()
            assert refusal.value.line == "lending"


class TestTablesOfApplications:
    @pytest.mark.parametrize(
        ("name", "table", "named"),
        [
            ("lending", "books", "towpath_lending_"),
            ("lending", "towpath_jobs", "towpath_lending_"),
            ("lending", "towpath_lending_schema", "lending"),
            ("api", "towpath_api_keys", "ledger"),
            ("shop", "towpath_shop_books_x", "shop_books"),
            ("shop", "towpath_shop_books_schema", "shop_books"),
        ],
    )
    def test_with_names_of_other_tables_are_refused(
        self, file_url: str, name: str, table: str, named: str
    ) -> None:
        beside = Tables("shop_books", version="0001", steps="x")
        Table("towpath_shop_books_x", beside.metadata, Column("id", Integer, primary_key=True))
        claims = Tables(name, version="0001", steps="x")
        Table(table, claims.metadata, Column("id", Integer, primary_key=True))
        with pytest.raises(InvalidOption) as refusal:
            Ledger(file_url, tables=[beside, claims])
        assert (refusal.value.option, refusal.value.value) == ("tables", name)
        assert {table, named} <= set(re.findall(r"\w+", refusal.value.rule))

    def test_with_one_name_twice_are_refused(self, file_url: str) -> None:
        one, other = (Tables(name, version="0001", steps="x") for name in ("a-b", "a_b"))
        for again in (one, other):
            with pytest.raises(InvalidOption, match=r"towpath_a_b_schema.*a-b") as refusal:
                Ledger(file_url, tables=[one, again])
            assert (refusal.value.option, refusal.value.value) == ("tables", again.name)
        with pytest.raises(InvalidOption, match="towpath_schema") as refusal:
            Ledger(
                file_url, tables=[Tables("ledger", version="0001", steps="x", prefix="towpath_")]
            )
        assert (refusal.value.option, refusal.value.value) == ("tables", "ledger")

    @pytest.mark.parametrize("name", ["", "Lending", "9", "a" * 25, "a.b", "a b"])
    def test_have_a_name_that_may_be_part_of_a_table_name(self, name: str) -> None:
        with pytest.raises(InvalidOption):
            Tables(name, version="0001", steps="x")

    @pytest.mark.parametrize("version", ["", "1", "00001", "first"])
    def test_have_a_version_of_four_digits(self, version: str) -> None:
        with pytest.raises(InvalidOption):
            Tables("lending", version=version, steps="x")

    async def test_that_differ_from_what_the_steps_make_are_found(
        self, url: str, folder: Path
    ) -> None:
        """A column that no step makes, one that only a step makes, and a table of the same kind."""
        made = '    op.execute("CREATE TABLE books (y INTEGER)")'
        found = await drift(release(folder, 2, ("", made)), url=url)
        assert len(found) == 3
        for part in ("remove_table books", "name", "title"):
            assert any(part in difference for difference in found), found

    async def test_that_agree_with_the_steps_have_no_difference(self, folder: Path) -> None:
        assert await drift(release(folder, 3)) == []
