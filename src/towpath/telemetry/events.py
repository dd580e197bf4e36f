"""The catalogue of log events: every line that Towpath writes, with its fields and its level.

The events of applications are in their folders, and named by their declarations.

The class is `LogEvent`, not `Event`: `towpath.engine.events.Event` is an event of a job in Redis,
and a worker uses both.

A payload, a result or a secret is never a field. The reference page is made from this module.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

DEBUG, INFO, WARNING, ERROR, CRITICAL = (
    logging.DEBUG,
    logging.INFO,
    logging.WARNING,
    logging.ERROR,
    logging.CRITICAL,
)


class LogEvent(msgspec.Struct, frozen=True):
    """One kind of line: its name, its sentence, its exact fields, and its level.

    The level belongs to the event, so that all places that write it use the same one.
    """

    name: str
    sentence: str
    fields: tuple[str, ...]
    level: int = INFO


class LogEvents(msgspec.Struct, frozen=True):
    """The log events of an application."""

    events: tuple[LogEvent, ...] = ()
    fields: Mapping[str, str] = {}
    """The meaning of each field that only these events have. The other fields are in `FIELDS`."""


FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "address": "The address: host and port, or a URL.",
        "attempt": "Number of the attempt at the job or at sending the event, from 1.",
        "away": "Seconds since the last answer of the server.",
        "blocked": "Seconds for which the event loop was blocked.",
        "code": "A process's exit code; negative = the signal that ended it.",
        "concurrency": "How many jobs the worker runs at a time.",
        "delay": "Seconds until the job may run again.",
        "due": "When the schedule was due.",
        "duty": "The duty: configure, fire or sweep (promote, reap and trim).",
        "ended": "How the attempt was ended: cancelled, killed or abandoned.",
        "error": "The class of the exception.",
        "event_id": "The id of an event of the outbox, the same however often it is sent.",
        "files": "Paths of files.",
        "frozen": "Seconds for which the whole process stood still.",
        "grace": "Seconds that running jobs are given to finish.",
        "handler": "The handler's name.",
        "job": "The job's id.",
        "jobs": "The number of jobs.",
        "key": "The id of an API key.",
        "late": "Seconds between the due time and now.",
        "lease": "Seconds that a worker may be silent before its jobs are given to others.",
        "leases": "The number of leases.",
        "limit": "Seconds that the handler may take.",
        "max_attempts": "How many attempts the job may have.",
        "middleware": "The class of the middleware.",
        "missed": "How many firings were missed.",
        "next_try": "When the next attempt may begin, by the clock of Redis.",
        "pause": "Seconds until the process or the task is started again.",
        "pid": "The id of a process.",
        "place": "File and line of the code.",
        "policy": "What is done about missed firings: skip, once or all.",
        "queue": "The queue's name.",
        "queues": "The names of the queues.",
        "ran": "Seconds from the handler's start to its end.",
        "reason": "The reason, as text; cut at 1,000 characters.",
        "released": "How many jobs were given back unfinished.",
        "request": "Method and path of a request, without its body.",
        "running": "How many handlers were running.",
        "schedule": "The name of the schedule.",
        "server": "The server, without credentials.",
        "silent": "Seconds since the last heartbeat that was accepted.",
        "sink": "The name of the sink.",
        "slots": "How many slots are left.",
        "status": "The status of the response.",
        "task": "The background task: the relay, a courier, a reader of events.",
        "type": "The type of an event of the outbox.",
        "until": "When the job may run again.",
        "uptime": "Seconds since the worker started.",
        "verb": "What the worker asked for: complete, fail, release or renew.",
        "version": "The version of Towpath.",
        "waited": "Seconds from when the job could run to its start.",
        "weight": "The queue's share of free slots, relative to the worker's other queues.",
        "worker": "The worker's name: in every line of a worker.",
    }
)
"""The meaning of each field, which is the same in every event, also in those of applications."""

COMMON = ("worker",)
"""Fields that a `Log` adds to each of its lines; no event declares them."""

# ── start and end of workers ─────────────────────────────────────────────────────────────

WORKER_STARTED = LogEvent(
    "worker.started",
    "The worker is connected and claims jobs.",
    ("queues", "concurrency", "lease", "grace", "server", "version"),
)
WORKER_STOPPING = LogEvent(
    "worker.stopping",
    "The worker was asked to stop: it claims no more jobs and lets running ones finish.",
    ("reason", "running", "grace"),
)
WORKER_STOPPED = LogEvent(
    "worker.stopped",
    "The worker ended. Code 0: all its jobs were settled or released. Code 1: all slots were "
    "lost to threads that do not end. Code 75: it was forced to end; unsettled jobs are "
    "redelivered.",
    ("reason", "code", "jobs", "released", "uptime"),
)

# ── worker processes under one parent ────────────────────────────────────────────────────

WORKER_CHILD_STARTED = LogEvent(
    "worker.child_started",
    "A worker process was started by `towpath worker --processes` or `--reload`.",
    ("pid",),
)
WORKER_CHILD_DIED = LogEvent(
    "worker.child_died",
    "A worker process ended by itself; another is started after a pause.",
    ("pid", "code", "pause"),
    WARNING,
)
RELOAD_CHANGED = LogEvent(
    "reload.changed",
    "Source files changed; the worker stops and starts again with the new code.",
    ("files",),
)
RELOAD_REFUSED = LogEvent(
    "reload.refused",
    "A source file has a syntax error; the worker keeps the old code until it is fixed.",
    ("place", "reason"),
    ERROR,
)
RELOAD_WAITING = LogEvent(
    "reload.waiting",
    "The worker ended by itself; it restarts when a source file changes.",
    ("code",),
    WARNING,
)

# ── jobs and attempts ────────────────────────────────────────────────────────────────────

JOB_SUBMITTED = LogEvent(
    "job.submitted",
    "The store accepted a new job.",
    ("job", "queue", "handler"),
    DEBUG,
)
JOB_STARTED = LogEvent(
    "job.started",
    "The handler was called.",
    ("job", "queue", "handler", "attempt", "waited"),
    DEBUG,
)
JOB_COMPLETED = LogEvent(
    "job.completed",
    "The handler returned, and the job is completed.",
    ("job", "queue", "handler", "attempt", "waited", "ran"),
)
JOB_SKIPPED = LogEvent(
    "job.skipped",
    "The job's record has ended, for example as superseded. No handler was run.",
    ("job", "queue", "handler", "attempt"),
)
JOB_FAILED = LogEvent(
    "job.failed",
    "The handler failed; another attempt was planned.",
    (
        "job", "queue", "handler", "attempt", "max_attempts", "ran", "error", "reason", "delay",
        "next_try",
    ),
    WARNING,
)  # fmt: skip
JOB_DEAD = LogEvent(
    "job.dead",
    "The last attempt failed. The job is kept with its reason until it is retried or deleted.",
    ("job", "queue", "handler", "attempt", "ran", "error", "reason"),
    ERROR,
)
JOB_SNOOZED = LogEvent(
    "job.snoozed",
    "The handler asked to run later; the attempt was given back.",
    ("job", "queue", "handler", "attempt", "ran", "until"),
)
JOB_HANDED_OVER = LogEvent(
    "job.handed_over",
    "The handler handed its lease over: whoever has the token ends the attempt.",
    ("job", "queue", "handler", "attempt", "ran", "until"),
)
JOB_DISCARDED = LogEvent(
    "job.discarded",
    "The handler gave the job up for good; it is dead with the handler's reason.",
    ("job", "queue", "handler", "attempt", "ran", "reason"),
    WARNING,
)
JOB_RELEASED = LogEvent(
    "job.released",
    "The job was given back unfinished; the attempt did not count.",
    ("job", "queue", "handler", "attempt", "reason"),
)
JOB_CANCELLED = LogEvent(
    "job.cancelled",
    "Somebody cancelled the job while it ran; the attempt was stopped.",
    ("job", "queue", "handler", "attempt", "ran"),
)
JOB_LOST = LogEvent(
    "job.lost",
    "The lease was lost while the handler ran. The attempt was stopped; the job is redelivered.",
    ("job", "queue", "handler", "attempt", "ran"),
    WARNING,
)
JOB_STALE_REFUSED = LogEvent(
    "job.stale_refused",
    "The lease was lost before the job was settled; the store refused, and nothing changed.",
    ("job", "queue", "handler", "attempt", "verb"),
    WARNING,
)
JOB_TIMED_OUT = LogEvent(
    "job.timed_out",
    "The handler exceeded its time limit; the attempt was ended.",
    ("job", "queue", "handler", "attempt", "ran", "limit", "ended"),
    WARNING,
)
JOB_REDELIVERED = LogEvent(
    "job.redelivered",
    "The job was redelivered because its worker was silent for too long.",
    ("job", "queue", "handler", "attempt"),
    WARNING,
)

# ── what does not fit ────────────────────────────────────────────────────────────────────

JOB_UNHANDLED = LogEvent(
    "job.unhandled",
    "The job was left to other workers: this one lacks its handler, or has it for another payload"
    " type. Written for one job of a handler per minute.",
    ("job", "queue", "handler", "attempt", "reason"),
    WARNING,
)
HANDLER_NOT_FOUND = LogEvent(
    "handler.not_found",
    "The job died: no live worker had its handler.",
    ("job", "queue", "handler", "attempt"),
    ERROR,
)
PAYLOAD_INVALID = LogEvent(
    "payload.invalid",
    "The payload did not match the handler's type. The reason names fields, never values.",
    ("job", "queue", "handler", "attempt", "reason"),
    ERROR,
)
RESULT_INVALID = LogEvent(
    "result.invalid",
    "The handler's result could not be stored: not JSON, or too large.",
    ("job", "queue", "handler", "attempt", "reason"),
    ERROR,
)
MIDDLEWARE_FAILED = LogEvent(
    "middleware.failed",
    "A middleware raised an error; the attempt failed.",
    ("middleware", "job", "queue", "handler", "attempt", "error", "reason"),
    ERROR,
)

# ── the process ──────────────────────────────────────────────────────────────────────────

SLOT_LOST = LogEvent(
    "slot.lost",
    "A thread did not end at its time limit. Its slot is lost until the thread ends.",
    ("job", "queue", "handler", "ran", "slots"),
    ERROR,
)
SLOTS_EXHAUSTED = LogEvent(
    "slots.exhausted",
    "All slots are lost to threads that do not end; the worker exits to be restarted.",
    ("concurrency",),
    CRITICAL,
)
PROCESS_DIED = LogEvent(
    "process.died",
    "A handler's process died during a job; it was replaced.",
    ("job", "queue", "handler", "attempt", "code"),
    ERROR,
)
LOOP_BLOCKED = LogEvent(
    "loop.blocked",
    "A handler blocks the event loop: async handlers stand still and no job is claimed; leases are "
    "renewed. The job is empty if something other than a handler blocks it.",
    ("blocked", "running", "job", "queue", "handler"),
    WARNING,
)
WORKER_FROZEN = LogEvent(
    "worker.frozen",
    "The whole process stood still, heartbeats included; leases may be lost. It was stopped, "
    "suspended or short of CPU time.",
    ("frozen", "running"),
    WARNING,
)
HEARTBEAT_FAILED = LogEvent(
    "heartbeat.failed",
    "Leases could not be renewed. They are lost if this lasts longer than the lease.",
    ("leases", "silent", "error", "reason"),
    WARNING,
)
SERVER_UNREACHABLE = LogEvent(
    "server.unreachable",
    "The server gave no answer, or can't be used; it is asked again every second.",
    ("server", "error", "reason"),
    ERROR,
)
QUEUE_UNREADABLE = LogEvent(
    "queue.unreadable",
    "An entry in the list of queues could not be read and was left out. Another program or a newer "
    "release wrote it.",
    ("queue", "reason"),
    WARNING,
)
SERVER_BACK = LogEvent("server.back", "The server answered again.", ("server", "away"))
QUEUE_FAILING = LogEvent(
    "queue.failing",
    "Jobs of the queue can't be claimed or settled for now; the worker keeps trying, "
    "and serves its "
    "other queues.",
    ("queue", "server", "error", "reason"),
    ERROR,
)
QUEUE_RECOVERED = LogEvent(
    "queue.recovered",
    "Jobs of the queue are claimed and settled again.",
    ("queue", "server", "away"),
)
METRICS_SERVED = LogEvent("metrics.served", "The worker began to serve its metrics.", ("address",))

# ── the HTTP server ──────────────────────────────────────────────────────────────────────

HTTP_STARTED = LogEvent(
    "http.started", "The HTTP server began to answer requests.", ("address", "version")
)
HTTP_STOPPED = LogEvent(
    "http.stopped",
    "The HTTP server ended; open requests were answered or timed out.",
    ("reason", "uptime"),
)
DASHBOARD_ACTION = LogEvent(
    "dashboard.action",
    "Somebody changed something in the dashboard; `status` is the response.",
    ("key", "request", "status"),
)
API_ACTION = LogEvent(
    "api.action",
    "Somebody changed something through the API; `status` is the response. The data path (submit, "
    "claim, settle, chunks of files) is left out.",
    ("key", "request", "status"),
)
HTTP_DEFECT = LogEvent(
    "http.defect",
    "A request failed with 500 because of a defect. Report it.",
    ("error", "place"),
    ERROR,
)
STORE_RESTARTED = LogEvent(
    "store.restarted",
    "The private server had died; it was started again.",
    ("server",),
    WARNING,
)
STORE_DOWN = LogEvent(
    "store.down",
    "The private server has died and could not be started; another try follows.",
    ("server", "error", "reason", "pause"),
    ERROR,
)
TASK_FAILED = LogEvent(
    "task.failed",
    "A background task failed because of a defect; it is restarted after a pause. Report it.",
    ("task", "error", "place", "pause"),
    ERROR,
)
TASK_INTERRUPTED = LogEvent(
    "task.interrupted",
    "Redis, the database or another system does not answer, or refuses; the background task is "
    "tried again every second.",
    ("task", "error", "code", "place"),
    WARNING,
)
TASK_RECOVERED = LogEvent(
    "task.recovered",
    "A background task that had failed or was interrupted runs again.",
    ("task",),
)

# ── the outbox ───────────────────────────────────────────────────────────────────────────

SINK_UNREACHABLE = LogEvent(
    "sink.unreachable",
    "The sink accepted no events; they are kept and sent later.",
    ("sink", "reason"),
    ERROR,
)
SINK_BACK = LogEvent("sink.back", "The sink accepted events again.", ("sink", "away"))
OUTBOX_DELAYED = LogEvent(
    "outbox.delayed",
    "The sink did not accept the event but accepted others. Later events of its key wait.",
    ("sink", "event_id", "type", "attempt", "reason", "delay"),
    WARNING,
)
OUTBOX_REFUSED = LogEvent(
    "outbox.refused",
    "The sink refused the event for good; the event is kept until you resend or delete it.",
    ("sink", "event_id", "type", "reason"),
    ERROR,
)
OUTBOX_UNREADABLE = LogEvent(
    "outbox.unreadable",
    "The outbox could not be read or written; the courier keeps trying.",
    ("sink", "error", "reason"),
    WARNING,
)

# ── queues, duties, schedules ────────────────────────────────────────────────────────────

QUEUE_CONFIGURED = LogEvent(
    "queue.configured",
    "The queue was given the options that its handlers declare.",
    ("queue", "reason"),
)
LEDGER_DIFFERS = LogEvent(
    "ledger.differs",
    "A worker was found that keeps the records of the queue in another database.",
    ("queue", "reason"),
    WARNING,
)
QUEUE_DELETED = LogEvent(
    "queue.deleted",
    "The queue was empty and unused for a month; it left the list until its next use.",
    ("queue",),
)
QUEUE_ADDED = LogEvent(
    "queue.added",
    "A handler was added: the worker now serves the queue.",
    ("queue", "weight"),
)
QUEUE_REMOVED = LogEvent(
    "queue.removed",
    "The queue's last handler was removed: the worker only finishes its running jobs.",
    ("queue",),
)
DUTY_FAILED = LogEvent(
    "duty.failed",
    "A duty failed; a worker tries it again at the next turn.",
    ("duty", "queue", "error", "reason"),
    WARNING,
)
RECORDS_QUEUED = LogEvent(
    "records.queued",
    "Records that were missing in Redis were queued there. Their submit had not queued them, or "
    "Redis had lost them.",
    ("queue", "jobs", "reason"),
)
RELAY_BLOCKED = LogEvent(
    "relay.blocked",
    "Redis or the database gave no answer; records wait in the database.",
    ("error", "reason"),
    WARNING,
)
RELAY_RECOVERED = LogEvent(
    "relay.recovered",
    "Redis and the database answer again; waiting records are queued.",
    (),
)
RECORD_UNWRITTEN = LogEvent(
    "record.unwritten",
    "The outcome of an attempt could not be written to its record; it is tried again.",
    ("job", "queue", "attempt", "error", "reason"),
    WARNING,
)
SCHEDULE_FIRED = LogEvent(
    "schedule.fired",
    "A schedule was due, and this process submitted its job.",
    ("schedule", "queue", "job", "due", "late"),
)
SCHEDULE_MISSED = LogEvent(
    "schedule.missed",
    "Firings were missed because no process ran; the policy says what was done.",
    ("schedule", "queue", "missed", "policy"),
    WARNING,
)

CATALOGUE: tuple[LogEvent, ...] = tuple(
    event for event in list(globals().values()) if isinstance(event, LogEvent)
)
"""Every event except those of applications, in the order of this file."""
