"""`towpath recurring`: recurring work, when it was last fired, and forgetting it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from towpath.console.arguments import QueueArgument, existing_queue
from towpath.console.verb import Session, noun, verb

app = typer.Typer(help="Recurring work: list it, forget it.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The recurring work.")]


_COLUMNS = ("queue", "recurring", "schedule", "next", "last")


@noun(app, examples="towpath recurring\ntowpath recurring forget reports nightly")
async def recurring(session: Session) -> None:
    """Show all recurring work: its queue, its schedule, when it comes next and came last.

    The schedules themselves are in the apps; a worker of the app fires them. Where NEXT is past,
    none has done so yet.
    """
    from towpath.worker.schedule import described  # noqa: PLC0415 -- slow to import

    rows: list[tuple[str, str, str, datetime | None, datetime | None]] = []
    async with session.engine() as engine:
        for queue in sorted(await engine.queues()):
            for name, last in sorted((await engine.recurring(queue)).last.items()):
                when = described(last.about)
                coming = next(when.after(last.at), None) if when else None
                rows.append((queue, name, last.about, coming, last.at if last.fired else None))
    if session.out.as_json:
        for row in rows:
            session.out.object(dict(zip(_COLUMNS, row, strict=True)))
        return
    session.out.table([column.upper() for column in _COLUMNS], rows)
    if not rows:
        session.out.note("none yet: @app.recurring declares some, a worker of the app fires it")


@verb(app, "forget", examples="towpath recurring forget reports nightly")
async def forget(session: Session, *, queue: QueueArgument, name: NameArgument) -> None:
    """Forget recurring work that no app declares any more.

    A worker that still declares it begins anew, from that moment.
    """
    async with session.engine() as engine:
        await engine.forget(await existing_queue(engine, queue), name)
    told = {"queue": queue, "recurring": name, "forgotten": True}
    session.out.answer(told, f"{queue}/{name}  forgotten")
