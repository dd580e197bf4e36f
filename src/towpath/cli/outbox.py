"""`towpath outbox`: list, refused, resend, delete. Needs only the database, not Redis."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from towpath.console.arguments import After, Limit, Yes
from towpath.console.exits import EventNotFound, SinkNotFound
from towpath.console.verb import DatabaseOption, Session, each, noun, open_ledger, verb
from towpath.errors import InvalidOption

if TYPE_CHECKING:
    from towpath.ledger.outbox.outbox import Outbox, RefusedEvent

app = typer.Typer(help="The outbox, events on their way to sinks: list, refused, resend, delete.")

SINKS = ("SINK", ">PENDING", ">REFUSED", ">LAG")
REFUSED = ("EVENT", "TYPE", "SUBJECT", "AT", "REFUSED", "REASON")
_LARGEST_PAGE = 200

SinkArgument = Annotated[str, typer.Argument(metavar="SINK", help="The sink, as `list` shows it.")]
IdsArgument = Annotated[list[str], typer.Argument(metavar="ID…", help="Ids of refused events.")]
SomeIds = Annotated[
    list[str] | None, typer.Argument(metavar="[ID…]", help="Ids of refused events; or --all.")
]
AllRefused = Annotated[bool, typer.Option("--all", help="All events that the sink refused.")]


@noun(
    app,
    examples="""
        towpath outbox
        towpath outbox refused webhook
        towpath outbox resend webhook --all
    """,
)
async def outbox(session: Session, *, database: DatabaseOption = None) -> None:
    """Count the events that wait for each sink.

    Those that are pending, those that it refused for good, and for how long the oldest that is
    pending has waited. With a verb after it: what was refused.
    """
    await list_(session, database=database)


@verb(app, "list", examples="towpath outbox list --json")
async def list_(session: Session, *, database: DatabaseOption = None) -> None:
    """Count the events that wait for each sink.

    A sink that has all its events is at 0. LAG is how long the oldest pending one has waited.
    """
    from towpath.clock import instant, wall_ms  # noqa: PLC0415 -- a help text needs none

    async with open_ledger(session, database) as ledger:
        counts, sinks = await ledger.outbox.counts(), ledger.outbox.sinks
    now, out = instant(wall_ms()), session.out
    if out.as_json:
        for sink, tally in counts.items():
            fields = {"sink": sink, "pending": tally.pending, "refused": tally.refused}
            out.object(fields | {"lag": tally.lag(now), "oldest_at": tally.oldest_at})
        return
    if not counts:
        out.note("no sinks: outbox.sinks is none, and nothing waits")
        return
    rows = [(name, tally.pending, tally.refused, tally.lag(now)) for name, tally in counts.items()]
    out.table(SINKS, rows)
    for sink, tally in counts.items():
        if tally.refused:
            out.note(f"{tally.refused} refused: towpath outbox refused {sink}")
        if tally.pending and sink not in sinks:
            out.note(f"{sink} is not in outbox.sinks here: check that a server sends to it")


@verb(
    app,
    "refused",
    examples="""
        towpath outbox refused webhook
        towpath outbox refused kafka --limit 200 --json
    """,
)
async def refused(
    session: Session,
    *,
    sink: SinkArgument,
    limit: Limit = 50,
    after: After = None,
    database: DatabaseOption = None,
) -> None:
    """List what a sink refused for good, with the reasons.

    Oldest first, page by page.
    """
    start, size = _place(after), min(limit, _LARGEST_PAGE)
    async with _outbox_of(session, database, sink) as outbox:
        # Read one more than is shown, to know whether there is another page.
        found = await outbox.refused(sink, after=start, size=size + 1)
    page, out = found[:size], session.out
    none = "nothing was refused" if after is None else "no more"
    out.answers(
        REFUSED, page, lambda refusal: list(described(refusal).values()), described, none=none
    )
    if len(found) > size:
        cursor = str(page[-1].event.seq)
        out.more(cursor, f"towpath outbox refused {sink} --limit {limit}")


@verb(
    app,
    "resend",
    examples="""
        towpath outbox resend webhook reviews/github-72d3/completed
        towpath outbox resend webhook --all
    """,
)
async def resend(
    session: Session,
    *,
    sink: SinkArgument,
    ids: SomeIds = None,
    all: AllRefused = False,
    database: DatabaseOption = None,
) -> None:
    """Send refused events again.

    Fix the receiver first. The events keep their order; a running server sends them.
    """
    if all == bool(ids):
        raise InvalidOption("ids", ids or "", rule="name at least one event, or pass --all")
    async with _outbox_of(session, database, sink) as outbox:
        if not all:
            await _each(session, sink, ids or [], "resent", lambda id: outbox.resend(sink, [id]))
            return
        number = await outbox.resend_all(sink)
    session.out.answer({"sink": sink, "resent": number}, f"{sink}  {number} resent")


@verb(app, "delete", examples="towpath outbox delete webhook reviews/github-72d3/completed --yes")
async def delete(
    session: Session,
    *,
    sink: SinkArgument,
    ids: IdsArgument,
    yes: Yes = False,
    database: DatabaseOption = None,
) -> None:
    """Delete refused events for good.

    The sink never gets them. Nothing else changes.
    """
    async with _outbox_of(session, database, sink) as outbox:
        session.confirm(f"{len(ids)} refused by {sink} would be deleted.", yes=yes)
        await _each(session, sink, ids, "deleted", lambda id: outbox.delete(sink, [id]))


# ── helpers ──────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _outbox_of(session: Session, database: str | None, sink: str) -> AsyncGenerator[Outbox]:
    """The outbox. Raises SinkNotFound unless the settings or stored events have *sink*."""
    async with open_ledger(session, database) as ledger:
        known = await ledger.outbox.counts()
        if sink not in known:
            raise SinkNotFound(sink, known)
        yield ledger.outbox


async def _each(
    session: Session, sink: str, ids: list[str], done: str, do: Callable[[str], Awaitable[int]]
) -> None:
    """Call *do* for each id, and print it; an id that the sink has not refused is an error."""

    async def change_one(id: str) -> None:
        if not await do(id):
            raise EventNotFound(sink, id)
        session.out.answer({"sink": sink, "id": id, done: True}, f"{id}  {done}")

    await each(session, ids, change_one)


def _place(after: str | None) -> int:
    if after is None:
        return 0
    if not (after.isascii() and after.isdecimal() and len(after) <= 18):
        raise InvalidOption(
            "after", after, rule="must be the `after` value returned with the previous page"
        )
    return int(after)


def described(refusal: RefusedEvent) -> dict[str, Any]:
    """A refused event as JSON, without its data, in the order of the table."""
    from towpath.clock import instant  # noqa: PLC0415 -- a help text needs none

    event = refusal.event
    return {
        "id": event.id,
        "type": event.type,
        "subject": event.key,
        "at": instant(event.at),
        "refused_at": refusal.refused_at,
        "reason": refusal.reason,
    }


def register(towpath: typer.Typer) -> None:
    towpath.add_typer(app, name="outbox")
