"""`towpath lanes`: let a parked lane go on."""

from __future__ import annotations

from typing import Annotated

import typer

from towpath.console.arguments import QueueArgument, existing_queue
from towpath.console.verb import Session, verb

app = typer.Typer(no_args_is_help=True, help="Lanes: let a parked one go on.")

LaneArgument = Annotated[str, typer.Argument(metavar="LANE", help="The lane's key.")]


@verb(app, "drop", examples="towpath lanes drop mails anna")
async def drop(session: Session, *, queue: QueueArgument, lane: LaneArgument) -> None:
    """Let a parked lane go on without its dead head, which stays listed as dead."""
    async with session.engine() as engine:
        ref = await engine.drop(await existing_queue(engine, queue), lane)
    if session.out.as_json:
        session.out.object({"queue": ref.queue, "lane": lane, "dropped": ref.id})
    else:
        session.out.line(f"{ref}  dropped; lane {lane} goes on")


# With one verb, typer would make the group itself that verb.
@app.callback()
def lanes() -> None:
    """Lanes: let a parked one go on."""
