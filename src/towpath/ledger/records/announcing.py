"""What the world is told of records: each one's end, in the transaction that ended it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from sqlalchemy.engine import Connection, RowMapping

from towpath.ledger.outbox.event import NewEvent
from towpath.ledger.records.record import OPEN

Row = RowMapping | dict[str, Any]
Tell = Callable[[Sequence[Row]], Callable[[Connection], None]]
"""Takes rows as they will be, those that end among them; what it answers writes the news."""
_TOLD = ("queue", "id", "state", "subject", "attempts")


def nobody(_: Sequence[Row]) -> Callable[[Connection], None]:
    """For ledgers without sinks."""
    return nothing


def nothing(_: Connection) -> None:
    """There is no news."""


def ends(rows: Sequence[Row]) -> list[NewEvent]:
    """An event for each of *rows* that has ended: `towpath.job.completed` and the like.

    Neither payload nor result is in it: whoever may see them asks for them.
    """
    return [_event(row) for row in rows if row["state"] not in OPEN]


def _event(row: Row) -> NewEvent:
    data = {name: row[name] for name in _TOLD} | {"reason": row["last_error"]}
    return NewEvent(
        type=f"towpath.job.{row['state']}",
        key=f"{row['queue']}/{row['id']}",
        data=msgspec.json.encode(data),
        # A record ends once per name it had: told again, it is the same event.
        id=f"{row['queue']}/{row['job']}/{row['state']}",
        at=row["finished_at"],
    )
