"""Runs the benchmarks: `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from benchmarks.bench import Plan
from benchmarks.catalogue import BENCHMARKS, claim_of, run_of
from benchmarks.figure import Figure
from benchmarks.report import json_lines, table, write_page
from benchmarks.versions import versions

EXAMPLES = """
examples:
  python -m benchmarks                        all figures, in less than five minutes
  python -m benchmarks --quick                the same with smaller counts, to try it out
  python -m benchmarks submit_single pickup   some of them
  python -m benchmarks --json > figures.jsonl one JSON object per figure
  python -m benchmarks --write                and put them into docs/benchmarks.md

Everything runs on private servers of its own, on Unix sockets. Machines are noisy: close what
else is running, and look at "lowest to highest" before you believe a difference. A target that
is not reached is no error: the exit code is 0.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    wanted = parser.parse_args(arguments)
    names: list[str] = wanted.names or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    if wanted.write and (wanted.names or wanted.quick):
        parser.error("--write needs all figures at their full counts: no names and no --quick")
    asyncio.run(_run(names, Plan(quick=wanted.quick), as_json=wanted.json, write=wanted.write))
    return 0


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
    parser.add_argument("--json", action="store_true", help="one JSON object per figure")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md too")
    return parser


async def _run(names: list[str], plan: Plan, *, as_json: bool, write: bool) -> None:
    made_with = await versions()
    _say(f"{made_with}\n")
    if made_with.busy:
        _say("The machine is busy with something else: expect lower figures than it can reach.\n")
    figures: list[Figure] = []
    for name in names:
        began = time.monotonic()
        _say(f"{name} … ")
        figures += await run_of(name)(plan)
        _say(f"{time.monotonic() - began:.0f} s\n")
    print(json_lines(figures, made_with) if as_json else table(figures))
    if write:
        today = datetime.now(UTC).date().isoformat()
        _say(f"written: {write_page(figures, made_with, date=today)}\n")


def _say(text: str) -> None:
    """Progress goes to stderr, so that stdout is the result alone."""
    print(text, end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
