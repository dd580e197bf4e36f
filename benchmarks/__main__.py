"""Runs the benchmarks: `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain

from benchmarks.bench import Plan
from benchmarks.catalogue import BENCHMARKS, PARTS, claim_of, run_of
from benchmarks.figure import Figure
from benchmarks.peers import page, peer_list
from benchmarks.report import json_lines, table, write_part
from benchmarks.versions import Versions, versions

EXAMPLES = """
examples:
  python -m benchmarks                        all figures, in about 85 minutes
  python -m benchmarks --quick                the same with smaller counts, to try it out
  python -m benchmarks submit_single pickup   some of them
  python -m benchmarks peers crash            other job queues beside ours
  python -m benchmarks peers --only huey,towpath  some rows of it
  python -m benchmarks crash --long           watch each crash for 110 s instead of 30 s
  python -m benchmarks --json > figures.jsonl one JSON object per figure
  python -m benchmarks --write                and put them into docs/benchmarks.md
  python -m benchmarks peers --write          only this part of it

Everything runs on private servers of its own. Machines are noisy: close what else is running, and
look at "lowest to highest" before you believe a difference. A target that is not reached is no
error: the exit code is 0. The first run of `peers` or `crash` installs the other job queues below
benchmarks/.peers; one that cannot be installed is shown as not measured.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    wanted = parser.parse_args(arguments)
    names: list[str] = wanted.names or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    if wanted.write and (wanted.quick or wanted.only or _in_parts(names)):
        parser.error(
            "--write needs whole parts of the page at their full counts: no --quick, no --only, "
            "and no names, or peers, crash, all about reviews, timers or uploads, or all of the "
            "others"
        )
    only = tuple(wanted.only.split(",")) if wanted.only else ()
    rows = [peer.name for peer in peer_list.rows_of_comparison()]
    if unknown := [name for name in only if name not in rows]:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(rows)}")
    if only and names != ["peers"]:
        parser.error("--only is about the rows of peers: python -m benchmarks peers --only huey")
    plan = Plan(quick=wanted.quick, long=wanted.long, only=only)
    asyncio.run(_run(names, plan, as_json=wanted.json, write=wanted.write))
    return 0


def _in_parts(names: Sequence[str]) -> bool:
    """Whether only some figures of a part are wanted."""
    return any(0 < len(part.keys() & set(names)) < len(part) for part in PARTS.values())


def _parser() -> argparse.ArgumentParser:
    claims = "\n".join(f"  {name:<18} {claim_of(name)}" for name in BENCHMARKS)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="The figures behind every claim of speed, beside raw Valkey in the same run.",
        epilog=f"benchmarks:\n{claims}\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run; all if none")
    parser.add_argument("--quick", action="store_true", help="smaller counts, fewer rounds")
    parser.add_argument("--only", metavar="ROW,ROW", default="", help="these rows of peers")
    parser.add_argument("--long", action="store_true", help="watch each crash for 110 s")
    parser.add_argument("--json", action="store_true", help="one JSON object per figure")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md too")
    return parser


async def _run(names: list[str], plan: Plan, *, as_json: bool, write: bool) -> None:
    made_with = await versions()
    _say(f"{made_with}\n")
    if made_with.busy:
        _say("The machine is busy with something else: expect lower figures than it can reach.\n")
    figures: dict[str, list[Figure]] = {}
    for name in names:
        began = time.monotonic()
        _say(f"{name} … ")
        figures[name] = await run_of(name)(plan)
        _say(f"{time.monotonic() - began:.0f} s\n")
    everything = list(chain.from_iterable(figures.values()))
    if as_json:
        print(json_lines(everything, made_with))
    else:
        print("\n\n".join([table(everything), *page.shown(names)]))
    if write:
        _write(figures, made_with)


def _write(figures: Mapping[str, list[Figure]], made_with: Versions) -> None:
    written = page.write_sections(list(figures))
    today = datetime.now(UTC).date().isoformat()
    for marks, part in PARTS.items():
        if found := [figure for name in part for figure in figures.get(name, [])]:
            written.append(write_part(marks, found, made_with, date=today))
    _say(f"written: {', '.join(sorted({str(path) for path in written}))}\n")


def _say(text: str) -> None:
    """Prints progress to stderr, so that stdout has only the result."""
    print(text, end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
