"""The errors of the core: what happened, what to do, and whether to try again.

The parts beside the core and the applications have theirs in modules of their own, such as
`towpath.ledger.errors`; all of them derive from `TowpathError`. The reference page lists them all.

TowpathError
├── InvalidInput            the caller's value can't be right; nothing was sent
│   ├── InvalidName         a queue, id, lane or worker name
│   ├── InvalidOption       a number, time or choice out of its range
│   ├── PayloadTooLarge
│   ├── PayloadInvalid      a payload that its handler's type does not allow
│   ├── HandlerInvalid      a function that can't be a handler, or a name that is taken
│   ├── MiddlewareInvalid   middleware that did not call what is inside of it exactly once
│   └── SpaceInvalid        a space's name that is taken, or a script that breaks a rule
├── LifespanFailed          the app's lifespan did not start or end as it should
├── EventLoopRunning        a blocking call in a thread that runs an event loop
├── ThreadsPatched          gevent or eventlet has replaced the threads that a blocking call needs
├── SubmitsRefused          some of many jobs were refused; the others were submitted
├── JobError                the job is not in a state for this
│   ├── JobNotFound         never existed, or gone after its retention
│   ├── JobDiffers          the id is that of a job with another payload
│   ├── JobDone · JobDead · JobCancelled
│   ├── JobNotDead          retry is for dead jobs
│   ├── JobNotWaiting       move and set are for jobs that wait
│   ├── JobOpen             delete is for jobs that have ended
│   ├── JobHasRecord        the job's record in the database must be changed instead
│   ├── JobUnfinished       the job ended without a result
│   └── StillOpen           the job did not end within the time
├── LeaseError
│   └── LeaseLost           another worker holds the job, or it waits again
├── QueueError
│   ├── QueueNotFound       there is no queue of that name
│   ├── QueueNotEmpty       the queue holds jobs or schedules, so it is not deleted
│   ├── QueueFull           the length limit is reached
│   ├── QueueDiffers        the queue exists with other options
│   ├── QueueHasNoEvents    the queue keeps no events, so it can't be followed
│   ├── FellBehind          a follower was too slow
│   ├── LaneNotParked
│   ├── FiringTaken         another process fired the schedule first
│   ├── NotYet              a firing before its time
│   ├── ScheduleNotFound    the queue has no schedule of that name
│   ├── ScheduleDeclared    the schedule is declared by code
│   ├── ScheduleChanged     another request changed the schedule meanwhile
│   ├── ScheduleUnreadable  another release made the schedule
│   └── SchedulesFull       the number of schedules is limited
└── ServerError             Redis can't do it
    ├── EngineClosed        the engine was left
    ├── ServerUnreachable   no answer within the time limit
    ├── ServerRefused       an answer that is an error
    │   ├── LayoutDiffers   another version of Towpath wrote the queue in another form
    │   └── WrongKeyType    another program put a key where Towpath keeps its data
    ├── TlsFailed           a certificate is refused, or one side speaks no TLS
    ├── MemoryFull          the memory limit of Redis is reached
    ├── EvictionUnsafe      Redis may delete live jobs
    ├── DurabilityUnknown · DurabilityUnavailable · DurabilityNotReached
    ├── OptionsUnstable     other programs change a queue's options all the time
    ├── CallStale           a newer call of the channel came first
    ├── CallTaken           the call's name was used for another verb
    └── ScriptDefect        the engine does not understand a script's answer
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar, Self


class RetryAdvice(StrEnum):
    """Whether doing the same again can help."""

    NEVER = "never"
    LATER = "later"
    SAFE = "safe"
    """The outcome is unknown; repeating it with the same job id adds nothing."""


class TowpathError(Exception):
    """The base class of all errors: a stable `code`, and a `remedy` that says what to do."""

    code: ClassVar[str] = "towpath_error"
    remedy: ClassVar[str] = "Read the message: it says what is wrong."
    retry: ClassVar[RetryAdvice] = RetryAdvice.NEVER
    external: ClassVar[bool] = False
    """Whether the cause is in another system: Redis, the database, an object store, a receiver. A
    background task that ends with such an error has no defect."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.add_note(f"What to do: {self.remedy}")  # shown below the error in a traceback

    @property
    def facts(self) -> Mapping[str, Any]:
        """Facts that a caller may act on, by name; every answer has them beside the message."""
        return {}

    @property
    def after_s(self) -> int:
        """Seconds to wait before a repeat, if a repeat can help."""
        return 1


