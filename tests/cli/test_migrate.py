"""`towpath migrate` and `towpath up` with the tables of an application that the settings name."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.command import Command
from towpath.ledger.database.schema import SCHEMA

APPLICATION = """
from towpath.apps.application import Application
from towpath.options import Options

LENDING = Application(name="lending", options=Options, tables="lending.tables:TABLES")
"""
TABLES = """
from sqlalchemy import Column, Integer, Table
from towpath.ledger.database.tables import Tables

TABLES = Tables("{name}", version="{version}", steps=__name__)
Table("{table}", TABLES.metadata, Column("id", Integer, primary_key=True))
"""
STEP = """
from alembic import op

revision = "{number}"

def upgrade():
    op.execute("{order}")
"""
BOOKS = "towpath_lending_books"


class LendingApplication:
    """An application in the working directory of a command, in a release that the test chooses."""

    def __init__(self, towpath: Command) -> None:
        self.towpath = towpath
        self._folder = towpath.directory / "lending" / "tables"
        self._folder.mkdir(parents=True)
        (towpath.directory / "lending" / "__init__.py").write_text(APPLICATION)
        self.file = towpath.directory / "data" / "towpath.db"
        self.file.parent.mkdir()
        self.url = f"sqlite:///{self.file}"
        towpath.env |= {"TOWPATH_APPLICATIONS": "lending:LENDING", "DATABASE_URL": self.url}
        # a file that is rewritten within one second must be read again
        towpath.env |= {"PYTHONDONTWRITEBYTECODE": "1"}

    def release(self, *orders: str, name: str = "lending", table: str = BOOKS) -> None:
        for step in self._folder.glob("v*.py"):
            step.unlink()
        for number, order in enumerate(orders, 1):
            text = STEP.format(number=f"{number:04}", order=order)
            (self._folder / f"v{number:04}_step.py").write_text(text)
        told = TABLES.format(name=name, table=table, version=f"{len(orders):04}")
        (self._folder / "__init__.py").write_text(told)

    def columns(self) -> list[str]:
        with closing(sqlite3.connect(self.file)) as connection:
            return [row[1] for row in connection.execute(f"PRAGMA table_info({BOOKS})")]


FIRST = f"CREATE TABLE {BOOKS} (id INTEGER PRIMARY KEY)"
SECOND = f"ALTER TABLE {BOOKS} ADD COLUMN title VARCHAR(100)"
FAILS = f"CREATE INDEX ix_{BOOKS}_nothing ON {BOOKS} (nothing)"


@pytest.fixture
def lending(towpath: Command) -> LendingApplication:
    return LendingApplication(towpath)


def up(towpath: Command, data: Path) -> tuple[int, str]:
    """How a server ends that cannot start, and why."""
    ran = towpath("up", "--json", "--port", "0", "--data", str(data))
    return ran.code, ran.refusal["refused"]


class TestMigrating:
    def test_reports_each_line(self, towpath: Command, lending: LendingApplication) -> None:
        lending.release(FIRST)
        first = towpath("migrate")
        assert first.code == 0, first.err
        told = first.out.splitlines()
        for line, name, version in ((told[0], "ledger", SCHEMA), (told[-1], "lending", "0001")):
            assert line.startswith(f"{lending.url}  {name} ")
            assert line.endswith(f" {version}")
        lending.release(FIRST, SECOND)
        again = towpath("migrate", "--json")
        lines = {row["line"]: (row["before"], row["after"]) for row in again.objects}
        assert (lines["ledger"], lines["lending"]) == ((SCHEMA, SCHEMA), ("0001", "0002"))

    def test_that_fails_names_the_step_and_keeps_the_server_from_starting(
        self, towpath: Command, lending: LendingApplication
    ) -> None:
        lending.release(FIRST)
        assert towpath("migrate").code == 0
        lending.release(FIRST, SECOND, FAILS)
        ran = towpath("migrate", "--json")
        assert (ran.code, ran.refusal["refused"]) == (1, "migration_failed")
        message = ran.refusal["message"]
        assert all(fact in message for fact in ("lending", "0003", "nothing")), message
        assert up(towpath, lending.file.parent) == (1, "migration_failed")
        assert lending.columns() == ["id"]

    def test_back_to_an_older_release_is_refused(
        self, towpath: Command, lending: LendingApplication
    ) -> None:
        """The older release would not know the tables."""
        lending.release(FIRST, SECOND)
        assert towpath("migrate").code == 0
        lending.release(FIRST)
        ran = towpath("migrate", "--json")
        assert (ran.code, ran.refusal["refused"]) == (1, "ledger_ahead")
        message = ran.refusal["message"]
        assert all(fact in message for fact in ("0002", "lending", "0001")), message
        assert up(towpath, lending.file.parent) == (1, "ledger_ahead")
        assert lending.columns() == ["id", "title"]

    @pytest.mark.parametrize(
        ("name", "table", "named"),
        [
            ("lending", "towpath_jobs", "towpath_jobs"),
            ("reading", "towpath_reading_books", "lending.tables:TABLES"),
        ],
    )
    def test_tables_of_another_owner_is_refused(
        self, towpath: Command, lending: LendingApplication, name: str, table: str, named: str
    ) -> None:
        lending.release(FIRST, name=name, table=table)
        ran = towpath("migrate", "--json")
        assert ran.code == 2
        assert "lending" in ran.refusal["message"]
        assert named in ran.refusal["message"]
        assert not lending.file.exists()
        assert up(towpath, lending.file.parent)[0] == 2
