"""The chart with every column of the tables in docs/benchmarks.md, including those where a peer is
ahead; and the short table in README and docs/comparison.md.

    python -m benchmarks.peers.chart      makes both from the figures on the page

matplotlib draws it in an environment of its own, so that Towpath does not need it.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import NotInstalled, python_environment
from benchmarks.peers.peer_list import ROOT, all_peers, watched
from benchmarks.report import Marks, put, with_pipes

CHART = ROOT / "docs" / "images" / "peers.png"
PAGE = ROOT / "docs" / "benchmarks.md"
REQUIRES = ("matplotlib==3.11.2",)
COLUMNS = (
    ("drain, jobs/s", "Drain by one worker process, jobs/s", "more"),
    ("with default settings", "Drain with default settings, jobs/s", "more"),
    ("submit, jobs/s", "Submit one by one, jobs/s", "more"),
    ("submit, blocking", "Submit one by one, blocking, jobs/s", "more"),
    ("in bulk", "Submit in bulk, jobs/s", "more"),
    ("pick-up p50, ms", "Pick-up by an idle worker, p50, ms", "less"),
    ("pick-up p99", "Pick-up, p99, ms", "less"),
    ("its job runs again", "Worker killed: its job runs again, s", "less"),
    ("delayed, late p50, ms", "A delayed job is late, p50, ms", "less"),
    ("delayed p99", "A delayed job is late, p99, ms", "less"),
    ("server CPU, µs/job", "Server CPU, µs per job", "less"),
    ("commands sent/job", "Commands sent per job", "less"),
    ("commands run/job", "Commands run by the server per job", "less"),
    ("bytes/queued job", "Server memory, bytes per queued job", "less"),
)
"""A column of the page, what the chart calls it, and whether more or less is better."""
SHORT = {
    "drain, jobs/s": "drain",
    "with default settings": "by default",
    "submit, jobs/s": "submit",
    "submit, blocking": "blocking",
    "in bulk": "bulk",
    "pick-up p50, ms": "pick-up, ms",
    "its job runs again": "killed",
    "delayed, late p50, ms": "late, ms",
    "server CPU, µs/job": "server, µs",
    "bytes/queued job": "bytes",
}
"""The columns of the short table, and what it calls them."""
SHOWN = Marks("peers", "python -m benchmarks.peers.chart")
SHORT_TABLES = (ROOT / "README.md", ROOT / "docs" / "comparison.md")
_WITHIN = 60
_NODE = {peer.label for peer in all_peers() if not peer.in_python}


def draw(page: str, to: Path = CHART) -> Path:
    """Draws the figures in the text of the page. Raises NotInstalled."""
    python = python_environment("chart", REQUIRES)
    to.parent.mkdir(parents=True, exist_ok=True)
    order = json.dumps({"panels": panels(page), "note": _note(page), "to": str(to)})
    drawn = subprocess.run(
        [python, "-m", "benchmarks.peers.side.draw"],
        cwd=ROOT,
        input=order,
        text=True,
        capture_output=True,
        timeout=_WITHIN,
        check=False,
    )
    if drawn.returncode:
        raise NotInstalled(f"it was not drawn: {drawn.stderr.strip().splitlines()[-1]}")
    return to


def panels(page: str) -> list[dict[str, Any]]:
    """A set of bars per column; a peer that was not measured has words instead of a bar."""
    rows = _peers(page)
    return [
        {
            "title": title,
            "better": better,
            "bars": [_bar(peer, rows[peer], column) for peer in rows],
        }
        for column, title, better in _columns(rows)
    ]


def _columns(rows: dict[str, dict[str, str]]) -> list[tuple[str, str, str]]:
    """The columns of the page."""
    return [column for column in COLUMNS if any(column[0] in row for row in rows.values())]


def short_table(page: str) -> str:
    """The short table. The best peer of a column is bold."""
    shown = [column for column, *_ in _columns(_peers(page))]
    columns = [
        [_cell(bar, panel) for bar in panel["bars"]]
        for panel, column in zip(panels(page), shown, strict=True)
        if column in SHORT
    ]
    labels = [bar["label"] for bar in panels(page)[0]["bars"]]
    rows = [list(row) for row in zip(labels, *columns, strict=True)]
    ordered = [SHORT[column] for column in shown if column in SHORT]
    return with_pipes([["", *ordered], *rows], numbers=range(1, len(ordered) + 1))


def _cell(bar: dict[str, Any], panel: dict[str, Any]) -> str:
    words = (
        bar["words"].rpartition("= ")[2].replace("not within", "not in").replace("no bulk", "none")
    )
    # A job that runs early is no better than one in time.
    values = [drawn["value"] for drawn in panel["bars"] if (drawn["value"] or -1) >= 0]
    best = (max if panel["better"] == "more" else min)(values, default=None)
    return f"**{words}**" if bar["value"] == best else words


def write_short(page: str) -> list[Path]:
    """Writes the table where it is shown."""
    return [put(SHOWN, [short_table(page)], to) for to in SHORT_TABLES]


def _bar(label: str, row: dict[str, str], column: str) -> dict[str, Any]:
    cell = row.get(column, "not measured")
    value = re.search(r"(?:= )?(-?[\d,]+(?:\.\d+)?)(?: s)?$", cell)
    kind = "ours" if label == "Towpath" else "node" if label in _NODE else "python"
    number = float(value[1].replace(",", "")) if value and not cell.startswith("not") else None
    return {"label": label, "value": number, "words": cell, "kind": kind}


def _peers(page: str) -> dict[str, dict[str, str]]:
    """A row per peer, of both tables. Towpath is drawn once, without its watched row."""
    recovered = _rows(page, "crash")
    return {
        label: row | recovered.get(label, {})
        for label, row in _rows(page, "peers").items()
        if label != watched().label
    }


def _rows(page: str, part: str) -> dict[str, dict[str, str]]:
    """The rows of a table between its marks, by their labels. A bare "p99" belongs to the column
    before it.
    """
    text = page.partition(f"<!-- {part}:")[2].partition(f"<!-- /{part} -->")[0]
    head, _, *lines = [
        [cell.strip(" *") for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ] or [[], []]
    named = [
        f"{head[at - 1].split()[0].strip(',')} p99" if title == "p99" else title
        for at, title in enumerate(head)
    ]
    return {cells[0]: dict(zip(named, cells, strict=True)) for cells in lines}


def _note(page: str) -> str:
    text = page.partition("<!-- peers:")[2]
    measured = re.search(r"Measured on (\S+): .*?(\d+ CPUs)", text)
    day = f"{measured[1]}, {measured[2]}, " if measured else ""
    return f"{day}each at its best setting, one server, no-op jobs; bold: the best of all"


if __name__ == "__main__":
    write_short(PAGE.read_text())
    draw(PAGE.read_text())