class SubmitsRefused(TowpathError, ExceptionGroup[TowpathError]):
    """Some of the jobs of a `submit_many` were refused; the others were submitted.

    *taken* has the jobs and *refused* the errors, both by their place in what was given. A group:
    `except* QueueFull` sees those that were refused for that reason.
    """

    code = "submits_refused"
    remedy = (
        "Read the reasons in `refused`, then submit those jobs again. `taken` has the jobs that "
        "were submitted."
    )

    def __new__(
        cls, queue: str, taken: Mapping[int, Any], refused: Mapping[int, TowpathError]
    ) -> Self:
        first = next(iter(refused.values()))
        text = f"queue {queue}: {len(refused)} of {len(taken) + len(refused)} jobs were refused"
        return super().__new__(cls, f"{text}: {first}", list(refused.values()))

    def __init__(
        self, queue: str, taken: Mapping[int, Any], refused: Mapping[int, TowpathError]
    ) -> None:
        super().__init__(self.args[0], list(refused.values()))
        self.queue, self.taken, self.refused = queue, dict(taken), dict(refused)

    def derive(self, excs: Sequence[TowpathError]) -> ExceptionGroup[TowpathError]:  # pyright: ignore[reportIncompatibleMethodOverride] -- what is split off is a plain group
        return ExceptionGroup(self.message, excs)


# ── the caller's values ──────────────────────────────────────────────────────────────────


class InvalidInput(TowpathError, ValueError):
    """A value is not valid; nothing was sent to the server."""

    code = "invalid_input"


class InvalidName(InvalidInput):
    """The name of a queue, a job, a lane or a worker is not valid."""

    code = "invalid_name"
    remedy = "Choose a name that follows the rule in the message."

    def __init__(self, kind: str, value: object, *, rule: str) -> None:
        shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "…'"
        super().__init__(f"{kind} {shown}: {rule}")
        self.kind, self.value, self.rule = kind, value, rule


class InvalidOption(InvalidInput):
    """A number, time or choice is out of range."""

    code = "invalid_option"
    remedy = "Choose a value that follows the rule in the message."

    def __init__(self, option: str, value: object, *, rule: str) -> None:
        super().__init__(f"{option} = {_format_value(value)}: {rule}")
        self.option, self.value, self.rule = option, value, rule


def _format_value(value: object) -> str:
    match value:
        case timedelta():  # repr shows minus five seconds as minus a day, plus some hours
            return f"{value.total_seconds():g} s"
        case datetime():
            return value.isoformat()
        case _:
            return repr(value)


class PayloadTooLarge(InvalidInput):
    """A payload, result, note or reason is too large."""

    code = "payload_too_large"
    remedy = "Store the data elsewhere and submit a reference, or raise the queue's `max_payload`."

    def __init__(self, what: str, size: int, *, limit: int) -> None:
        super().__init__(f"{what} of {size} bytes: the limit is {limit} bytes")
        self.what, self.size, self.limit = what, size, limit


class PayloadInvalid(InvalidInput):
    """A payload or a result does not match the handler's types."""

    code = "payload_invalid"
    remedy = "Pass a payload that matches the handler's annotations, or change them."

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(f"{what}: {problem}")
        self.what, self.problem = what, problem


