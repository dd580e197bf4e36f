"""The figures as a table, as JSON and as the page in docs/."""

from __future__ import annotations

from collections.abc import Container, Sequence
from pathlib import Path

import msgspec

from benchmarks.figure import Figure
from benchmarks.versions import Versions

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
_HEAD = (
    "figure",
    "what",
    "measured",
    "lowest to highest",
    "target",
    "ratio",
    "reached",
    "compared with",
)
_NUMBERS = {2, 3, 5}
"""Columns that are aligned to the right."""


class Marks(msgspec.Struct, frozen=True):
    """A part of the page that a command writes; people write the text around it."""

    name: str
    command: str

    @property
    def begin(self) -> str:
        return f"<!-- {self.name}: written by `{self.command}` -->"

    @property
    def end(self) -> str:
        return f"<!-- /{self.name} -->"


FIGURES = Marks("figures", "python -m benchmarks --write")
REVIEWS = Marks("reviews", "python -m benchmarks --write")
TIMERS = Marks("timers", "python -m benchmarks --write")
ISSUES = Marks("issues", "python -m benchmarks --write")
UPLOADS = Marks("uploads", "python -m benchmarks --write")


def table(figures: Sequence[Figure]) -> str:
    """The figures in columns, for people."""
    rows = [_HEAD, *(_row(figure) for figure in figures)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    rule = tuple("-" * width for width in widths)
    lines = [_aligned(row, widths) for row in (rows[0], rule, *rows[1:])]
    return "\n".join([*lines, "", *summary(figures)])


def summary(figures: Sequence[Figure]) -> list[str]:
    """How many targets were reached, and the bottleneck of each one that was not."""
    aimed = [figure for figure in figures if figure.reached is not None]
    missed = [figure for figure in aimed if not figure.reached]
    lines = [f"{len(aimed) - len(missed)} of {len(aimed)} targets reached."]
    lines += [
        f"{figure.name} is not reached: {figure.bound or 'no bound was measured'}."
        for figure in missed
    ]
    return lines + [
        f"{figure.name} was not measured: {figure.bound}."
        for figure in figures
        if not figure.rounds
    ]


def json_lines(figures: Sequence[Figure], made_with: Versions) -> str:
    """One JSON object per figure, each with the conditions of its measurement."""
    known = msgspec.to_builtins(made_with)
    objects = (msgspec.to_builtins(figure) | {"versions": known} for figure in figures)
    return "\n".join(msgspec.json.encode(one).decode() for one in objects)


def write_part(marks: Marks, figures: Sequence[Figure], made_with: Versions, *, date: str) -> Path:
    """Writes the figures between these marks of docs/benchmarks.md; the text around them stays."""
    return put(marks, _page(figures, made_with, date))


def put(marks: Marks, blocks: Sequence[str], page: Path | None = None) -> Path:
    """Replaces the paragraphs between marks. Raises ValueError without marks."""
    page = page or PAGE
    text = page.read_text("utf-8")
    before, begin, rest = text.partition(marks.begin)
    _, end, after = rest.partition(marks.end)
    if not begin or not end:
        raise ValueError(f"{page} has lost its marks: {marks.begin} … {marks.end}")
    full = [block for block in blocks if block]
    page.write_text(before + "\n\n".join([begin, *full, end]) + after, "utf-8")
    return page


def with_pipes(rows: Sequence[Sequence[str]], *, numbers: Container[int]) -> str:
    """A table in Markdown; its first row is the head."""
    head, *rest = rows
    rule = ["--:" if i in numbers else "---" for i in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rest])


def _page(figures: Sequence[Figure], made_with: Versions, date: str) -> list[str]:
    return [
        f"Measured on {date}: {made_with}.",
        with_pipes([_HEAD, *(_row(figure) for figure in figures)], numbers=_NUMBERS),
        "\n".join(f"- {line}" for line in summary(figures)),
    ]


def _row(figure: Figure) -> tuple[str, ...]:
    if not figure.rounds:
        return (figure.name, figure.what, "not measured", "", figure.target, "", "", "")
    beside = f"{number(figure.beside_value)} {figure.beside}" if figure.beside else ""
    return (
        figure.name,
        figure.what,
        f"{number(figure.value)} {figure.unit}",
        f"{number(figure.low)} to {number(figure.high)}",
        figure.target,
        number(figure.ratio),
        {True: "yes", False: "no", None: ""}[figure.reached],
        beside,
    )


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    cells = (
        cell.rjust(width) if i in _NUMBERS else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join(cells).rstrip()


def number(value: float | None) -> str:
    """Formats a number with three significant digits."""
    if value is None:
        return ""
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"
