"""`towpath ledger`: see that Redis and the database agree."""

from __future__ import annotations

from typing import Any

import typer

from towpath.console.ledgers import DatabaseOption, open_ledger
from towpath.console.verb import Session, noun, verb

app = typer.Typer(help="Jobs whose record is the database: reconcile.")

COLUMNS = ("QUEUE", ">OPEN", ">QUEUED", ">ENDED")


@noun(app, examples="towpath ledger reconcile")
def ledger(session: Session) -> None:
    """Look after jobs whose record is the database.

    Workers and servers do so by themselves, within a minute. After a restore of the database or
    of Redis, `reconcile` does it at once.
    """
    from towpath.console import exits  # noqa: PLC0415 -- a help text needs none

    session.out.note("Say what to do: towpath ledger --help")
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
    """Compare all open records with Redis, and mend what differs.

    What Redis does not have is queued there; what has ended there ends in the database. QUEUED and
    ENDED say how many that were, OPEN how many records were compared. It may be run at any time,
    and again.
    """
    from towpath.errors import TowpathError  # noqa: PLC0415 -- a help text needs none
    from towpath.ledger.records.relay import Relay  # noqa: PLC0415 -- slow to import, and an extra
    from towpath.telemetry.logs import Log  # noqa: PLC0415 -- the same

    async with open_ledger(session, database) as records, session.engine() as engine:
        found = await Relay(records, lambda: engine, log=Log()).reconcile()
    out, rows = session.out, list[tuple[Any, ...]]()
    for queue, it in sorted(found.items()):
        if not isinstance(it, TowpathError):
            rows.append((queue, it.open, it.brought, it.ended))
    if out.as_json:
        for row in rows:
            out.object(dict(zip(("queue", "open", "queued", "ended"), row, strict=True)))
    elif rows:
        out.table(COLUMNS, rows)
    else:
        out.note("no records are open")
    for it in found.values():
        if isinstance(it, TowpathError):  # the others are done
            raise it
