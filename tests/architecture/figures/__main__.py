"""Print the figures: `python -m tests.architecture.figures`, with `--json` for programs.

`--names` lists what was counted: the frames, the modules, the small ones with one importer.
`--beside FOLDER` times the commands of another commit, too, whose `src` is there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.architecture.figures import shape, starting, submitting, webhook


@dataclass(frozen=True)
class Figure:
    """One figure, and the most that it may be; None = nothing is said about it."""

    name: str
    value: float
    most: float | None = None
    unit: str = ""
    names: Sequence[str] = ()
    """What was counted, where that can be named."""

    @property
    def reached(self) -> bool | None:
        return None if self.most is None else self.value <= self.most


def figures(beside: Path | None = None) -> list[Figure]:
    return [*_nested(), *_shape(), *_starts(beside)]


def _nested() -> list[Figure]:
    way, hook = submitting.measured(), webhook.measured()
    return [
        Figure("submit: frames nested at the socket", len(way.frames), 8, names=way.frames),
        Figure("submit: modules entered", len(way.modules), 10, names=sorted(way.modules)),
        Figure("webhook: frames nested at its INSERT", len(hook), 14, names=hook),
    ]


def _shape() -> list[Figure]:
    small = shape.small_with_one_importer()
    without = [name for name in small if name not in shape.REASONS]
    told = [f"{name}, read by {by}" for name, by in small.items()]
    return [
        Figure("small modules with one importer", len(small), 5, names=told),
        Figure("of those, without a reason", len(without), 0),
        *_size("the house", applications=False),
        *_size("applications", applications=True),
    ]


def _size(of: str, *, applications: bool) -> list[Figure]:
    return [
        Figure(f"{of}: files without __init__", len(shape.files(applications=applications))),
        Figure(f"{of}: lines of Python", shape.python_lines(applications=applications)),
        Figure(f"{of}: lines of Lua", shape.lua_lines(applications=applications)),
    ]


def _starts(beside: Path | None) -> list[Figure]:
    loaded = starting.loaded_by_help()
    times = starting.times(beside)
    return [
        Figure("applications' modules that --help loads", len(loaded), 0, names=loaded),
        *(Figure(f"towpath {name}", round(ms), unit="ms") for name, ms in times.items()),
    ]


def main(words: Sequence[str]) -> None:
    beside = Path(words[words.index("--beside") + 1]) if "--beside" in words else None
    found = figures(beside)
    if "--json" in words:
        told = [asdict(figure) | {"reached": figure.reached} for figure in found]
        sys.stdout.write(json.dumps(told, indent=1) + "\n")
        return
    sys.stdout.write(f"{'figure':<42} {'is':>8}    {'at most':>8}\n")
    for figure in found:
        most = "" if figure.most is None else f"{figure.most:>8,}"
        verdict = {None: "", True: "reached", False: "not reached"}[figure.reached]
        line = f"{figure.name:<42} {figure.value:>8,} {figure.unit:<2} {most:>8}  {verdict}"
        sys.stdout.write(line.rstrip() + "\n")
        if "--names" in words:
            sys.stdout.writelines(f"    {name}\n" for name in figure.names)


if __name__ == "__main__":
    main(sys.argv[1:])
