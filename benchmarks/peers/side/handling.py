"""What every handler calls: notes that a job ran, and reports to the bench by lines in a file.

It writes to a file, because the reports must not cost Redis anything. Times are of the steady
clock, which all processes of a machine share; due times are of the wall clock.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

REPORT = "BENCH_REPORT"
"""The variable that names the file."""


@dataclass
class StormProgress:
    """The progress of many jobs that fall due together."""

    ran: int = 0
    latest: float = 0.0
    """The highest due time of those that ran."""
    behind: int = 0
    """Those that ran after one that was due later."""
    early: int = 0


_counts: defaultdict[str, itertools.count[int]] = defaultdict(lambda: itertools.count(1))
_began: dict[str, tuple[float, float]] = {}
_storms: dict[str, StormProgress] = {}


def handled(payload: dict[str, Any]) -> float:
    """Notes that this job runs; returns for how many seconds it must keep on running."""
    kind = payload["kind"]
    if kind == "drain":
        _drained(payload["run"], payload["of"])
    elif kind == "pickup":
        _tell(kind, ms=time.monotonic() * 1000 - payload["at"])
    elif kind == "delayed":
        _tell(kind, ms=time.time() * 1000 - payload["at"])
    elif kind == "storm":
        _stormed(payload["run"], payload["of"], payload["at"])
    elif kind == "long":
        _tell(kind, pid=os.getpid(), at=time.monotonic())
        return payload["of"]
    return 0.0


def _drained(run: str, jobs: int) -> None:
    """Only the first and the last job of a run take the time; the others are counted."""
    count = next(_counts[run])
    if count == 1:
        _began[run] = (time.monotonic(), time.process_time())
    if count == jobs:
        at, cpu = _began[run]
        seconds, used = time.monotonic() - at, time.process_time() - cpu
        _tell("drain", run=run, jobs=jobs, seconds=seconds, cpu=used)
    if count > jobs:
        _tell("excess", run=run, jobs=count)


def _stormed(run: str, jobs: int, due_ms: float) -> None:
    """Notes one of many jobs that fall due together; reports when the last of them runs."""
    now, storm = time.time() * 1000, _storms.setdefault(run, StormProgress())
    storm.ran += 1
    storm.behind += due_ms < storm.latest
    storm.early += now < due_ms
    storm.latest = max(storm.latest, due_ms)
    if storm.ran == jobs:
        _tell("storm", at=now, behind=storm.behind, early=storm.early)


def _tell(kind: str, **facts: object) -> None:
    line = json.dumps({"kind": kind, **facts}) + "\n"
    file = os.open(os.environ[REPORT], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
