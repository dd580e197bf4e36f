"""The ledger for a verb: where it is, and opening it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from towpath.console.verb import Session
from towpath.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from towpath.ledger.database.tables import Tables
    from towpath.ledger.ledger import Ledger

DatabaseOption = Annotated[
    str | None,
    typer.Option("--database", metavar="URL", help="The database.  [setting: database]"),
]


def open_ledger(
    session: Session, database: str | None, tables: Callable[[], Iterable[Tables]] = tuple
) -> Ledger:
    """A ledger to enter: the one named, that of the settings, or that of `towpath up`.

    *tables* loads those of applications that have to fit, too. Raises InvalidOption if there is no
    ledger, LedgerNotInstalled if it can't be had.
    """
    from towpath.settings import load  # noqa: PLC0415 -- slow to import

    said = {} if database is None else {"database": database}
    settings = load(session.flags() | said, registry=session.registry)
    kept = file_in(settings.data)
    if settings.database is not None:
        url = settings.database
    elif kept.exists():
        url = f"sqlite:///{kept}"
    else:
        rule = (
            f"no {settings.data} is here: run it beside that of `towpath up`, say"
            f" --database sqlite:///path/to/{settings.data.name}/{kept.name}, or set DATABASE_URL"
        )
        raise InvalidOption("database", "", rule=rule)
    try:
        from towpath.ledger.ledger import Ledger  # noqa: PLC0415 -- slow to import, and an extra
    except ModuleNotFoundError as error:
        from towpath.ledger.errors import LedgerNotInstalled  # noqa: PLC0415 -- rarely needed

        raise LedgerNotInstalled(error.name or "a library") from error
    # What ends here is told as well: whoever runs a courier sends it.
    sinks = settings.value("events.sinks")
    return Ledger(url, limit=settings.timeout, sinks=sinks, tables=tables())


def file_in(data: Path) -> Path:
    """Where `towpath up` keeps its database."""
    return data.expanduser().absolute() / "towpath.db"
