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
    """Bring the database up to date.

    All steps that are missing, or none. It may be run again, and by several at once. Make a
    backup before: there is no way down.
    """
    async with open_ledger(session, database) as ledger:
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
