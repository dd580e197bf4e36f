"""Bringing the schema up to date: one transaction, safe when several processes begin at once."""

from __future__ import annotations

from typing import NamedTuple

from alembic import command
from alembic.config import Config
from sqlalchemy.engine import Connection

from towpath.ledger.database.schema import SCHEMA, found_version, refuse_newer
from towpath.ledger.database.store import Store


class Migration(NamedTuple):
    """What a migration found and what it left; None = no schema."""

    before: str | None
    after: str


def configuration() -> Config:
    """Where Alembic finds the steps: inside the package."""
    config = Config()
    config.set_main_option("script_location", "towpath.ledger.database:migrations")
    config.set_main_option("path_separator", "os")
    return config


async def migrate(store: Store) -> Migration:
    """Run the steps that are missing, all or none. Raises LedgerAhead.

    Whoever comes second waits, and finds nothing to do.
    """
    return await store.alone(_upgrade)


def _upgrade(connection: Connection) -> Migration:
    before = found_version(connection)
    refuse_newer(before)
    config = configuration()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    return Migration(before, SCHEMA)
