"""Errors of tests: what a bench could not do, and why.

BenchError
├── NotDrained      handlers were still at work when the time was over
├── WorkerEnded     a worker process ended that should run
└── NeverHappened   a fact did not become true in time
"""

from __future__ import annotations

from towpath.clock import Duration
from towpath.errors import RetryAdvice, TowpathError


class BenchError(TowpathError, AssertionError):
    """The test can't go on; it fails with this reason."""

    code = "bench"
    retry = RetryAdvice.NEVER


class NotDrained(BenchError):
    """There was still work left at the time limit."""

    code = "not_drained"
    remedy = (
        "Check whether a handler waits for something, or submits or snoozes its own job without a "
        "delay. If the work takes this long, raise the limit with `within=`."
    )

    def __init__(self, within: Duration, settled: int) -> None:
        super().__init__(f"still running after {within}, {settled} attempts have ended")
        self.within, self.settled = within, settled


class WorkerEnded(BenchError):
    """The worker process is not running."""

    code = "worker_ended"
    remedy = "Read its output below the message."

    def __init__(self, app: str, exit_code: int | None, said: str) -> None:
        how = "was not started" if exit_code is None else f"ended with code {exit_code}"
        super().__init__(f"the worker of {app} {how}; its output:\n{said}")
        self.app, self.exit_code, self.said = app, exit_code, said


class NeverHappened(BenchError):
    """The condition did not become true in time."""

    code = "never_happened"
    remedy = "Read the worker's output below the message, or allow more time with `within=`."

    def __init__(self, within: Duration, said: str) -> None:
        super().__init__(f"did not happen within {within}; the worker's output:\n{said}")
        self.within, self.said = within, said
