"""`towpath demo`: runs all five applications under load, with crashes, and counts the results."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from towpath.cli.serve import require_server
from towpath.console import exits
from towpath.console.verb import Session, verb

if TYPE_CHECKING:
    from towpath.demo.results import Row

EXAMPLES = """
    towpath demo
    towpath demo --users 50 --json
    towpath demo --keep
"""

Users = Annotated[int, typer.Option(min=1, max=200, help="How many users chat.")]
Messages = Annotated[int, typer.Option(min=1, max=100, help="Messages per user.")]
Timers = Annotated[int, typer.Option(min=1, max=500, help="How many timers are set.")]
Reviews = Annotated[int, typer.Option(min=1, max=200, help="How many pull requests are opened.")]
Issues = Annotated[int, typer.Option(min=1, max=200, help="How many issues are opened.")]
Agents = Annotated[int, typer.Option(min=1, max=8, help="How many agents compete for issues.")]
Over = Annotated[float, typer.Option(min=0, max=60, help="Seconds over which the load is spread.")]
Within = Annotated[float, typer.Option(min=1, help="Give up after this many seconds.")]
Keep = Annotated[
    bool, typer.Option("--keep", help="Keep it running until Ctrl-C, and keep its folder.")
]
PlantLoss = Annotated[
    bool, typer.Option("--plant-loss", help="Lose a timer on purpose: the table must show it.")
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
    """Run five applications under load, kill a worker and Redis, count what was kept.

    Starts a server with its own Redis and database in a temporary folder, two worker processes and
    a fake GitHub; needs no network. Users chat, set timers, send files, open pull requests and
    issues; agents take the issues. Meanwhile a worker and Redis are killed. At the end
    everything is counted. Exit code 1 if anything was lost, done twice or out of order.
    """
    require_server()
    from towpath.demo.load import DemoLoad  # noqa: PLC0415 -- slow to import
    from towpath.demo.run import Demo, folder_for  # noqa: PLC0415 -- the same

    load = DemoLoad(
        users=users, messages=messages, timers=timers, reviews=reviews, issues=issues,
        agents=agents, over=over,
    )  # fmt: skip
    found: list[Row] = []

    def show_counts(rows: list[Row]) -> None:
        found.extend(rows)
        _show_rows(session, rows)

    with folder_for(kept=keep) as folder:
        if keep:
            session.out.note(f"the folder: {folder}")
        showing = Demo(load, say=session.out.note, lose=plant_loss, within=within)
        try:
            await showing.run(folder, show_counts, stay=keep)
        except asyncio.CancelledError:
            if showing.terminated:
                raise typer.Exit(exits.TERMINATED) from None
            raise  # Ctrl-C
    if not all(row.kept for row in found):
        raise typer.Exit(exits.FAILED)


def _show_rows(session: Session, rows: list[Row]) -> None:
    from towpath.demo.results import COLUMNS, Row, cells  # noqa: PLC0415 -- slow to import

    session.out.answers(COLUMNS, rows, cells, Row.as_json, none="nothing was done")
    kept = all(row.kept for row in rows)
    words = "nothing was lost, done twice or out of order" if kept else "not everything was kept"
    session.out.note(f"{words}; a worker and Redis were killed meanwhile")


def register(towpath: typer.Typer) -> None:
    verb(towpath, "demo", examples=EXAMPLES)(demo)
