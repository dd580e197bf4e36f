"""Output of commands: data on stdout, as a table or as JSON; everything else on stderr.

Text from outside is never interpreted: neither as markup nor as control characters.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from towpath.clock import Duration, readable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

T = TypeVar("T")
_WIDE = 100_000
"""The width for a pipe: lines are neither cut nor wrapped."""
NOTHING = "–"  # noqa: RUF001 -- a dash, as in tables


class Output:
    """Writes a command's output. With *as_json*, one JSON object per line."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        for stream in (sys.stdout, sys.stderr):
            # Write an escape sequence instead of failing if the terminal lacks a character.
            stream.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] -- TextIO lacks it; the real streams have it

    # ── data ─────────────────────────────────────────────────────────────────────────────

    def object(self, value: Mapping[str, Any]) -> None:
        """Write *value* as one line of JSON."""
        ascii_only = sys.stdout.encoding.lower() not in {"utf-8", "utf8"}
        text = json.dumps(value, ensure_ascii=ascii_only, default=plain)
        # JSON allows control characters beyond ASCII, which a terminal would obey.
        sys.stdout.write(text if text.isprintable() else _escaped(text))
        sys.stdout.write("\n")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Write a table. A column whose name begins with `>` is aligned to the right."""
        screen = self.screen()
        with screen.capture() as drawn:
            screen.print(table(columns, rows))
        # rich pads every line with blanks, up to the width of a pipe.
        sys.stdout.writelines(f"{line.rstrip()}\n" for line in drawn.get().splitlines())

    def facts(self, pairs: Mapping[str, object]) -> None:
        """Write names and values, one pair per line; leaves out pairs without a value."""
        rows = [(name, cell(value)) for name, value in pairs.items() if value is not None]
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            self.line(f"{name:<{width}}  {value}")

    def answer(self, value: Mapping[str, Any], words: str | Mapping[str, object]) -> None:
        """Write one thing: *value* as JSON, or else *words*, a line or facts."""
        if self.as_json:
            self.object(value)
        elif isinstance(words, str):
            self.line(words)
        else:
            self.facts(words)

    def answers(
        self,
        columns: Sequence[str],
        items: Sequence[T],
        row: Callable[[T], Sequence[object]],
        described: Callable[[T], Mapping[str, Any]],
        *,
        none: str,
    ) -> None:
        """Write many things: each *described* as JSON, or else a table, or the note *none*."""
        if self.as_json:
            for each in items:
                self.object(described(each))
        elif items:
            self.table(columns, [row(each) for each in items])
        else:
            self.note(none)

    def line(self, text: str) -> None:
        """Write a line of data."""
        sys.stdout.write(printable(text) + "\n")

    def screen(self) -> Console:
        """The console of rich for stdout; with colours only in a terminal."""
        return _console(sys.stdout)

    # ── messages on stderr ───────────────────────────────────────────────────────────────

    def note(self, text: str) -> None:
        """Write a remark to stderr."""
        sys.stderr.write(printable(text) + "\n")

    def more(self, cursor: str, command: str) -> None:
        """Say that there is another page, and which command shows it."""
        if self.as_json:
            sys.stderr.write(json.dumps({"after": cursor}) + "\n")
        else:
            self.note(f"more: {command} --after {cursor}")

    def refused(self, code: str, message: str, remedy: str, retry: str) -> None:
        """Write an error and its remedy."""
        if self.as_json:
            fields = {"refused": code, "message": message, "do": remedy, "retry": retry}
            sys.stderr.write(json.dumps(fields) + "\n")
        else:
            self.note(f"refused  {code}: {message}\ndo       {remedy}")

    @contextmanager
    def progress(self, doing: str, total: int | None) -> Generator[Callable[[int], None]]:
        """Show a bar on stderr while the body runs, if it is a terminal. Yields a function that
        takes the number of things done since the last call.
        """
        if not sys.stderr.isatty():
            yield lambda _: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415 -- slow to import

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=_console(sys.stderr)) as bar:
            task = bar.add_task(doing, total=total)
            yield lambda done: bar.advance(task, done)

    @contextmanager
    def transfer(self, doing: str, total: int) -> Generator[Callable[[int], None]]:
        """The same for bytes, with the rate and the remaining time."""
        if not sys.stderr.isatty():
            yield lambda _: None
            return
        from rich.progress import (  # noqa: PLC0415 -- slow to import
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=_console(sys.stderr)) as bar:
            task = bar.add_task(printable(doing), total=total)
            yield lambda done: bar.advance(task, done)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> RenderableType:
    """A table without lines; its cells are plain text."""
    from rich.table import Table  # noqa: PLC0415 -- slow to import
    from rich.text import Text  # noqa: PLC0415

    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        right = column.startswith(">")
        name = Text(column.removeprefix(">"))
        drawn.add_column(
            name, justify="right" if right else "left", no_wrap=True, overflow="ellipsis"
        )
    for row in rows:
        drawn.add_row(*(Text(printable(cell(value)).replace("\n", " ")) for value in row))
    return drawn


def _console(stream: TextIO) -> Console:
    from rich.console import Console  # noqa: PLC0415 -- slow to import

    width = None if stream.isatty() else _WIDE
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False)


def cell(value: object) -> str:
    """*value* as the text of a cell."""
    match value:
        case None | "":
            return NOTHING
        case bool():
            return "yes" if value else "no"
        case Duration():
            return readable(value)
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
        case _:
            return str(value)


def plain(value: object) -> object:
    """*value*, which JSON has no type for: times in ISO 8601, durations in seconds."""
    match value:
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case Duration():
            return value.total_seconds()
        case _:
            return str(value)


def _escaped(text: str) -> str:
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def printable(text: str) -> str:
    """*text* with control characters escaped, except line breaks."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text
    )
