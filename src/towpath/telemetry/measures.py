"""The catalogue of metrics, each with a question that it answers; the source of its reference page.

Labels are `queue` and `handler`, `sink` for the outbox, and `state` for a metric by states. A job,
a lane or a user is never a label, because their number has no bound.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricSpec(msgspec.Struct, frozen=True):
    """One metric: what it measures, and the question that it answers."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    sentence: str
    question: str


PER_HANDLER = ("queue", "handler")
_PER_SINK = ("sink",)


def _counter(name: str, sentence: str, question: str) -> MetricSpec:
    return MetricSpec(f"towpath_{name}_total", MetricKind.COUNTER, PER_HANDLER, sentence, question)


def _histogram(name: str, sentence: str, question: str) -> MetricSpec:
    return MetricSpec(
        f"towpath_{name}_seconds", MetricKind.HISTOGRAM, PER_HANDLER, sentence, question
    )


def _gauge(name: str, labels: tuple[str, ...], sentence: str, question: str) -> MetricSpec:
    return MetricSpec(f"towpath_{name}", MetricKind.GAUGE, labels, sentence, question)


SUBMITTED = _counter(
    "jobs_submitted",
    "Jobs that this process submitted and the store accepted.",
    "How much work comes in? Compare its rate with that of completed jobs.",
)
STARTED = _counter(
    "jobs_started",
    "Attempts that began.",
    "How many attempts does a job need? Divide by completed jobs.",
)
COMPLETED = _counter(
    "jobs_completed",
    "Jobs whose handler returned and whose end the store accepted.",
    "How much work gets done?",
)
FAILED = _counter(
    "jobs_failed",
    "Attempts that failed; another one was planned, or the job died.",
    "Which handler is failing, and since when?",
)
DEAD = _counter(
    "jobs_dead",
    "Jobs that this process gave up: their last attempt failed, or the handler discarded them.",
    "Do dead jobs need attention? Alert on any increase.",
)
SNOOZED = _counter(
    "jobs_snoozed",
    "Attempts that asked to run later.",
    "Which jobs are postponed again and again?",
)
UNHANDLED = _counter(
    "jobs_unhandled",
    "Jobs left to other workers: this one lacks the handler, or has it for another payload type.",
    "Does a deploy lack a handler? Normal during a rolling deploy; alert if it lasts.",
)
HANDED_OVER = _counter(
    "jobs_handed_over",
    "Attempts whose lease was handed over to somebody else.",
    "How much of the work ends elsewhere?",
)
RELEASED = _counter(
    "jobs_released",
    "Jobs given back unfinished; the attempt did not count.",
    "Is the grace time of a restart long enough for the handlers?",
)
CANCELLED = _counter(
    "jobs_cancelled",
    "Attempts that were stopped because somebody cancelled the job.",
    "How much work is cancelled after it began?",
)
TIMED_OUT = _counter(
    "jobs_timed_out",
    "Attempts that were ended at the handler's time limit.",
    "Which handler hangs?",
)
REDELIVERED = _counter(
    "jobs_redelivered",
    "Jobs that were redelivered because their worker was silent for too long.",
    "Do workers crash or stall?",
)
LOST = _counter(
    "leases_lost",
    "Attempts that were stopped because their lease was lost.",
    "Are this worker's heartbeats too late?",
)
STALE_REFUSED = _counter(
    "jobs_stale_refused",
    "Settlements that the store refused because the lease was no longer held.",
    "How often would work have been done twice without the token?",
)

JOB_SECONDS = _histogram(
    "job", "Seconds from a handler's start to its end.", "How long do the handlers take?"
)
WAIT_SECONDS = _histogram(
    "wait",
    "Seconds from when a job could run to its handler's start.",
    "Are there enough workers?",
)
PUNCTUALITY_SECONDS = _histogram(
    "punctuality",
    "Seconds from the due time of a delayed job to its handler's start.",
    "Does work start on time?",
)

QUEUE_DEPTH = _gauge(
    "queue_depth",
    ("queue", "state"),
    "Jobs of the queue by state: ready, delayed, waiting, leased, dead.",
    "Does work pile up? Scale by `ready`, never by the sum: delayed jobs need no worker yet.",
)
OLDEST_SECONDS = _gauge(
    "oldest_seconds",
    ("queue",),
    "Age of the oldest ready job; 0 if there is none.",
    "How far behind is the queue? Alert on this one: it works for fast and slow queues.",
)
LEASES_ACTIVE = _gauge(
    "leases_active",
    ("queue",),
    "Leases that this worker holds.",
    "What is this worker busy with?",
)
SLOTS = _gauge(
    "slots",
    ("state",),
    "Slots of this worker by state: busy, free, lost.",
    "Is this worker full? Has it lost slots to threads that do not end?",
)
SCHEDULES_FIRED = MetricSpec(
    "towpath_schedules_fired_total",
    MetricKind.COUNTER,
    ("queue",),
    "Firings of schedules by this process, also of schedules declared in code.",
    "Are schedules fired, and by which process?",
)
SCHEDULES_MISSED = MetricSpec(
    "towpath_schedules_missed_total",
    MetricKind.COUNTER,
    ("queue",),
    "Firings that no process made in time.",
    "Was no worker or server running? Alert on any increase.",
)
OUTBOX_SENT = MetricSpec(
    "towpath_outbox_sent_total",
    MetricKind.COUNTER,
    _PER_SINK,
    "Events that this process sent and the sink accepted.",
    "Are events sent?",
)
OUTBOX_REFUSED = MetricSpec(
    "towpath_outbox_refused_total",
    MetricKind.COUNTER,
    _PER_SINK,
    "Events that the sink refused for good; they were set aside.",
    "Do refused events need attention? Alert on any increase.",
)
OUTBOX_EVENTS = _gauge(
    "outbox_events",
    ("sink", "state"),
    "Events in the outbox by state: pending, refused.",
    "Do events pile up, and how many are set aside?",
)
OUTBOX_LAG = _gauge(
    "outbox_lag_seconds",
    _PER_SINK,
    "How long the oldest pending event has waited; 0 if there is none.",
    "How far behind is the sink? Alert on this one.",
)
READABLE = _gauge(
    "queues_readable",
    (),
    "1 if the queues and the outbox could be read for this scrape, 0 if not.",
    "Are the gauges above up to date, and does the worker reach its server?",
)

CATALOGUE: tuple[MetricSpec, ...] = tuple(
    spec for spec in list(globals().values()) if isinstance(spec, MetricSpec)
)
"""Every metric, in the order of this file."""
