"""Prints progress to stderr: the run takes minutes."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    print(f"\n  {text}", end="", file=sys.stderr, flush=True)
