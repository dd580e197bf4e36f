"""Tests of your handlers: a real private server, a clock that you advance, and faults.

Importing this imports almost nothing: pytest does so at every start.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from towpath.testing import faults
    from towpath.testing.bench import Bench, Ran, Seen, drift, running
    from towpath.testing.errors import BenchError, NeverHappened, NotDrained, WorkerEnded
    from towpath.testing.scripts import check_scripts

__all__ = [
    "Bench",
    "BenchError",
    "NeverHappened",
    "NotDrained",
    "Ran",
    "Seen",
    "WorkerEnded",
    "check_scripts",
    "drift",
    "faults",
    "running",
]

_HOMES = ("towpath.testing.bench", "towpath.testing.errors", "towpath.testing.scripts")


def __getattr__(name: str) -> object:
    if name == "faults":
        return import_module("towpath.testing.faults")
    if name in __all__:
        for home in map(import_module, _HOMES):
            if hasattr(home, name):
                return getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
