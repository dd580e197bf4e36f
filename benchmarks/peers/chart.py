"""The chart: drawn by matplotlib in an environment of its own, so that Towpath does not need it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import NotInstalled, python_environment
from benchmarks.peers.roster import ROOT
from benchmarks.peers.standing import Comparison, Standing

CHART = ROOT / "docs" / "images" / "peers.png"
REQUIRES = ("matplotlib==3.11.2",)
_WITHIN = 60


def draw(compared: Comparison, to: Path = CHART) -> Path:
    """Draw it. Raises NotInstalled."""
    python = python_environment("chart", REQUIRES)
    to.parent.mkdir(parents=True, exist_ok=True)
    order = json.dumps({"panels": panels(compared), "note": _note(compared), "to": str(to)})
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


def panels(compared: Comparison) -> list[dict[str, Any]]:
    """Three sets of bars; whoever was not measured has no bar, and is said in the table."""
    return [
        _panel(compared, "Drain by one process, jobs/s (more is better)", _drain),
        _panel(compared, "Pick-up p50, ms (less is better)", _pickup),
        _panel(compared, "Server CPU of a job, submitted singly, µs (less is better)", _server),
    ]


def _panel(
    compared: Comparison, title: str, of: Callable[[Standing], float | None]
) -> dict[str, Any]:
    bars = [
        {"label": one.who.label, "value": value, "kind": _kind(one)}
        for one in compared.by_drain
        if (value := of(one)) is not None
    ]
    return {"title": title, "bars": bars}


def _drain(one: Standing) -> float | None:
    return one.middle("drain")


def _pickup(one: Standing) -> float | None:
    return one.at(0.5, "pickup_ms")


def _server(one: Standing) -> float | None:
    return one.server_us


def _kind(one: Standing) -> str:
    if one.who.ours:
        return "ours"
    return "python" if one.who.in_python else "node"


def _note(compared: Comparison) -> str:
    return f"{compared.date}, each at its best setting, one server, no-op jobs"