class HandlerInvalid(InvalidInput):
    """The function can't be a handler, or its name is taken."""

    code = "handler_invalid"
    remedy = "Follow the rule in the message; `name=` tells two handlers of one queue apart."

    def __init__(self, handler: str, *, rule: str) -> None:
        super().__init__(f"handler {handler}: {rule}")
        self.handler, self.rule = handler, rule


# ── jobs and leases ──────────────────────────────────────────────────────────────────────


class MiddlewareInvalid(InvalidInput):
    """Middleware that can't be called, did not call `call_next` exactly once, or hid its result."""

    code = "middleware_invalid"
    remedy = (
        "Write the middleware as `async def name(ctx, call_next)`, and await call_next() exactly"
        " once. To refuse, raise an exception."
    )

    def __init__(self, name: str, *, rule: str) -> None:
        super().__init__(f"middleware {name} {rule}")
        self.name, self.rule = name, rule


class LifespanFailed(TowpathError):
    """The app's `lifespan` did not start or end as it should; no job was running."""

    code = "lifespan_failed"
    remedy = (
        "Fix the cause in the message. The function takes no arguments, yields exactly once, then"
        " returns."
    )

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"lifespan {name} {problem}")
        self.name, self.problem = name, problem


class SpaceInvalid(InvalidInput):
    """The name of a space is taken, or one of its scripts breaks a rule."""

    code = "space_invalid"
    remedy = "Correct the name or the script that the message names."

    def __init__(self, subject: str, rule: str) -> None:
        super().__init__(f"{subject}: {rule}")
        self.subject, self.rule = subject, rule


class JobError(TowpathError):
    """The job's state does not allow this; nothing was changed."""

    code = "job_error"

    def __init__(self, job: object, message: str) -> None:
        super().__init__(f"job {job}: {message}")
        self.job = job


class JobNotFound(JobError):
    """The job never existed, or it ended and is no longer kept."""

    code = "job_not_found"
    remedy = (
        "Check the queue and the id. Finished jobs are deleted after the queue's `keep` time; "
        "raise it to keep them longer."
    )

    def __init__(self, job: object, *, no_queue: QueueNotFound | None = None) -> None:
        super().__init__(job, f"not found; {no_queue}" if no_queue else "not found")
        self.near = no_queue.near if no_queue else None
        """The queue whose name is close, if the job's queue does not exist."""

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"did_you_mean": self.near} if self.near else {}


class JobDiffers(JobError):
    """A job of that id exists, with another payload; nothing was changed."""

    code = "job_differs"
    remedy = (
        "Use another id, or send the same payload. To keep the existing job:"
        ' `on_conflict="keep"` in Python, `--keep-existing` on the command line.'
    )
    what: ClassVar[str] = "exists with another payload"

    def __init__(self, job: object) -> None:
        super().__init__(job, self.what)


class JobDone(JobError):
    """The job is already completed."""

    code = "job_done"
    remedy = "No action needed: the job is completed. Submit a new one to run it again."

    def __init__(self, job: object) -> None:
        super().__init__(job, "already completed")


class JobDead(JobError):
    """The job has used up its attempts, or was given up."""

    code = "job_dead"
    remedy = "Read the job's reason. `retry` gives it new attempts, `delete` deletes it."

    def __init__(self, job: object) -> None:
        super().__init__(job, "dead")


class JobCancelled(JobError):
    """The job is already cancelled."""

    code = "job_cancelled"
    remedy = "Stop working on the job. To run it after all, submit a new one."

    def __init__(self, job: object) -> None:
        super().__init__(job, "cancelled")


class JobNotDead(JobError):
    """Only dead jobs can be retried."""

    code = "job_not_dead"
    remedy = "No action needed: only dead jobs can be retried."

    def __init__(self, job: object, state: str) -> None:
        super().__init__(job, f"is {state}, not dead")
        self.state = state


