"""`towpath recurring`: recurring work, when it was last fired, and forgetting it."""

from __future__ import annotations

from typing import Annotated

import typer

from towpath.cli.arguments import QueueArgument, existing_queue
from towpath.cli.verb import Session, noun, verb

app = typer.Typer(help="Recurring work: list it, forget it.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The recurring work.")]


@noun(app, examples="towpath recurring\ntowpath recurring forget reports nightly")
async def recurring(session: Session) -> None:
    """Show all recurring work: its queue, its schedule, and what it was last fired for.

    The schedules themselves are in the apps; a worker of the app fires them.
    """
    async with session.engine() as engine:
        found = [
            (queue, name, last)
            for queue in sorted(await engine.queues())
            for name, last in sorted((await engine.recurring(queue)).last.items())
        ]
    if session.out.as_json:
        for queue, name, last in found:
            told = {"queue": queue, "recurring": name, "schedule": last.about, "last": last.at}
            session.out.object(told)
        return
    rows = [(queue, name, last.about, last.at) for queue, name, last in found]
    session.out.table(("QUEUE", "RECURRING", "SCHEDULE", "LAST"), rows)
    if not rows:
        session.out.note("none yet: @app.recurring declares some, a worker of the app fires it")


@verb(app, "forget", examples="towpath recurring forget reports nightly")
async def forget(session: Session, *, queue: QueueArgument, name: NameArgument) -> None:
    """Forget recurring work that no app declares any more.

    A worker that still declares it begins anew, from that moment.
    """
    async with session.engine() as engine:
        await engine.forget(await existing_queue(engine, queue), name)
    if session.out.as_json:
        session.out.object({"queue": queue, "recurring": name, "forgotten": True})
    else:
        session.out.line(f"{queue}/{name}  forgotten")
