"""The peers' part of docs/benchmarks.md: a table, a chart, the settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.peers import comparison as comparing
from benchmarks.peers import crash as crashing
from benchmarks.peers.chart import CHART, PAGE, draw, write_short
from benchmarks.peers.crash import told
from benchmarks.peers.environments import NotInstalled
from benchmarks.peers.run_results import Comparison, Recoveries, RowIdentity, RowResults, kept
from benchmarks.report import Marks, number, put, summary, with_pipes

PEERS = Marks("peers", "python -m benchmarks peers --write")
CRASH = Marks("crash", "python -m benchmarks crash --write")
_HEAD = (
    *("", "drain, jobs/s", "lowest to highest", "with default settings", "submit, jobs/s"),
    *("submit, blocking", "in bulk", "pick-up p50, ms"),
    *("p99", "delayed, late p50, ms", "p99", "earliest", "server CPU, µs/job", "commands sent/job"),
    *("commands run/job", "bytes/queued job"),
)


def shown(names: Sequence[str]) -> list[str]:
    """The tables of the last run, for the terminal."""
    texts: list[str] = []
    if "peers" in names and (compared := kept(Comparison)):
        texts += comparison_blocks(compared)
    if "crash" in names and (crashed := kept(Recoveries)):
        texts += recovery_blocks(crashed)
    return texts


def write_sections(names: Sequence[str]) -> list[Path]:
    """Writes the last run between its marks, and draws the chart."""
    written: list[Path] = []
    if "peers" in names and (compared := kept(Comparison)):
        blocks = comparison_blocks(compared)
        blocks.insert(1, f"![Every column of this table as bars](images/{CHART.name})")
        written.append(put(PEERS, blocks))
    if "crash" in names and (crashed := kept(Recoveries)):
        written.append(put(CRASH, recovery_blocks(crashed)))
    if written:
        written += write_short(PAGE.read_text())
        try:
            written.append(draw(PAGE.read_text()))
        except NotInstalled as problem:
            print(f"{CHART.name} is that of an earlier run: {problem}")
    return written


def comparison_blocks(compared: Comparison) -> list[str]:
    rows = [_HEAD, *(_row(one) for one in compared.by_drain)]
    return [
        _measured_on(compared.date, compared.made_with, quick=compared.quick),
        with_pipes(rows, numbers=range(1, len(_HEAD))),
        _listed([*_ratios(comparing.figures(compared)), *summary(comparing.figures(compared))]),
        _listed([_settings(one.who, one.jobs) for one in compared.by_drain]),
        _listed([*_missing(compared), *_twice(compared)]),
    ]


def recovery_blocks(crashed: Recoveries) -> list[str]:
    ordered = sorted(crashed.recoveries, key=lambda one: one.seconds or 1e9)
    rows = [("", "version", "its job runs again")]
    rows += [(one.who.label, one.who.version, told(one, crashed.watched)) for one in ordered]
    return [
        _measured_on(crashed.date, crashed.made_with, quick=crashed.quick),
        with_pipes(rows, numbers=()),
        _listed(summary(crashing.figures(crashed))),
    ]


def _row(one: RowResults) -> tuple[str, ...]:
    name = f"**{one.who.label}**" if one.who.ours else one.who.label
    drains, lateness = one.rounds("drain"), one.at(0.0, "late_ms")
    cells = (
        number(one.middle("drain")),
        f"{number(min(drains))} to {number(max(drains))}" if drains else "",
        number(one.middle("drain_defaults")),
        number(one.middle("submit_one")),
        number(one.middle("submit_blocking")) if one.blocks else "async only",
        number(one.middle("submit_many")) if one.who.bulk else "no bulk",
        number(one.at(0.5, "pickup_ms")),
        number(one.at(0.99, "pickup_ms")),
        number(one.at(0.5, "late_ms")),
        number(one.at(0.99, "late_ms")),
        number(lateness),
        _sum(one.middle("submit_cpu_us"), one.middle("run_cpu_us")),
        _sum(one.middle("submit_wire"), one.middle("run_wire")),
        _sum(one.middle("submit_calls"), one.middle("run_calls")),
        number(one.middle("bytes_per_job")),
    )
    return (name, *(cell or "not measured" for cell in cells))


def _sum(submit: float | None, run: float | None) -> str:
    if submit is None or run is None:
        return ""
    return f"{number(submit)} + {number(run)} = {number(submit + run)}"


def _ratios(figures: Sequence[Figure]) -> list[str]:
    """A sentence for each target, whether it was reached or not."""
    return [
        f"{figure.name}: {number(figure.value)} {figure.unit} is {number(figure.ratio)} x "
        f"{number(figure.beside_value)} {figure.beside} (target {figure.target}): "
        f"{'reached' if figure.reached else 'not reached'}."
        for figure in figures
        if figure.target and figure.ratio is not None
    ]


def _settings(who: RowIdentity, jobs: int) -> str:
    bulk = f"; in bulk: {who.bulk}" if who.bulk else ""
    return f"{who.label} {who.version}: {who.settings}{bulk}; {jobs:,} jobs."


def _missing(compared: Comparison) -> list[str]:
    """The peers that were not measured, with reasons."""
    return [
        f"{one.who.label}: not measured: {one.reason}." for one in compared.by_drain if one.reason
    ]


def _twice(compared: Comparison) -> list[str]:
    return [
        f"{one.who.label}: {one.twice} of the drained jobs were handled twice."
        for one in compared.by_drain
        if one.twice
    ]


def _measured_on(date: str, made_with: str, *, quick: bool) -> str:
    small = " With `--quick`: too little to believe." if quick else ""
    return f"Measured on {date}: {made_with}. The rows use a port of the same server.{small}"


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