class JobNotWaiting(JobError):
    """Only a job that waits (ready, delayed, or behind its lane) can be moved or replaced."""

    code = "job_not_waiting"
    remedy = "Wait until the job ends, or cancel it first. `set` replaces one that has ended."

    def __init__(self, job: object, state: str) -> None:
        super().__init__(job, f"is {state}; only a job that waits can be moved or replaced")
        self.state = state


class JobOpen(JobError):
    """Only jobs that have ended can be deleted."""

    code = "job_open"
    remedy = "Cancel the job first, or wait until it ends."

    def __init__(self, job: object, state: str) -> None:
        super().__init__(job, f"is {state}; only an ended job can be deleted")
        self.state = state


class JobHasRecord(JobError):
    """The job's record in the database decides; only a change of the record changes the job."""

    code = "job_has_record"
    remedy = (
        "Set `database` (TOWPATH_DATABASE) to the database that the queue's workers use; then"
        " commands, the HTTP API and the dashboard change the record. In Python use the handler's"
        " job, or `ledger.jobs`."
    )

    def __init__(self, job: object, record: str) -> None:
        super().__init__(job, f"has a record ({record}), which must be changed instead")
        self.record = record


class StillOpen(JobError):
    """The job did not end within the given time; it goes on."""

    code = "still_open"
    remedy = "Wait again. `engine.inspect.explain` says why the job is not running."
    retry = RetryAdvice.LATER

    def __init__(self, job: object, within: object) -> None:
        super().__init__(job, f"did not end within {within}")


class JobUnfinished(JobError):
    """The job ended without a result: dead or cancelled."""

    code = "job_unfinished"
    remedy = "Read the job's reason. `retry` gives a dead job new attempts."

    def __init__(self, job: object, state: str, reason: str | None) -> None:
        super().__init__(job, f"is {state}, so it has no result: {reason or 'no reason'}")
        self.state, self.reason = state, reason


class NotOwned(TowpathError):
    """It was made by another owner, or without an API key; nothing was changed."""

    code = "not_owner"
    remedy = "Use a key of its owner, or one with the scope `manage`."

    def __init__(self, what: object) -> None:
        super().__init__(f"{what} does not belong to the owner of this key")


class LeaseError(TowpathError):
    """The lease does not allow this."""

    code = "lease_error"


class LeaseLost(LeaseError):
    """Another worker holds the job now, or it waits again; nothing was changed.

    The message has no token but the one that the caller sent: *current* proves who holds the job.
    """

    code = "lease_lost"
    remedy = "Stop this attempt and discard its result; the job runs under a newer lease."

    def __init__(self, job: object, *, held: int, current: int, worker: str, state: str) -> None:
        where = f"worker {worker}" if state == "leased" else f"the job is {state} again"
        super().__init__(f"job {job}: token {held} is no longer valid ({where})")
        self.job, self.held, self.current = job, held, current
        self.worker, self.state = worker, state


# ── queues ───────────────────────────────────────────────────────────────────────────────


class QueueError(TowpathError):
    """The queue does not allow this."""

    code = "queue_error"


class QueueNotFound(QueueError):
    """There is no queue of that name; nothing was changed."""

    code = "queue_not_found"
    remedy = "Run `towpath queues` to list queues; a submit creates a new one."

    def __init__(self, queue: str, known: Iterable[str]) -> None:
        self.queue, self.near = queue, closest_name(queue, known)
        hint = f"; did you mean {self.near}?" if self.near else ""
        super().__init__(f"no queue {queue}{hint}")

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"did_you_mean": self.near} if self.near else {}


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """The name among *known* that is most similar to *name*; None if none is."""
    from difflib import get_close_matches  # noqa: PLC0415 -- only mistakes need it
    from itertools import islice  # noqa: PLC0415 -- the same

    # A comparison takes some 20 µs, and there may be tens of thousands of queues.
    similar = (other for other in known if abs(len(other) - len(name)) <= _LENGTH_DIFFERENCE)
    return next(iter(get_close_matches(name, list(islice(similar, 1000)), n=1)), None)


