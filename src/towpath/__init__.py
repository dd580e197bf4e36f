"""Towpath: a broker for work that must be done once, in order and on time.

The names are looked up when they are first used: who runs `towpath --help` or imports a part of
the package does not wait for the rest of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from towpath.app.app import Towpath
    from towpath.app.blocking import BlockingEngine
    from towpath.app.handlers import Handlers
    from towpath.app.job import BlockingJob, Job
    from towpath.app.submission import Draft, Submission, SubmitMiddleware
    from towpath.app.submitting import AppHandler
    from towpath.clock import Duration, ManualClock, days, hours, milliseconds, minutes, seconds
    from towpath.engine.channel import Limits
    from towpath.engine.durability import Durability, ServerFacts
    from towpath.engine.engine import Engine
    from towpath.engine.events import Event
    from towpath.engine.explain import Explanation, Position, Why
    from towpath.engine.inspect import Counts, Page
    from towpath.engine.model import (
        HIGH,
        LOW,
        NORMAL,
        Bury,
        Call,
        Complete,
        Exchanged,
        Fail,
        Failure,
        JobInfo,
        JobOptions,
        JobRef,
        Lease,
        NewJob,
        Outcome,
        Placed,
        Release,
        Renew,
        Settlement,
        Submitted,
        job_ref,
        new_job,
    )
    from towpath.engine.options import LanePolicy, QueueOptions
    from towpath.engine.retry import Exponential, Fixed, Listed, Never, RetryPolicy
    from towpath.engine.schedule import Cron, Every, Missed
    from towpath.engine.states import State
    from towpath.errors import FellBehind, TowpathError
    from towpath.worker.context import (
        AttemptStopped,
        Context,
        Discard,
        HandOver,
        Retry,
        Snooze,
    )
    from towpath.worker.handler import HandlerOptions
    from towpath.worker.middleware import AttemptMiddleware, CallNext, Middleware
    from towpath.worker.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "HIGH",
    "LOW",
    "NORMAL",
    "AppHandler",
    "AttemptMiddleware",
    "AttemptStopped",
    "BlockingEngine",
    "BlockingJob",
    "Bury",
    "Call",
    "CallNext",
    "Complete",
    "Context",
    "Counts",
    "Cron",
    "Discard",
    "Draft",
    "Durability",
    "Duration",
    "Engine",
    "Event",
    "Every",
    "Exchanged",
    "Explanation",
    "Exponential",
    "Fail",
    "Failure",
    "FellBehind",
    "Fixed",
    "HandOver",
    "HandlerOptions",
    "Handlers",
    "Job",
    "JobInfo",
    "JobOptions",
    "JobRef",
    "LanePolicy",
    "Lease",
    "Limits",
    "Listed",
    "ManualClock",
    "Middleware",
    "Missed",
    "Never",
    "NewJob",
    "Outcome",
    "Page",
    "Placed",
    "Position",
    "QueueOptions",
    "Release",
    "Renew",
    "Retry",
    "RetryPolicy",
    "ServerFacts",
    "Settlement",
    "Snooze",
    "State",
    "Submission",
    "SubmitMiddleware",
    "Submitted",
    "Towpath",
    "TowpathError",
    "Why",
    "Worker",
    "days",
    "hours",
    "job_ref",
    "milliseconds",
    "minutes",
    "new_job",
    "seconds",
]

_HOMES = (
    "towpath.clock",
    "towpath.app.blocking",
    "towpath.engine.channel",
    "towpath.engine.durability",
    "towpath.engine.engine",
    "towpath.engine.events",
    "towpath.engine.explain",
    "towpath.engine.inspect",
    "towpath.engine.model",
    "towpath.engine.options",
    "towpath.engine.retry",
    "towpath.engine.schedule",
    "towpath.engine.states",
    "towpath.errors",
    "towpath.app.submitting",
    "towpath.app.submission",
    "towpath.app.job",
    "towpath.worker.context",
    "towpath.worker.handler",
    "towpath.worker.middleware",
    "towpath.app.handlers",
    "towpath.worker.worker",
    "towpath.app.app",
)
"""Where the names live: the modules that are imported above."""


_RENAMED = {"Ticket": "`towpath.Job`; what `towpath.Job` was is `towpath.JobInfo`"}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in __all__:
            for home in map(import_module, _HOMES):
                if hasattr(home, name):
                    return getattr(home, name)
        raise import_module("towpath.renamed").refuse(__name__, name, _RENAMED)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
