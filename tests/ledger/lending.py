"""A small application with tables, in several releases: a library that lends books."""

import sys
from itertools import count
from pathlib import Path

from sqlalchemy import BigInteger, Column, ForeignKey, Integer, String, Table

from towpath.ledger.database.tables import Tables

FIRST = """
    op.create_table(
        "towpath_lending_books",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("title", sa.String(100), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_towpath_lending_books"),
    )
    op.create_table(
        "towpath_lending_loans",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("book", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_towpath_lending_loans"),
        sa.ForeignKeyConstraint(
            ["book"], ["towpath_lending_books.id"], ondelete="CASCADE",
            name="fk_towpath_lending_loans_book",
        ),
    )
"""
DUE = """
    op.add_column("towpath_lending_loans", sa.Column("due_at", sa.BigInteger()))
"""
AUTHOR = """
    op.execute("UPDATE towpath_lending_books SET title = upper(title)")
    with op.batch_alter_table("towpath_lending_books") as books:
        books.alter_column("title", new_column_name="name")
"""
"""Not additive: code that says `title` does not find it any more."""
_STEP = '''"""A step."""

import sqlalchemy as sa
from alembic import op

revision = "{number:04}"
{more}


def upgrade() -> None:
{body}
'''
_numbers = count(1)


class LendingRelease(Tables):
    """One release of the application: its tables as that release knows them."""

    def __init__(self, version: str, steps: str) -> None:
        super().__init__("lending", version=version, steps=steps)
        self.books = Table(
            "towpath_lending_books",
            self.metadata,
            Column("id", Integer, primary_key=True),
            Column("name" if version > "0002" else "title", String(100), nullable=False),
        )
        self.loans = Table(
            "towpath_lending_loans",
            self.metadata,
            Column("id", Integer, primary_key=True),
            Column(
                "book", Integer, ForeignKey(self.books.c.id, ondelete="CASCADE"), nullable=False
            ),
            *([Column("due_at", BigInteger)] if version > "0001" else []),
        )


def package(place: Path, *steps: tuple[str, str]) -> str:
    """The name of a package with these steps in *place*: the text and the code of each."""
    name = f"lending_{next(_numbers)}"
    folder = place / name
    folder.mkdir()
    (folder / "__init__.py").touch()
    for number, (more, body) in enumerate(steps, 1):
        text = _STEP.format(number=number, more=more, body=body)
        (folder / f"v{number:04}_step.py").write_text(text)
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))
    return name


ALL = (("", FIRST), ("additive = True", DUE), ("", AUTHOR))


def release(place: Path, number: int, *more: tuple[str, str]) -> LendingRelease:
    """The release that has the first *number* steps of all, and then *more*."""
    steps = (*ALL[:number], *more)
    return LendingRelease(f"{len(steps):04}", package(place, *steps))