_LENGTH_DIFFERENCE = 4
"""Maximum difference in length between a mistyped name and a suggestion."""


class QueueNotEmpty(QueueError):
    """The queue holds jobs or schedules; nothing was deleted."""

    code = "queue_not_empty"
    remedy = (
        "`towpath queues purge` deletes its jobs, except those that are running: cancel them with"
        " `towpath jobs cancel`, or wait. `towpath schedules delete` deletes a schedule."
    )

    def __init__(self, queue: str, held: Mapping[str, int]) -> None:
        parts = ", ".join(f"{count} {what}" for what, count in held.items() if count)
        super().__init__(f"queue {queue} is not empty: {parts or 'it is being used'}")
        self.queue, self.held = queue, dict(held)

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"held": self.held}


class QueueFull(QueueError):
    """The queue has reached its limit of waiting jobs."""

    code = "queue_full"
    remedy = "Submit again later, add workers, or raise the queue's `max_length`."
    retry = RetryAdvice.LATER

    def __init__(self, queue: str, length: int) -> None:
        super().__init__(f"queue {queue} is full: {length} jobs wait")
        self.queue, self.length = queue, length


class QueueDiffers(QueueError):
    """The queue exists with other options."""

    code = "queue_differs"
    remedy = (
        "Use the stored options everywhere, or change them once with `engine.queues.reconfigure`."
    )

    def __init__(self, queue: str, differences: str) -> None:
        super().__init__(f"queue {queue} has other options: {differences}")
        self.queue, self.differences = queue, differences


class QueueHasNoEvents(QueueError):
    """The queue keeps no events, so nobody can follow it or wait for a result."""

    code = "queue_has_no_events"
    remedy = "Set the queue's option `events` to `followed` or `all`."

    def __init__(self, queue: str) -> None:
        super().__init__(f"queue {queue} keeps no events")
        self.queue = queue


class FellBehind(QueueError):
    """Events are missing: nobody followed the queue when they happened, a follower read more slowly
    than they came, or Redis lost some.
    """

    code = "fell_behind"
    remedy = "Continue reading; look at the jobs themselves for what is missing."
    retry = RetryAdvice.LATER

    def __init__(self, text: str, *, cursor: str = "") -> None:
        super().__init__(text)
        self.cursor = cursor
        """From `events.list`: pass it as `after` to get the events behind the gap."""


class LaneNotParked(QueueError):
    """Only a lane that is blocked by a dead job can be unblocked."""

    code = "lane_not_parked"
    remedy = "No action needed: the lane is free, or its head is running."

    def __init__(self, queue: str, lane: str) -> None:
        super().__init__(f"lane {lane} of queue {queue} is not parked")
        self.queue, self.lane = queue, lane


class FiringTaken(QueueError):
    """Another process has fired the schedule meanwhile; nothing was done."""

    code = "firing_taken"
    remedy = "No action needed: each firing happens once. Continue from `last` of this error."

    def __init__(self, queue: str, name: str, last: datetime | None) -> None:
        known = f"was last fired for {last}" if last else "is unknown"
        super().__init__(f"schedule {name} of queue {queue} {known}")
        self.queue, self.name, self.last = queue, name, last


class NotYet(QueueError):
    """By the server's clock, the firing is not due yet; nothing was done."""

    code = "not_yet"
    remedy = "Wait until that time by the server's clock."
    retry = RetryAdvice.LATER

    def __init__(self, queue: str, name: str, *, upto: datetime, now: datetime) -> None:
        super().__init__(f"schedule {name} of queue {queue}: not due before {upto}; now: {now}")
        self.queue, self.name, self.upto, self.now = queue, name, upto, now


class _OfASchedule(QueueError):
    _what: ClassVar[str]

    def __init__(self, queue: str, name: str) -> None:
        super().__init__(f"schedule {name} of queue {queue}: {self._what}")
        self.queue, self.name = queue, name


