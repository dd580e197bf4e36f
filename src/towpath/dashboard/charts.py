"""Charts over time: paths of SVG, drawn by the server as part of a page.

A library is not needed: four small charts need no script, change with the page, follow the theme
through the stylesheet, and work without JavaScript. Each chart has a text with its numbers, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import NamedTuple

from towpath.clock import Duration, days, hours
from towpath.engine.history import History
from towpath.engine.stored_schedules import ScheduleInfo
from towpath.web.pages import number, span

WIDTH, HEIGHT = 600, 120
"""The size of a chart in units of its own; the page stretches it."""
_POINTS_MOST = 240
SPANS: dict[str, Duration] = {"hour": hours(1), "day": hours(24), "month": days(30)}
"""The periods that a queue's page can show, by name."""


class ChartLine(NamedTuple):
    """One line of a chart."""

    name: str
    tone: str
    """A class of the stylesheet."""
    path: str
    """The path of SVG."""
    now: str
    most: str


class Chart(NamedTuple):
    """One chart, with its numbers as a text."""

    title: str
    lines: list[ChartLine]
    top: str
    """The value of its upper edge."""
    words: str


class Charts(NamedTuple):
    """The charts of one queue, or of all queues together."""

    charts: list[Chart]
    begins: datetime
    middle: datetime
    ends: datetime


Numbers = Sequence[float | None]


def charts(history: History) -> Charts:
    """Draws the charts: rates, depths, the age of the oldest job, and failures."""
    minutes = history.step.total_seconds() / 60
    each = -(-len(history.ready) // _POINTS_MOST)

    def rate(name: str) -> Numbers:
        return [sum(part) / len(part) / minutes for part in _parts(getattr(history, name), each)]

    def depth(name: str) -> Numbers:
        return [max(part) for part in _parts(getattr(history, name), each)]

    oldest = [max(ages) for ages in _parts(history.oldest, each)]
    failed = {"failed attempts": rate("failed"), "died": rate("died")}
    drawn = [
        _chart(
            "Jobs a minute", {"submitted": rate("submitted"), "completed": rate("completed")}, _few
        ),
        _chart("Jobs that wait or run", {name: depth(name) for name in _DEPTHS}, number),
        _chart("Age of the oldest ready job", {"oldest": oldest}, lambda s: span(s or None)),
        _chart("Failures a minute", failed, _few),
    ]
    ends = history.begins + history.step * len(history.ready)
    return Charts(drawn, history.begins, history.begins + (ends - history.begins) / 2, ends)


_DEPTHS = ("ready", "waiting", "delayed", "leased")
_TONES = {
    "submitted": "leased",
    "completed": "done",
    "oldest": "waiting",
    "failed attempts": "waiting",
    "died": "dead",
}


def _few(value: float) -> str:
    """A number with one decimal if it is small."""
    return number(value) if value >= 10 or value == int(value) else f"{value:.1f}"


def _parts(numbers: Sequence[int | None], each: int) -> Iterable[list[int]]:
    return (
        [value or 0 for value in numbers[at : at + each]] for at in range(0, len(numbers), each)
    )


def _chart(title: str, series: dict[str, Numbers], shown: Callable[[float], str]) -> Chart:
    most = {
        name: max((value or 0 for value in values), default=0) for name, values in series.items()
    }
    top = max(*most.values(), 0) if most else 0
    lines = [
        ChartLine(
            name,
            _TONES.get(name, name),
            path_of(values, top),
            shown(values[-1] or 0),
            shown(most[name]),
        )
        for name, values in series.items()
    ]
    words = "; ".join(f"{line.name}: {line.now} now, at most {line.most}" for line in lines)
    return Chart(title, lines, shown(top), f"{title}. {words}.")


def path_of(values: Numbers, top: float) -> str:
    """The path through *values* from left to right; a line at the bottom if none is above 0."""
    width = WIDTH / max(len(values) - 1, 1)
    points = [
        f"{at * width:.1f} {HEIGHT - (HEIGHT - 4) * (value or 0) / top if top else HEIGHT:.1f}"
        for at, value in enumerate(values)
    ]
    return "M" + " L".join(points)


# ── schedules ────────────────────────────────────────────────────────────────────────────

WINDOWS: dict[str, Duration] = {"hour": hours(1), "day": hours(24), "week": days(7)}
"""The periods that the time line of schedules can show, by name."""
ROWS_MOST, RUNS_MOST = 40, 60
"""Maximum number of schedules that are drawn, and of runs of each: more are drawn as a bar."""
_NAMED = 5
_FORMS = {"hour": "%H:%M:%S", "day": "%H:%M", "week": "%a %H:%M"}


class Runs(NamedTuple):
    """The coming runs of one schedule: a row of the time line."""

    queue: str
    name: str
    first: datetime
    many: str
    """The number of runs within the window, as a text."""
    path: str
    """The path of SVG: a stroke for each run, or a bar from the first run on."""
    dense: bool
    words: str


class Coming(NamedTuple):
    """The time line of schedules."""

    rows: list[Runs]
    undrawn: int
    """Number of further schedules that run within the window, but are not drawn."""
    later: int
    """Number of schedules whose next run is after the window."""
    begins: datetime
    middle: datetime
    ends: datetime
    form: str
    """The format of its times."""


def coming(schedules: Iterable[ScheduleInfo], now: datetime, window: str) -> Coming:
    """The runs of *schedules* from *now* to the end of the *window*."""
    ends, form = now + WINDOWS[window], _FORMS[window]
    known = [(plan.next, plan) for plan in schedules if plan.next is not None and not plan.paused]
    known.sort(key=lambda found: (found[0], found[1].queue, found[1].name))
    soon = [(at, plan) for at, plan in known if at <= ends]
    rows = [_runs(plan, at, now, ends, form) for at, plan in soon[:ROWS_MOST]]
    middle = now + (ends - now) / 2
    undrawn, later = len(soon) - len(rows), len(known) - len(soon)
    return Coming(rows, undrawn, later, now, middle, ends, form)


def _runs(
    schedule: ScheduleInfo, first: datetime, now: datetime, ends: datetime, form: str
) -> Runs:
    further = schedule.when.after(max(first, now)) if schedule.when else iter(())
    runs = [first, *takewhile(lambda at: at <= ends, islice(further, RUNS_MOST))]
    dense = len(runs) > RUNS_MOST
    whole = (ends - now).total_seconds()
    places = [min(max((at - now).total_seconds() / whole, 0), 1) * WIDTH for at in runs]
    strokes = " ".join(f"M{x:.1f} 3 V17" for x in places)
    path = f"M{places[0]:.1f} 10 H{WIDTH}" if dense else strokes
    count = f"more than {RUNS_MOST} runs" if dense else f"{len(runs)} run{'s'[: len(runs) > 1]}"
    times = ", ".join(at.astimezone(UTC).strftime(form) for at in runs[:_NAMED])
    words = f"{count}: {times}{' …' if len(runs) > _NAMED else ''} UTC"
    return Runs(schedule.queue, schedule.name, first, count, path, dense, words)
