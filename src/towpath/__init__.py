"""Towpath: a job queue for work that must be done once, in order and on time.

Modules are imported when their names are first used, so that `towpath --help`, or an import of one
part of the package, does not load the rest.
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

_HOMES = {
    **dict.fromkeys(("Towpath",), "towpath.app.app"),
    **dict.fromkeys(("Handlers",), "towpath.app.handlers"),
    **dict.fromkeys(("Job",), "towpath.app.job"),
    **dict.fromkeys(
        ("Duration", "days", "hours", "milliseconds", "minutes", "seconds"), "towpath.clock"
    ),
    **dict.fromkeys(("Durability",), "towpath.engine.durability"),
    **dict.fromkeys(("Engine",), "towpath.engine.engine"),
    **dict.fromkeys(("HIGH", "LOW", "NORMAL", "JobInfo"), "towpath.engine.model"),
    **dict.fromkeys(("EventPolicy", "LanePolicy", "QueueOptions"), "towpath.engine.options"),
    **dict.fromkeys(("Exponential", "Fixed", "Listed", "Never"), "towpath.engine.retry"),
    **dict.fromkeys(("Cron", "Every", "Missed"), "towpath.engine.schedule"),
    **dict.fromkeys(("State",), "towpath.engine.states"),
    **dict.fromkeys(("TowpathError",), "towpath.errors"),
    **dict.fromkeys(
        ("AttemptStopped", "Context", "Discard", "HandOver", "Retry", "Snooze"),
        "towpath.worker.context",
    ),
    **dict.fromkeys(("CallNext", "Middleware"), "towpath.worker.middleware"),
    **dict.fromkeys(("Worker",), "towpath.worker.worker"),
}
"""The module that has each name: it is imported when the name is first used."""


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
