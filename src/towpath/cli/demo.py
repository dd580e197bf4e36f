"""`towpath demo`: all five applications under a small load, hurt on the way, and counted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from towpath.cli.serve import require_server
from towpath.console import exits
from towpath.console.verb import Session, verb

if TYPE_CHECKING:
    from towpath.demo.facts import Row

EXAMPLES = """
    towpath demo
    towpath demo --users 50 --json
    towpath demo --keep
"""

Users = Annotated[int, typer.Option(min=1, max=200, help="Users who chat.")]
Messages = Annotated[int, typer.Option(min=1, max=100, help="Messages of each user.")]
Timers = Annotated[int, typer.Option(min=1, max=500, help="Timers that are set.")]
Reviews = Annotated[int, typer.Option(min=1, max=200, help="Pull requests that are opened.")]
Issues = Annotated[int, typer.Option(min=1, max=200, help="Issues that are opened.")]
Agents = Annotated[int, typer.Option(min=1, max=8, help="Agents that compete for them.")]
Over = Annotated[float, typer.Option(min=0, max=60, help="Seconds over which it is spread.")]
Within = Annotated[float, typer.Option(min=1, help="Seconds after which it is given up.")]
Keep = Annotated[
    bool, typer.Option("--keep", help="Leave it running until Ctrl-C, and its folder for good.")
]
PlantLoss = Annotated[
    bool, typer.Option("--plant-loss", help="Take a timer away: the table must show that it lacks.")
]


async def demo(
    session: Session,
    *,
    users: Users = 20,
    messages: Messages = 6,
    timers: Timers = 30,
    reviews: Reviews = 12,
    issues: Issues = 18,
    agents: Agents = 6,
    over: Over = 12.0,
    within: Within = 170.0,
    keep: Keep = False,
    plant_loss: PlantLoss = False,
) -> None:
    """Show what it keeps: five applications under load, a worker and the store killed.

    Starts a server with a store and a database of its own in a temporary folder, two worker
    processes and a GitHub of this machine; needs no network. Users chat, set timers, send files,
    open pull requests and issues; agents take the issues. On the way a worker and the store are
    killed. Then all is counted, from what handlers noted and what is kept: exit code 1 if anything
    was lost, done twice or out of order.
    """
    require_server()
    from towpath.demo.load import Load  # noqa: PLC0415 -- slow to import
    from towpath.demo.run import Demo, folder_for  # noqa: PLC0415 -- the same

    load = Load(
        users=users, messages=messages, timers=timers, reviews=reviews, issues=issues,
        agents=agents, over=over,
    )  # fmt: skip
    found: list[Row] = []

    def counted(rows: list[Row]) -> None:
        found.extend(rows)
        _tell(session, rows)

    with folder_for(kept=keep) as folder:
        if keep:
            session.out.note(f"the folder: {folder}")
        showing = Demo(load, say=session.out.note, lose=plant_loss, within=within)
        try:
            await showing.run(folder, counted, stay=keep)
        except asyncio.CancelledError:
            if showing.terminated:
                raise typer.Exit(exits.TERMINATED) from None
            raise  # Ctrl-C
    if not all(row.kept for row in found):
        raise typer.Exit(exits.FAILED)


def _tell(session: Session, rows: list[Row]) -> None:
    from towpath.demo.facts import COLUMNS, Row, shown  # noqa: PLC0415 -- slow to import

    session.out.answers(COLUMNS, rows, shown, Row.described, none="nothing was done")
    kept = all(row.kept for row in rows)
    words = "nothing was lost, done twice or out of order" if kept else "not everything was kept"
    session.out.note(f"{words}, with a worker and the store killed on the way")


def register(app: typer.Typer) -> None:
    verb(app, "demo", examples=EXAMPLES)(demo)
