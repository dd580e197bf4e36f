"""The page about the ledger's tables, read off their definitions."""

from sqlalchemy import Column, Table

from towpath.apps.application import applications, tables_of
from towpath.ledger.database.schema import LEDGER
from towpath.ledger.database.tables import Tables

LINES = (LEDGER, *tables_of(applications()))

PAGE = """# The database

Towpath keeps these tables in SQLite or PostgreSQL. `towpath migrate` creates and updates them,
first those of the ledger, then those of each application; each of these has its own version. All
names begin with `towpath_`, so the tables can share a database with yours. Times are milliseconds
since 1970 in UTC. You may read the tables; only Towpath may write to them.
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
        f"| `{column.name}` | {str(column.type).lower()} | {_rule(column)} | {_told(column)} |\n"
        for column in table.columns
    )


def _rule(column: Column[object]) -> str:
    if column.primary_key:
        return "key"
    return "unique" if column.unique else "may be null" if column.nullable else ""


def _told(column: Column[object]) -> str:
    return (column.doc or "").replace("|", "\\|")