class ScheduleNotFound(_OfASchedule):
    """The queue has no schedule of that name."""

    code = "schedule_not_found"
    remedy = "Check the queue and the name. `towpath schedules` lists all schedules."
    _what = "not found"


class ScheduleDeclared(_OfASchedule):
    """The schedule is declared by code; nothing was changed."""

    code = "schedule_declared"
    remedy = (
        "Change it where the code declares it, or choose another name. If no code declares it any"
        " more, `towpath schedules delete --declared` frees the name."
    )
    _what = "is declared by code"


class ScheduleChanged(_OfASchedule):
    """The schedule was changed or deleted meanwhile; nothing was done."""

    code = "schedule_changed"
    remedy = "Read the schedule again, then repeat the change."
    retry = RetryAdvice.LATER
    _what = "it was changed by another request"


class ScheduleUnreadable(_OfASchedule):
    """Another release made the schedule, and this one can't read it; nothing was changed."""

    code = "schedule_unreadable"
    remedy = "Use the newer release for this schedule, or delete it and create it again."
    _what = "this release can't read it"


class SchedulesFull(QueueError):
    """The limit of schedules is reached; nothing was stored."""

    code = "schedules_full"
    remedy = "Delete schedules that are no longer needed."

    def __init__(self, where: str, most: int) -> None:
        super().__init__(f"{where}: the limit of {most} schedules is reached")
        self.most = most


# ── the server ───────────────────────────────────────────────────────────────────────────


class ServerError(TowpathError):
    """The store can't do what was asked."""

    code = "server_error"
    external = True


class EngineClosed(ServerError):
    """The engine is closed, and so are its connections."""

    code = "engine_closed"
    external = False
    remedy = "Use the engine inside `async with Engine(…)` or `async with app`, or open a new one."


class EventLoopRunning(TowpathError):
    """A blocking call was made in a thread that runs an event loop, which it would stop."""

    code = "event_loop_running"
    remedy = (
        "Use `await handler.submit(…)` and the methods of its job in code that runs on an event "
        "loop, or call `handler.blocking` in a thread: `await asyncio.to_thread(…)`."
    )

    def __init__(self) -> None:
        super().__init__("a blocking call would stop the event loop that runs in this thread")


class ThreadsPatched(TowpathError):
    """A blocking call needs real threads, and gevent or eventlet has replaced them, or replaced
    them after Towpath was imported.
    """

    code = "threads_patched"
    remedy = (
        "Patch the standard library before you import Towpath. Submit jobs with a record or with "
        "middleware, and use `timers.blocking` and `app.blocking.run`, in a process without gevent "
        "and eventlet."
    )

    def __init__(self, library: str, reason: str) -> None:
        self.library = library
        super().__init__(f"{library} has replaced threads {reason}")


class ServerUnreachable(ServerError):
    """No answer within the time limit. A change may or may not have been made."""

    code = "server_unreachable"
    remedy = (
        "Check that the server runs and that the URL is right, then try again. A submit that is "
        "repeated with the same job id adds no second job."
    )
    retry = RetryAdvice.SAFE


class ServerRefused(ServerError):
    """The server answered with an error of its own."""

    code = "server_refused"
    remedy = "Read the server's message. Check the user, its permissions and the server's version."


class LayoutDiffers(ServerRefused):
    """Another version of Towpath wrote the queue's data in another layout. Nothing was changed.

    *layout* is the number of the layout that this version writes.
    """

    code = "layout_differs"
    remedy = (
        "Use the version of Towpath that wrote the queue until all its jobs have ended. Then "
        "delete its keys (`{<queue>}:*`) and its entry (`HDEL towpath:queues <queue>`), or use an "
        'empty Redis. "Upgrade between versions" in the documentation says which versions read '
        "each other's data."
    )

    def __init__(self, queue: str, layout: int) -> None:
        super().__init__(f"the data of queue {queue} has another layout than {layout}")
        self.queue, self.layout = queue, layout


