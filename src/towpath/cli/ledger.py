"""`towpath ledger`: reconciles Redis and the database; `towpath migrate`: updates the schema."""

from __future__ import annotations

import typer

from towpath.console import exits
from towpath.console.verb import DatabaseOption, Session, noun, open_ledger, verb
from towpath.errors import TowpathError

app = typer.Typer(help="Jobs whose record is the database: reconcile.")

COLUMNS = ("QUEUE", ">OPEN", ">QUEUED", ">ENDED")


@noun(app, examples="towpath ledger reconcile")
def ledger(session: Session) -> None:
    """Look after jobs whose record is the database.

    Workers and servers do so by themselves, within a minute. After a restore of the database or
    of Redis, `reconcile` does it at once.
    """
    session.out.note("Choose a command: towpath ledger --help")
    raise typer.Exit(exits.USAGE)


@verb(
    app,
    "reconcile",
    examples="""
        towpath ledger reconcile
        towpath ledger reconcile --database sqlite:///towpath.db --json
    """,
)
async def reconcile(session: Session, *, database: DatabaseOption = None) -> None:
    """Compare all open records with Redis, and repair differences.

    A record that Redis lacks is queued there; a record that has ended there ends in the database.
    OPEN counts the compared records, QUEUED and ENDED the repaired ones. Safe to run at any time.
    """
    from towpath.ledger.records.relay import Relay  # noqa: PLC0415 -- slow to import, and an extra
    from towpath.telemetry.logs import Log  # noqa: PLC0415 -- the same

    async with open_ledger(session, database) as records, session.engine() as engine:
        found = await Relay(records, engine, log=Log()).reconcile()
    rows = [
        {"queue": queue, "open": outcome.open, "queued": outcome.queued, "ended": outcome.ended}
        for queue, outcome in sorted(found.items())
        if not isinstance(outcome, TowpathError)
    ]
    session.out.answers(
        COLUMNS, rows, lambda row: list(row.values()), dict, none="no records are open"
    )
    for outcome in found.values():
        if isinstance(outcome, TowpathError):  # the other queues were reconciled
            raise outcome


EXAMPLES = """
    towpath migrate
    towpath migrate --database postgresql://towpath@db.example/towpath
"""


async def migrate(session: Session, *, database: DatabaseOption = None) -> None:
    """Migrate the database: the ledger's tables, then those of each application.

    Runs all missing steps or none. It is safe to repeat, and to run from several places at once.
    Make a backup first: migrations can't be undone.
    """
    from towpath.apps.application import applications, tables_of  # noqa: PLC0415 -- a help text needs none
    from towpath.cli.running import import_from_here  # noqa: PLC0415 -- the same

    import_from_here()
    found = applications(session.settings.applications)
    async with open_ledger(session, database, lambda: tables_of(found)) as ledger:
        for line, before, after in await ledger.migrate():
            fields = {"database": ledger.shown, "line": line, "before": before, "after": after}
            was = "no schema" if before is None else f"schema {before}"
            now = f"migrated: {was}, now {after}"
            if before == after:
                now = f"is up to date: schema {after}"
            session.out.answer(fields, f"{ledger.shown}  {line} {now}")


def register(towpath: typer.Typer) -> None:
    towpath.add_typer(app, name="ledger")
    verb(towpath, "migrate", examples=EXAMPLES)(migrate)
