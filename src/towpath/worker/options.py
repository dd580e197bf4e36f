"""The options of a worker process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, cast

from msgspec import Meta

from towpath.clock import Duration, minutes, seconds
from towpath.ids import queue_name, worker_name
from towpath.options import FieldInfo, Options

BY_HANDLERS = 0
"""Instead of a weight: the queue has the weight of its handlers."""


def _queues(value: object) -> object:
    """Read `a,b=3`, or a table of weights. Returns the weight of each queue."""
    given: dict[str, object] = {}
    wanted: dict[str, object] = {}
    if isinstance(value, str):
        parts = [part.strip().partition("=") for part in value.split(",") if part.strip()]
        given = {name.strip(): weight.strip() for name, equals, weight in parts if equals}
        wanted = {name.strip(): BY_HANDLERS for name, _, _ in parts} | given
    elif isinstance(value, dict):
        given = wanted = cast("dict[str, object]", value)
    else:
        return value
    for name, weight in given.items():
        if not str(weight).strip("+-0 "):
            raise ValueError(f"{name} has the weight {weight!r}, it must be from 1 to 1000")
    return {queue_name(name): weight for name, weight in wanted.items()}


def _name(value: object) -> object:
    return worker_name(value) if isinstance(value, str) else value


Weight = Annotated[int, Meta(ge=BY_HANDLERS, le=1000)]


class WorkerOptions(Options, frozen=True, kw_only=True):
    """A worker process."""

    concurrency: Annotated[int, Meta(ge=1, le=100_000)] = 100
    """How many jobs run at once, in one process."""
    queues: Annotated[Mapping[str, Weight], FieldInfo(read=_queues)] = {}
    """Queues to serve, with weights (`mails,reports=3`); none = all queues that have a handler."""
    grace: Duration = seconds(25)
    """How long running jobs may continue after SIGTERM before they are given back."""
    lease: Duration = seconds(15)
    """How long a worker may be silent before its jobs are given to others."""
    unhandled_for: Duration = minutes(5)
    """How long a job whose handler is missing is left to other workers before it is dead."""
    name: Annotated[str | None, FieldInfo(read=_name)] = None
    """The worker's name in listings; default: host name, pid and a random suffix."""
    processes: Annotated[int, Meta(ge=1, le=1000)] = 1
    """How many worker processes `towpath worker` runs; each has its own concurrency."""
    metrics_port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    """Port for Prometheus metrics; 0 = off. Several processes use consecutive ports."""
    metrics_host: str = "127.0.0.1"
    """Address for the metrics; 0.0.0.0 = all interfaces."""


DEFAULTS = WorkerOptions()