class WrongKeyType(ServerRefused):
    """A key has another type than Towpath gives it: another program wrote it. Nothing was changed.

    *keys* is how the names of the keys begin that the call was about.
    """

    code = "wrong_key_type"
    remedy = (
        "Look at the keys with `TYPE` in redis-cli, and rename or delete the one that Towpath did "
        "not write. Give other programs a database or a prefix of their own."
    )

    def __init__(self, keys: str) -> None:
        super().__init__(f"one of the keys {keys}* has a type that Towpath does not give it")
        self.keys = keys


class TlsFailed(ServerError):
    """No encrypted connection could be made to the server."""

    code = "tls_failed"
    remedy = (
        "Set `tls.ca` to the authority that signed the server's certificate. If the server asks "
        "for a client certificate, set `tls.cert` and `tls.key`. Without TLS, use redis://."
    )


class MemoryFull(ServerError):
    """The server's memory limit is reached; nothing was written."""

    code = "memory_full"
    remedy = "Add workers to empty the queues, raise `maxmemory`, or shorten `keep`."
    retry = RetryAdvice.LATER


class EvictionUnsafe(ServerError):
    """The server may evict keys when memory is full: live jobs would vanish."""

    code = "eviction_unsafe"
    remedy = (
        "Run `CONFIG SET maxmemory-policy noeviction`, and set it in the server's configuration."
    )

    def __init__(self, policy: str) -> None:
        super().__init__(f"the server's maxmemory-policy is {policy}, not noeviction")
        self.policy = policy


class DurabilityUnknown(ServerError):
    """The server does not say how durable it is."""

    code = "durability_unknown"
    remedy = (
        "Declare the class with the `durability` setting or `?durability=…` in the URL, or allow "
        "CONFIG GET for this user."
    )


class DurabilityUnavailable(ServerError):
    """The server can't offer the durability class that was asked for; nothing was sent."""

    code = "durability_unavailable"
    remedy = (
        "Set `appendonly yes` and `appendfsync always`, add replicas, or ask for a lower class."
    )

    def __init__(self, wanted: str, has: str) -> None:
        super().__init__(f"durability {wanted} was asked for, but the server offers {has}")
        self.wanted, self.has = wanted, has


class DurabilityNotReached(ServerError):
    """The job exists, but fewer replicas than asked for confirmed it in time."""

    code = "durability_not_reached"
    remedy = "Check the replicas; then repeat the submit with the same job id."
    retry = RetryAdvice.SAFE

    def __init__(self, wanted: int, confirmed: int) -> None:
        super().__init__(f"{confirmed} of {wanted} replicas confirmed in time")
        self.wanted, self.confirmed = wanted, confirmed


class CallStale(ServerError):
    """A newer call of the same channel was answered before this one arrived."""

    code = "call_stale"
    external = False
    remedy = (
        "Use each call number once, in rising order. Read the job's state to see what happened."
    )

    def __init__(self, last: int) -> None:
        super().__init__(f"the channel has already made call {last}")
        self.last = last


class CallTaken(ServerError):
    """This call number was used for another call; nothing was done."""

    code = "call_taken"
    external = False
    remedy = "Use each call number once per channel, whatever the verb."


class OptionsUnstable(ServerError):
    """The queue's options changed again before each of several tries; nothing was done."""

    code = "options_unstable"
    remedy = "Find the programs that configure the queue again and again; then try again."
    retry = RetryAdvice.LATER

    def __init__(self, queue: str) -> None:
        super().__init__(f"the options of queue {queue} change with every call")
        self.queue = queue


class ScriptDefect(ServerError):
    """The engine does not understand a script's answer: engine and scripts do not match."""

    code = "script_defect"
    external = False
    remedy = "Report this message. No partial change was made."
