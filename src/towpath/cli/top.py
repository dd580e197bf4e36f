"""`towpath top`: the queues, live in the terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from towpath.console.arguments import duration
from towpath.console.verb import Session, verb
from towpath.errors import InvalidOption

if TYPE_CHECKING:
    from towpath.clock import Duration
    from towpath.engine.engine import Engine
    from towpath.engine.inspect import Counts

COLUMNS = (
    "QUEUE", ">READY", ">DELAYED", ">WAITING", ">LEASED", ">DEAD", ">OLDEST",
    ">IN/S", ">DONE/S", ">FAILED/S", "",
)  # fmt: skip
RATES = ("submitted", "completed", "failed")
Look = Mapping[str, "Counts"]


async def top(
    session: Session,
    *,
    every: Annotated[str, typer.Option(metavar="TIME", help="How often to refresh.")] = "1s",
    once: Annotated[bool, typer.Option("--once", help="Measure once, then exit.")] = False,
) -> None:
    """Watch all queues, live.

    Shows how many jobs wait, and how many are submitted, completed and failed per second. Ctrl-C
    ends it. If the output is not a terminal, it shows one measurement, unless --json.
    """
    span = duration("every", every)
    if not span:
        raise InvalidOption("every", every, rule="must be above 0")
    async with session.engine() as engine:
        if session.out.as_json:
            await _stream(session, engine, span, once=once)
        elif once or not sys.stdout.isatty():
            before, now = await _two_looks(engine, span)
            session.out.table(COLUMNS, _rows(before, now, span))
        else:
            await _live(session, engine, span)


async def _two_looks(
    engine: Engine, span: Duration, before: Look | None = None
) -> tuple[Look, Look]:
    from towpath.cli.queues import all_counts  # noqa: PLC0415

    before = before or await all_counts(engine)
    await asyncio.sleep(span.total_seconds())
    return before, await all_counts(engine)


async def _stream(session: Session, engine: Engine, span: Duration, *, once: bool) -> None:
    from towpath.cli.queues import described  # noqa: PLC0415

    now: Look | None = None
    while True:
        before, now = await _two_looks(engine, span, now)
        for name, counts in now.items():
            fields = described(name, counts, None)
            del fields["done_per_minute"]
            session.out.object(fields | _rates(before.get(name), counts, span))
        sys.stdout.flush()
        if once:
            return


async def _live(session: Session, engine: Engine, span: Duration) -> None:
    """Redraw until Ctrl-C, which exits with code 0."""
    from rich.live import Live  # noqa: PLC0415 -- slow to import

    from towpath.console.output import table  # noqa: PLC0415

    now: Look | None = None
    with Live(console=session.out.screen(), screen=True, auto_refresh=False) as live:
        try:
            before, now = await _two_looks(engine, span)
            while True:
                live.update(table(COLUMNS, _rows(before, now, span)), refresh=True)
                before, now = await _two_looks(engine, span, now)
        except asyncio.CancelledError:
            raise typer.Exit(0) from None


def _rates(before: Counts | None, now: Counts, span: Duration) -> dict[str, Any]:
    """The rates per second between two measurements."""
    if before is None:
        return {}
    passed = span.total_seconds()
    return {
        f"{verb}_per_second": (now.totals[verb] - before.totals[verb]) / passed for verb in RATES
    }


def _rows(before: Look, now: Look, span: Duration) -> list[list[object]]:
    from towpath.cli.queues import row  # noqa: PLC0415

    rows: list[list[object]] = []
    for name, counts in now.items():
        rates = [f"{rate:.1f}" for rate in _rates(before.get(name), counts, span).values()]
        *numbers, _, paused = row(name, counts, None)
        rows.append([*numbers, *(rates or [None] * len(RATES)), paused])
    return rows


def register(towpath: typer.Typer) -> None:
    verb(towpath, "top", examples="towpath top --every 2s\ntowpath top --once")(top)
