"""Towpath: a job queue for work that must be done once, in order and on time.

The names are looked up when they are first used: who runs `towpath --help` or imports a part of
the package does not wait for the rest of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from towpath.app.app import Towpath
    from towpath.app.handlers import Handlers
    from towpath.app.job import Job
    from towpath.clock import Duration, days, hours, milliseconds, minutes, seconds
    from towpath.engine.durability import Durability
    from towpath.engine.engine import Engine
    from towpath.engine.model import HIGH, LOW, NORMAL, JobInfo
    from towpath.engine.options import EventPolicy, LanePolicy, QueueOptions
    from towpath.engine.retry import Exponential, Fixed, Listed, Never
    from towpath.engine.schedule import Cron, Every, Missed
    from towpath.engine.states import State
    from towpath.errors import TowpathError
    from towpath.worker.context import AttemptStopped, Context, Discard, HandOver, Retry, Snooze
    from towpath.worker.middleware import CallNext, Middleware
    from towpath.worker.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "HIGH",
    "LOW",
    "NORMAL",
    "AttemptStopped",
    "CallNext",
    "Context",
    "Cron",
    "Discard",
    "Durability",
    "Duration",
    "Engine",
    "EventPolicy",
    "Every",
    "Exponential",
    "Fixed",
    "HandOver",
    "Handlers",
    "Job",
    "JobInfo",
    "LanePolicy",
    "Listed",
    "Middleware",
    "Missed",
    "Never",
    "QueueOptions",
    "Retry",
    "Snooze",
    "State",
    "Towpath",
    "TowpathError",
    "Worker",
    "days",
    "hours",
    "milliseconds",
    "minutes",
    "seconds",
]

_HOMES = (
    "towpath.clock",
    "towpath.engine.durability",
    "towpath.engine.engine",
    "towpath.engine.model",
    "towpath.engine.options",
    "towpath.engine.retry",
    "towpath.engine.schedule",
    "towpath.engine.states",
    "towpath.errors",
    "towpath.app.job",
    "towpath.worker.context",
    "towpath.worker.middleware",
    "towpath.app.handlers",
    "towpath.worker.worker",
    "towpath.app.app",
)
"""Where the names live: the modules that are imported above."""


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in __all__:
            for home in map(import_module, _HOMES):
                if name in vars(home):  # not asked for: that would look for it elsewhere
                    return vars(home)[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
