"""The page about the ledger's tables, read off their definitions."""

from sqlalchemy import Column, Table

from towpath.apps.application import applications, tables_of
from towpath.ledger.database.schema import LEDGER
from towpath.ledger.database.tables import Tables

LINES = (LEDGER, *tables_of(applications()))

PAGE = """# The database

What Towpath keeps in SQLite or PostgreSQL. `towpath migrate` makes the tables and brings them up to
date: those of the ledger, then those of each application, which have versions of their own. Their
names begin with `towpath_`, so that they can live beside yours. Times are milliseconds since 1970
in UTC. Read them as you like; what writes is Towpath.
"""

LINE = """
## {name}, at schema {version}
"""

TABLE = """
### `{name}`

{about}

| column | type | | meaning |
|---|---|---|---|
"""


def database_page() -> str:
    """One part per line, one section per table, one row per column."""
    return PAGE + "".join(map(_line, LINES))


def _line(line: Tables) -> str:
    tables = (line.versions, *line.metadata.tables.values())
    head = LINE.format(name=line.name.capitalize(), version=line.version)
    return head + "".join(map(_section, tables))


def _section(table: Table) -> str:
    head = TABLE.format(name=table.name, about=table.info["about"])
    return head + "".join(
        f"| `{column.name}` | {str(column.type).lower()} | {_rule(column)} | {column.doc} |\n"
        for column in table.columns
    )


def _rule(column: Column[object]) -> str:
    if column.primary_key:
        return "key"
    return "unique" if column.unique else "may be null" if column.nullable else ""
