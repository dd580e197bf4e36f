"""Migrates the schema in one transaction; safe if several processes start it at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, NamedTuple, cast

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Column, MetaData, String, delete, insert
from sqlalchemy import inspect as inspected
from sqlalchemy.engine import Connection
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import SQLAlchemyError

from towpath.ledger.database.schema import LEDGER
from towpath.ledger.database.store import Database, meaning
from towpath.ledger.database.tables import Tables
from towpath.ledger.errors import LedgerUnreachable, MigrationFailed

_STEP = re.compile("v[0-9]{4}_")


class Migration(NamedTuple):
    """The version of one line before and after a migration; before is None if it had no tables."""

    line: str
    """`ledger`, or the application's name."""
    before: str | None
    after: str


async def migrate(store: Database, lines: Sequence[Tables]) -> list[Migration]:
    """Run the missing steps of *lines*, one line after the other: all of them, or none.

    A second process waits, and then finds nothing to do. Raises LedgerAhead, MigrationFailed.
    """
    return await store.alone(lambda connection: [_upgrade(connection, line) for line in lines])


def _upgrade(connection: Connection, line: Tables) -> Migration:
    before = line.found(connection)
    if before is not None and before > line.version:
        line.refuse_newer(connection, before)
        return Migration(line.name, before, before)
    steps = steps_of(line)
    if before is not None and before not in steps:
        raise MigrationFailed(
            line.name, f"the database has version {before}, which no migration produced"
        )
    missing = [step for step in steps.values() if before is None or step.revision > before]
    with Operations.context(MigrationContext.configure(connection)) as op:
        if _has_versions(op, connection, line) and not missing:
            return Migration(line.name, before, line.version)
        columns = _columns(connection)
        for step in missing:
            columns = _run(connection, line, step, columns)
    oldest = max(
        (revision for revision, step in steps.items() if not _is_additive(step)), default="0001"
    )
    connection.execute(delete(line.versions))
    connection.execute(insert(line.versions).values(version_num=line.version, oldest=oldest))
    return Migration(line.name, before, line.version)


def steps_of(line: Tables) -> dict[str, ModuleType]:
    """Load the steps of *line*, in order, by their numbers. Raises MigrationFailed."""
    try:
        package = import_module(line.steps)
        names = sorted(
            module.name for module in iter_modules(package.__path__) if _STEP.match(module.name)
        )
        modules = [import_module(f"{line.steps}.{name}") for name in names]
        steps = {str(module.revision): module for module in modules}
    except Exception as error:
        raise MigrationFailed(
            line.name, f"its steps can't be loaded: {_describe_error(error)}"
        ) from error
    wanted = [f"{number:04}" for number in range(1, int(line.version) + 1)]
    if list(steps) != wanted or [name[1:5] for name in names] != wanted:
        reason = f"its tables are at {line.version}, its steps are {', '.join(names)}"
        raise MigrationFailed(line.name, reason)
    return steps


def _run(connection: Connection, line: Tables, step: ModuleType, before: _Columns) -> _Columns:
    """Run a step and check that it changed only what it may. Returns the columns after it."""
    try:
        step.upgrade()
    except Exception as error:
        trouble = meaning(error) if isinstance(error, SQLAlchemyError | OSError) else None
        if isinstance(trouble, LedgerUnreachable):
            raise trouble from error
        raise MigrationFailed(
            line.name, f"step {step.revision}: {_describe_error(error)}"
        ) from error
    after = _columns(connection)
    wrong = _describe_foreign_changes(line, before, after)
    if not wrong and _is_additive(step):
        wrong = _not_additive(before, after)
    if wrong:
        raise MigrationFailed(line.name, f"step {step.revision} {wrong}")
    return after


def _describe_error(error: Exception) -> str:
    if isinstance(error, SQLAlchemyError):
        return str(meaning(error))
    return f"{type(error).__name__}: {error}"


def _is_additive(step: ModuleType) -> bool:
    return getattr(step, "additive", False)


def _has_versions(op: Operations, connection: Connection, line: Tables) -> bool:
    """Create or complete the table of versions. Returns whether it already was complete."""
    name = line.versions.name
    if not inspected(connection).has_table(name):
        line.versions.create(connection)
        return False
    if any(column["name"] == "oldest" for column in inspected(connection).get_columns(name)):
        return True
    op.add_column(name, Column("oldest", String(32)))  # the table is from before this column
    return False


# ── what a step may do ───────────────────────────────────────────────────────────────────

_Columns = dict[str, dict[str, bool]]
"""By table and column: whether an insert must give a value."""


def _columns(connection: Connection) -> _Columns:
    """Read the columns of all tables of Towpath. The user's own tables may change at any time."""
    found = inspected(connection).get_multi_columns()
    return {
        table: {column["name"]: _is_needed(column) for column in columns}
        for (_, table), columns in found.items()
        if table.startswith(LEDGER.prefix)
    }


def _is_needed(column: ReflectedColumn) -> bool:
    return not column["nullable"] and column.get("default") is None


def _describe_foreign_changes(line: Tables, before: _Columns, after: _Columns) -> str:
    """Describe the tables outside *line* that a step created, changed or removed; empty if none."""
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    strange = sorted(name for name in changed if not name.startswith(line.prefix))
    return f"changes {', '.join(strange)}, which does not belong to {line.name}" if strange else ""


def _not_additive(before: _Columns, after: _Columns) -> str:
    """Describe a change that breaks code from before the step; empty if there is none."""
    for table, columns in before.items():
        here = after.get(table, {})
        for name in sorted({*columns, *here}):
            if name not in here or (here[name] and not columns.get(name)):
                what = "needs a value in" if name in here else "removes"
                return f"is marked as additive, but {what} {table}.{name}"
    return ""


# ── differences between steps and tables ─────────────────────────────────────────────────


def drift(connection: Connection, lines: Sequence[Tables]) -> list[str]:
    """List the differences between the database and the tables in *lines*; for tests."""
    declared = MetaData(naming_convention=LEDGER.metadata.naming_convention)
    for line in lines:
        for table in (line.versions, *line.metadata.sorted_tables):
            table.to_metadata(declared)
    context = MigrationContext.configure(connection, opts={"compare_server_default": True})
    found: list[str] = []
    for one in cast("list[Any]", compare_metadata(context, declared)):
        several = cast("list[tuple[Any, ...]]", one if isinstance(one, list) else [one])
        found += [" ".join(str(part) for part in each if part is not None) for each in several]
    return found
