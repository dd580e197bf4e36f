"""Draws bars: `python -m benchmarks.peers.side.draw < order.json`."""
# Its types are where matplotlib is: in the chart's environment.
# pyright: basic, reportMissingImports=false

import json
import sys

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from PIL import Image

COLOURS = {"ours": "#0b6e4f", "python": "#8fa3b0", "node": "#c9a227"}
_CUT_FROM = 2.5
"""A bar so many times as long as the next is cut: it would make all others unreadable."""
_WIDE = 3
"""Panels beside each other."""


def main():
    order = json.load(sys.stdin)
    panels = order["panels"]
    deep = -(-len(panels) // _WIDE)
    height = 0.7 + 0.235 * max(len(panel["bars"]) for panel in panels)
    size = (4.7 * _WIDE, height * deep + 0.3)
    figure, axes = plt.subplots(deep, _WIDE, figsize=size, dpi=100, squeeze=False)
    used, unused = axes.flat[: len(panels)], axes.flat[len(panels) :]
    for axis, panel in zip(used, panels, strict=True):
        _bars(axis, panel)
    for axis in unused:
        axis.set_axis_off()
    figure.text(0.995, 0.004, order["note"], ha="right", va="bottom", fontsize=9, color="#555555")
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    figure.savefig(order["to"], metadata={"Software": None})
    with Image.open(order["to"]) as image:
        few_colours = image.convert("RGB").quantize(48)
    few_colours.save(order["to"], optimize=True)


def _bars(axis, panel):
    bars = panel["bars"]
    known = [bar["value"] for bar in bars if bar["value"] is not None]
    limit = _limit(known, panel["better"])
    best = (max if panel["better"] == "more" else min)(value for value in known if value >= 0)
    places = range(len(bars), 0, -1)
    axis.barh(
        places,
        [_length(bar["value"], limit) for bar in bars],
        color=[COLOURS[bar["kind"]] for bar in bars],
        height=0.72,
    )
    axis.set_yticks(list(places), [bar["label"] for bar in bars], fontsize=9)
    axis.set_xlim(0, limit * 1.25)
    axis.set_xticks([])
    axis.set_title(f"{panel['title']} ({panel['better']} is better)", fontsize=9.5, loc="left")
    for side in ("top", "right", "bottom"):
        axis.spines[side].set_visible(False)
    for place, bar in zip(places, bars, strict=True):
        value = bar["value"]
        told = bar["words"] if value is None else _number(value)
        cut = "… " if value is not None and value > limit else ""
        weight = "bold" if value == best else "normal"
        at = _length(value, limit)
        axis.text(at, place, f" {cut}{told}", va="center", fontsize=9, weight=weight)


def _limit(values, better):
    """The length of the longest bar. The longest of a rate is never cut."""
    first, *rest = sorted(values, reverse=True) or [1.0]
    if rest and better == "less" and first > _CUT_FROM * rest[0]:
        return rest[0] * 1.15
    return first


def _length(value, limit):
    """The length of a bar; an early job has none."""
    return max(min(value or 0, limit), 0)


def _number(value):
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2g}"


if __name__ == "__main__":
    main()
