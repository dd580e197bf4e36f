"""The metrics of timers, beside those of their jobs."""

from __future__ import annotations

from towpath.telemetry.measures import MetricKind, MetricSpec

LATE = MetricSpec(
    "towpath_timers_late_seconds",
    MetricKind.HISTOGRAM,
    ("queue",),
    "Seconds from the due time of a timer to the start of its attempt.",
    "Do timers run when they are due?",
)
FIRED = MetricSpec(
    "towpath_timers_fired_total",
    MetricKind.COUNTER,
    ("queue", "state"),
    "Attempts at timers, by result: done, failed, dead, cancelled, lost, released, handed_over.",
    "Which timers fail, and since when?",
)
CALLS = MetricSpec(
    "towpath_timers_calls_total",
    MetricKind.COUNTER,
    ("state",),
    "Calls to instances of applications, by result: done, handed_over, dead, elsewhere (refused: "
    "another instance is called), later, unreached.",
    "Do the applications accept their timers?",
)
INSTANCES = MetricSpec(
    "towpath_timers_instances",
    MetricKind.GAUGE,
    (),
    "Live instances of applications, as seen by the scheduler in this process.",
    "Is any instance alive?",
)
BREAKERS_OPEN = MetricSpec(
    "towpath_timers_breakers_open",
    MetricKind.GAUGE,
    (),
    "Instances that the scheduler in this process avoids, for one type or all.",
    "Do live instances fail?",
)
