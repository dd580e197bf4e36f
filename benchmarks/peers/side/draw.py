"""Draws bars: `python -m benchmarks.peers.side.draw < order.json`."""
# Its types are where matplotlib is: in the chart's environment.
# pyright: basic, reportMissingImports=false

import json
import sys

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

COLOURS = {"ours": "#0b6e4f", "python": "#8fa3b0", "node": "#c9a227"}
_CUT_FROM = 2.5
"""A bar so many times as long as the next is cut: it would make all others unreadable."""


def main():
    order = json.load(sys.stdin)
    panels = order["panels"]
    height = 0.9 + 0.3 * max(len(panel["bars"]) for panel in panels)
    figure, axes = plt.subplots(1, len(panels), figsize=(5 * len(panels), height), dpi=120)
    for axis, panel in zip(axes, panels, strict=True):
        _bars(axis, panel)
    figure.text(0.995, 0.01, order["note"], ha="right", va="bottom", fontsize=8, color="#555555")
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.savefig(order["to"], metadata={"Software": None})


def _bars(axis, panel):
    bars = panel["bars"]
    values = [bar["value"] for bar in bars]
    limit = _limit(values)
    places = range(len(bars), 0, -1)
    axis.barh(
        places,
        [min(value, limit) for value in values],
        color=[COLOURS[bar["kind"]] for bar in bars],
        height=0.72,
    )
    axis.set_yticks(list(places), [bar["label"] for bar in bars], fontsize=9)
    axis.set_xlim(0, limit * 1.22)
    axis.set_xticks([])
    axis.set_title(panel["title"], fontsize=10, loc="left")
    for side in ("top", "right", "bottom"):
        axis.spines[side].set_visible(False)
    for place, value in zip(places, values, strict=True):
        cut = "… " if value > limit else ""
        axis.text(min(value, limit), place, f" {cut}{_number(value)}", va="center", fontsize=9)


def _limit(values):
    """How long the longest bar may be. The longest of a rate is never cut: that is the news."""
    first, *rest = sorted(values, reverse=True) or [1.0]
    if rest and values[0] != first and first > _CUT_FROM * rest[0]:
        return rest[0] * 1.15
    return first


def _number(value):
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2g}"


if __name__ == "__main__":
    main()
