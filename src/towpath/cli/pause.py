"""`towpath pause` and `towpath resume` for queues; `towpath lanes` for a parked lane."""

from __future__ import annotations

from typing import Annotated

import typer

from towpath.console.arguments import QueueArgument, QueuesArgument, existing_queue
from towpath.console.verb import Session, verb


async def pause(session: Session, *, queues: QueuesArgument) -> None:
    """Stop handing out jobs of these queues.

    Running jobs go on, and new jobs can be submitted.
    """
    await _switch(session, queues, paused=True)


async def resume(session: Session, *, queues: QueuesArgument) -> None:
    """Hand out jobs of these queues again."""
    await _switch(session, queues, paused=False)


async def _switch(session: Session, queues: list[str], *, paused: bool) -> None:
    async with session.engine() as engine:
        # Check all names first, so that a mistyped one changes no queue.
        names = [await existing_queue(engine, queue) for queue in queues]
        for name in names:
            await (engine.queues.pause(name) if paused else engine.queues.resume(name))
            done = "paused" if paused else "resumed"
            session.out.answer({"queue": name, "paused": paused}, f"{name}  {done}")


app = typer.Typer(no_args_is_help=True, help="Lanes: unblock a parked one.")

LaneArgument = Annotated[str, typer.Argument(metavar="LANE", help="The lane's key.")]


@verb(app, "drop", examples="towpath lanes drop mails anna")
async def drop(session: Session, *, queue: QueueArgument, lane: LaneArgument) -> None:
    """Let a parked lane continue without its dead head. The dead job stays listed."""
    async with session.engine() as engine:
        ref = await engine.drop(await existing_queue(engine, queue), lane)
    fields = {"queue": ref.queue, "lane": lane, "dropped": ref.id}
    session.out.answer(fields, f"{ref}  dropped; lane {lane} goes on")


def register(towpath: typer.Typer) -> None:
    verb(towpath, "pause", examples="towpath pause mails reports")(pause)
    verb(towpath, "resume", examples="towpath resume mails")(resume)
    towpath.add_typer(app, name="lanes")
