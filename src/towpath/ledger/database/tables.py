"""Tables with a version line of their own: those of the ledger, and those of each application.

A line is a sequence of numbered steps. For each line, the database stores the last step that ran
and `oldest`, the oldest version of the code that works with the tables. A step with `additive =
True` leaves `oldest` unchanged, so that releases from before and after the step can share the
database; any other step shuts out earlier releases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sqlalchemy import Column, MetaData, PrimaryKeyConstraint, String, Table, select
from sqlalchemy import inspect as inspected
from sqlalchemy.engine import Connection

from towpath.errors import InvalidOption
from towpath.ledger.errors import LedgerAhead, LedgerOutdated

_CONVENTION = {
    "pk": "pk_%(table_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
}
_NAME, _VERSION = re.compile(r"[a-z][a-z0-9_-]{0,23}"), re.compile(r"[0-9]{4}")


class Tables:
    """The tables of an application: `TABLES = Tables("uploads", version="0001", steps=__name__)`.

    The tables belong to its `metadata`, and their names begin with `towpath_uploads_`. *version* is
    the newest step; *steps* is the package with the steps: `v0001_documents.py` and so on, written
    with Alembic's `op`. Raises InvalidOption.
    """

    def __init__(self, name: str, *, version: str, steps: str, prefix: str | None = None) -> None:
        if not _NAME.fullmatch(name):
            raise InvalidOption("tables", name, rule="must be the name of an application")
        if not _VERSION.fullmatch(version):
            raise InvalidOption("tables", version, rule=f"{name}: a version has four digits")
        self.name, self.version, self.steps = name, version, steps
        self.prefix = prefix or f"towpath_{name.replace('-', '_')}_"
        self.metadata = MetaData(naming_convention=_CONVENTION)
        self.versions = Table(
            f"{self.prefix}schema",
            MetaData(),  # separate from the other tables, because no step creates this one
            Column("version_num", String(32), doc="The version of the tables."),
            Column("oldest", String(32), doc="The oldest code version that works with them."),
            PrimaryKeyConstraint("version_num", name=f"{self.prefix}schema_pkc"),
            info={"about": f"The version of the tables of {name}; one row."},
        )

    # ── what the database has ────────────────────────────────────────────────────────────

    def found(self, connection: Connection) -> str | None:
        """Return the version of the tables in the database; None if there are none."""
        if not inspected(connection).has_table(self.versions.name):
            return None
        return connection.scalar(select(self.versions.c.version_num))

    def require(self, connection: Connection) -> None:
        """Check that this code works with the tables in the database. Raises LedgerOutdated."""
        found = self.found(connection)
        if found is None or found < self.version:
            raise LedgerOutdated(found, self.version, of=self.name)
        self.refuse_newer(connection, found)

    def refuse_newer(self, connection: Connection, found: str) -> None:
        """Raise LedgerAhead if *found* is newer than this code by a step that is not additive."""
        if found > self.version and self._oldest(connection, found) > self.version:
            raise LedgerAhead(found, self.version, of=self.name)

    def _oldest(self, connection: Connection, found: str) -> str:
        columns = inspected(connection).get_columns(self.versions.name)
        if all(column["name"] != "oldest" for column in columns):
            return found
        return connection.scalar(select(self.versions.c.oldest)) or found


def lines(own: Tables, others: Iterable[Tables]) -> tuple[Tables, ...]:
    """Return *own* and *others* as one tuple. Raises InvalidOption unless each table has a name of
    its own, with the prefix of its line.
    """
    all_of_them, owners = (own, *others), dict[str, str]()
    for line in all_of_them:
        for table in (line.versions.name, *line.metadata.tables):
            if not table.startswith(line.prefix):
                rule = f"has the table {table}, whose name must begin with {line.prefix}"
                raise InvalidOption("tables", line.name, rule=rule)
            if table in owners:
                rule = f"claims the table {table}, which belongs to {owners[table]}"
                raise InvalidOption("tables", line.name, rule=rule)
            owners[table] = line.name
    return all_of_them
