"""Several values or rows in one statement that is the same text however many there are.

`IN (?, ?, …)` and `VALUES (…), (…), …` are another text for each number: SQLAlchemy writes it each
time, and PostgreSQL reads it each time. Here they are one parameter per column: an array, or JSON
where there are none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import msgspec
from sqlalchemy import (
    ARRAY,
    Boolean,
    ColumnElement,
    String,
    Table,
    TableValuedAlias,
    Text,
    bindparam,
    func,
)
from sqlalchemy.engine import Connection, CursorResult, Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

# ── values ───────────────────────────────────────────────────────────────────────────────


class Texts(TypeDecorator[list[str]]):
    """Texts as one parameter."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(ARRAY(Text()) if _has_arrays(dialect) else Text())

    def process_bind_param(self, value: list[str] | None, dialect: Dialect) -> Any:
        return value if _has_arrays(dialect) else msgspec.json.encode(value).decode()


class among(FunctionElement[bool]):  # noqa: N801 -- reads as what it is in SQL
    """`among(column, parameter)`: whether the column's value is one of the texts.

    Not a join with them: that reads all rows of a queue while no planner has looked at the table.
    """

    type = Boolean()
    inherit_cache = True

    def __init__(self, column: ColumnElement[str], parameter: str) -> None:
        super().__init__(column, bindparam(parameter, type_=Texts()))

    def self_group(self, against: Any = None) -> Self:
        """As it is: SQLite, which has no booleans, would get `(…) = 1`. No index serves that."""
        return self


@compiles(among, "postgresql")
def _postgres_among(element: among, compiler: SQLCompiler, **how: Any) -> str:
    column, texts = element.clauses
    return f"{compiler.process(column, **how)} = ANY ({compiler.process(texts, **how)})"


@compiles(among, "sqlite")
def _sqlite_among(element: among, compiler: SQLCompiler, **how: Any) -> str:
    column, texts = element.clauses
    listed = f"json_each({compiler.process(texts, **how)})"
    return f"{compiler.process(column, **how)} IN (SELECT value FROM {listed})"  # noqa: S608 -- SQLAlchemy wrote both


# ── rows ─────────────────────────────────────────────────────────────────────────────────


def has_arrays(connection: Connection) -> bool:
    """Whether rows can be given as arrays, one per column."""
    return _has_arrays(connection.dialect)


def _has_arrays(dialect: Dialect) -> bool:
    return dialect.name == "postgresql"


def given(table: Table, *names: str) -> TableValuedAlias:
    """Rows with these columns of *table*, out of the arrays that `arrays_of` makes."""
    arrays = (bindparam(f"all_{name}", type_=_array(table.c[name].type)) for name in names)
    return func.unnest(*arrays).table_valued(*names).render_derived("given")


def _array(kind: TypeEngine[Any]) -> ARRAY[Any]:
    # Not of String(64): a cast to that would cut off what is longer.
    return ARRAY(Text() if isinstance(kind, String) else kind)


def arrays_of(rows: Iterable[dict[str, Any]], *names: str) -> dict[str, list[Any]]:
    """The parameters for `given`."""
    kept = list(rows)
    return {f"all_{name}": [row[name] for row in kept] for name in names}


def rows_of(result: CursorResult[Any]) -> list[dict[str, Any]]:
    """All rows as plain dicts: they are quicker to read than SQLAlchemy's own."""
    names = tuple(result.keys())
    return [dict(zip(names, row, strict=True)) for row in result]
