"""The tables, and which version of them this code works with.

Their names begin with `towpath_`: they may live in a database that also has the user's own. Times
are milliseconds since 1970 in UTC, as everywhere in Towpath. `docs/reference/database.md` is made
from this file.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, LargeBinary, MetaData, String, Table, Text, select
from sqlalchemy import inspect as inspected
from sqlalchemy.engine import Connection

from towpath.ledger.errors import LedgerAhead, LedgerOutdated

SCHEMA = "0001"
"""The newest migration: its number, growing, with leading zeros."""

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    }
)

schema_version = Table(
    "towpath_schema",
    MetaData(),  # Alembic's own: it makes the table and no migration does
    Column("version_num", String(32), primary_key=True, doc="The newest migration that has run."),
    info={"about": "Which schema this is. One row."},
)

api_keys = Table(
    "towpath_api_keys",
    metadata,
    Column(
        "id", String(16), primary_key=True, doc="Public: part of the secret, for telling apart."
    ),
    Column("name", String(100), nullable=False, doc="Whose it is; two keys may share one."),
    Column("digest", LargeBinary(32), nullable=False, unique=True, doc="SHA-256 of the secret."),
    Column("scopes", String(100), nullable=False, doc="submit, work, read, admin; with blanks."),
    Column("queues", Text, nullable=False, doc="Patterns of queue names; with blanks."),
    Column("created_at", BigInteger, nullable=False, doc="When it was made."),
    Column("expires_at", BigInteger, doc="From when on it no longer counts; none = never."),
    Column("revoked_at", BigInteger, doc="Since when it no longer counts; none = it does."),
    Column("last_used_at", BigInteger, doc="When it was last used, to about a minute."),
    info={"about": "API keys. Secrets are not here: only their digests are."},
)


def found_version(connection: Connection) -> str | None:
    """The version that the database has; None for none."""
    if not inspected(connection).has_table(schema_version.name):
        return None
    return connection.scalar(select(schema_version.c.version_num))


def require(found: str | None) -> None:
    """Return if this code works with that version. Raises LedgerOutdated or LedgerAhead."""
    if found is None or found < SCHEMA:
        raise LedgerOutdated(found, SCHEMA)
    refuse_newer(found)


def refuse_newer(found: str | None) -> None:
    """Raises LedgerAhead for a version that this code has never heard of."""
    if found is not None and found > SCHEMA:
        raise LedgerAhead(found, SCHEMA)
