"""`towpath pause` and `towpath resume`."""

from __future__ import annotations

import typer

from towpath.console.arguments import QueuesArgument, existing_queue
from towpath.console.verb import Session, verb


async def pause(session: Session, *, queues: QueuesArgument) -> None:
    """Hand out no jobs of these queues.

    Everything else goes on: running jobs too, and submits.
    """
    await _switch(session, queues, paused=True)


async def resume(session: Session, *, queues: QueuesArgument) -> None:
    """Hand out jobs of these queues again."""
    await _switch(session, queues, paused=False)


async def _switch(session: Session, queues: list[str], *, paused: bool) -> None:
    async with session.engine() as engine:
        # All names are looked at first: a mistyped one must not leave half of it done.
        names = [await existing_queue(engine, queue) for queue in queues]
        for name in names:
            await (engine.pause(name) if paused else engine.resume(name))
            if session.out.as_json:
                session.out.object({"queue": name, "paused": paused})
            else:
                session.out.line(f"{name}  {'paused' if paused else 'resumed'}")


def register(app: typer.Typer) -> None:
    verb(app, "pause", examples="towpath pause mails reports")(pause)
    verb(app, "resume", examples="towpath resume mails")(resume)
