"""`towpath migrate`: bring the database's schema up to date."""

from __future__ import annotations

import typer

from towpath.console.ledgers import DatabaseOption, open_ledger
from towpath.console.verb import Session, verb

EXAMPLES = """
    towpath migrate
    towpath migrate --database postgresql://towpath@db.example/towpath
"""


async def migrate(session: Session, *, database: DatabaseOption = None) -> None:
    """Bring the database up to date: the ledger's tables, then those of each application.

    All steps that are missing, or none. It may be run again, and by several at once. Make a
    backup before: there is no way down.
    """
    from towpath.apps.application import applications, tables_of  # noqa: PLC0415 -- a help text needs none
    from towpath.cli.running import import_from_here  # noqa: PLC0415 -- the same

    import_from_here()
    found = applications(session.settings.applications)
    async with open_ledger(session, database, lambda: tables_of(found)) as ledger:
        for line, before, after in await ledger.migrate():
            if session.out.as_json:
                told = {"database": ledger.shown, "line": line, "before": before, "after": after}
                session.out.object(told)
            elif before == after:
                session.out.line(f"{ledger.shown}  {line} is up to date: schema {after}")
            else:
                was = "no schema" if before is None else f"schema {before}"
                session.out.line(f"{ledger.shown}  {line} migrated: {was}, now {after}")


def register(app: typer.Typer) -> None:
    verb(app, "migrate", examples=EXAMPLES)(migrate)
