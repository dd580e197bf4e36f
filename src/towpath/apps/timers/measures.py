"""What timers count, beside their jobs."""

from __future__ import annotations

from towpath.telemetry.measures import Kind, MetricSpec

LATE = MetricSpec(
    "towpath_timers_late_seconds",
    Kind.HISTOGRAM,
    ("queue",),
    "Seconds from the due time of a timer to the start of its attempt.",
    "Do timers run when they are due?",
)
FIRED = MetricSpec(
    "towpath_timers_fired_total",
    Kind.COUNTER,
    ("queue", "state"),
    "Attempts at timers, by what came of them: done, failed, dead, cancelled, lost, released, "
    "handed_over.",
    "Which timers fail, and since when?",
)
CALLS = MetricSpec(
    "towpath_timers_calls_total",
    Kind.COUNTER,
    ("state",),
    "Calls to instances of applications, by what came of them: done, handed_over, dead, elsewhere "
    "(refused: another instance is called), later, unreached.",
    "Do the applications take their timers?",
)
INSTANCES = MetricSpec(
    "towpath_timers_instances",
    Kind.GAUGE,
    (),
    "Instances of applications that are alive, as the scheduler in this process sees it.",
    "Is there anybody to call?",
)
BREAKERS_OPEN = MetricSpec(
    "towpath_timers_breakers_open",
    Kind.GAUGE,
    (),
    "Instances that the scheduler in this process does not call, for a type or for all.",
    "Do instances fail that say they are alive?",
)
