"""Statements for many values or rows whose text is the same for any number of them.

The text of `IN (?, ?, …)` and `VALUES (…), (…), …` depends on the number of values, so SQLAlchemy
compiles it and PostgreSQL parses it again for each number. Here all values of a column are one
parameter: an array, or JSON on SQLite, which has no arrays.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self, cast

import msgspec
from sqlalchemy import (
    ARRAY,
    Boolean,
    Column,
    String,
    Table,
    TableValuedAlias,
    Text,
    TextClause,
    bindparam,
    func,
    text,
)
from sqlalchemy.engine import Connection, CursorResult, Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

# ── values ───────────────────────────────────────────────────────────────────────────────


class Texts(TypeDecorator[list[str]]):
    """A list of texts as one parameter."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(ARRAY(Text()) if _has_arrays(dialect) else Text())

    def process_bind_param(self, value: list[str] | None, dialect: Dialect) -> Any:
        return value if _has_arrays(dialect) else msgspec.json.encode(value).decode()


class named(FunctionElement[bool]):  # noqa: N801 -- reads as what it is in SQL
    """`named(column)`: selects rows of the queue `in_queue` whose *column* is one of `names`."""

    type = Boolean()
    inherit_cache = True

    def __init__(self, column: Column[str]) -> None:
        names = bindparam("names", type_=Texts())
        super().__init__(column, bindparam("in_queue", type_=Text()), names)

    def self_group(self, against: Any = None) -> Self:
        """Return the expression as it is: SQLAlchemy would write `(…) = 1` for SQLite, which has no
        booleans, and no index can be used for that.
        """
        return self


def _compile_parts(element: named, compiler: SQLCompiler, how: dict[str, Any]) -> tuple[str, ...]:
    column, *parameters = element.clauses
    typed = cast("Column[str]", column)
    return (
        typed.table.name,
        typed.name,
        *(compiler.process(parameter, **how) for parameter in parameters),
    )


@compiles(named, "postgresql")
def _postgres_named(element: named, compiler: SQLCompiler, **how: Any) -> str:
    """Force one index lookup per name.

    With `column = ANY (…)` or a join, a table without statistics makes PostgreSQL assume few rows
    per queue, and read all rows of the queue: 14 ms instead of 0.5 ms for 20,000 rows.
    """
    table, column, queue, names = _compile_parts(element, compiler, how)
    # These texts contain only our own names and placeholders of parameters, no outside values.
    one = f"SELECT seq FROM {table} WHERE queue = {queue} AND {column} = name OFFSET 0"  # noqa: S608 -- see above
    each = f"SELECT it.seq FROM unnest({names}) AS name, LATERAL ({one}) AS it"  # noqa: S608 -- see above
    return f"{table}.seq = ANY (ARRAY({each}))"


@compiles(named, "sqlite")
def _sqlite_named(element: named, compiler: SQLCompiler, **how: Any) -> str:
    table, column, queue, names = _compile_parts(element, compiler, how)
    listed = f"SELECT value FROM json_each({names})"  # noqa: S608 -- the placeholder of a parameter
    return f"({table}.queue = {queue} AND {table}.{column} IN ({listed}))"


_EACH = """
    WITH RECURSIVE each (name) AS (
        SELECT (SELECT {name} FROM {table} WHERE {which} {name} > '' ORDER BY {name} LIMIT 1)
        UNION ALL
        SELECT (
            SELECT {name} FROM {table} WHERE {which} {name} > each.name ORDER BY {name} LIMIT 1
        )
        FROM each WHERE each.name IS NOT NULL
    )
    SELECT name FROM each WHERE name IS NOT NULL
"""


def each_name(column: Column[str], which: str = "", also: str = "") -> TextClause:
    """Return a query for the distinct values of *column*, by one index lookup per value.

    *which* (`… AND`) selects rows; *also* (`AND …`) is a condition on the value, `each.name`.
    `SELECT DISTINCT` would read all rows.
    """
    return text(_EACH.format(name=column.name, table=column.table.name, which=which) + also)


# ── rows ─────────────────────────────────────────────────────────────────────────────────


def has_arrays(connection: Connection) -> bool:
    """Whether rows can be passed as arrays, one per column; only on PostgreSQL."""
    return _has_arrays(connection.dialect)


def _has_arrays(dialect: Dialect) -> bool:
    return dialect.name == "postgresql"


def given(table: Table, *names: str) -> TableValuedAlias:
    """Return a table expression with these columns of *table*, made from `arrays_of` parameters."""
    arrays = (bindparam(f"all_{name}", type_=_array(table.c[name].type)) for name in names)
    return func.unnest(*arrays).table_valued(*names).render_derived("given")


def _array(kind: TypeEngine[Any]) -> ARRAY[Any]:
    # Not String(64): a cast to that would truncate longer texts.
    return ARRAY(Text() if isinstance(kind, String) else kind)


def arrays_of(rows: Iterable[dict[str, Any]], *names: str) -> dict[str, list[Any]]:
    """Return the parameters for `given`."""
    kept = list(rows)
    return {f"all_{name}": [row[name] for row in kept] for name in names}


def rows_of(result: CursorResult[*tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Return all rows as dicts, which are faster to read than SQLAlchemy's rows."""
    names = tuple(result.keys())
    return [dict(zip(names, row, strict=True)) for row in result]
