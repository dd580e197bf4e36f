"""The page about the ledger's tables, read off their definitions."""

from sqlalchemy import Column, Table

from towpath.ledger.database.schema import SCHEMA, metadata, schema_version

PAGE = """# The database

What the ledger keeps, in SQLite or PostgreSQL, at schema {schema}. `towpath migrate` makes the
tables and brings them up to date. Their names begin with `towpath_`, so that they can live beside
yours. Times are milliseconds since 1970 in UTC. Read them as you like; what writes is Towpath.
"""

TABLE = """
## `{name}`

{about}

| column | type | | meaning |
|---|---|---|---|
"""


def database_page() -> str:
    """One section per table, one row per column."""
    tables = (schema_version, *metadata.tables.values())
    return PAGE.format(schema=SCHEMA) + "".join(map(_section, tables))


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
