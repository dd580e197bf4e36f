"""How a reviewer fails. Each is the cause of the Retry or Discard that ends the attempt.

ReviewerError
├── ReviewerUnavailable     there is no such program, or it can't be started
├── ReviewerTimedOut        it took longer than it may
├── ReviewerFailed          it ended with an exit code that is not 0
├── ReviewerRefused         it ended with the exit code that says: never again
├── ReviewerKilled          a signal ended it
└── ReviewTooLarge          it printed more than is kept
"""

from __future__ import annotations

from towpath.clock import Duration
from towpath.errors import RetryAdvice, TowpathError
from towpath.worker.context import Discard, Retry


class ReviewerError(TowpathError):
    """The reviewer did not produce a review."""

    code = "reviewer_error"
    retry = RetryAdvice.LATER


class ReviewerUnavailable(ReviewerError):
    """The reviewer's program was not found or can't be started."""

    code = "reviewer_unavailable"
    remedy = "Install the program, or configure its full path."

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(f"{program}: {reason}")
        self.program, self.reason = program, reason


class ReviewerTimedOut(ReviewerError):
    """The reviewer exceeded its time limit; it was ended with all its processes."""

    code = "reviewer_timed_out"
    remedy = "Reduce the size of the review, or raise the time limit."

    def __init__(self, within: Duration, complaint: str) -> None:
        super().__init__(_with_output(f"no review within {within}", complaint))
        self.within = within


class ReviewerFailed(ReviewerError):
    """The reviewer failed, by its exit code."""

    code = "reviewer_failed"
    remedy = "Read the reviewer's output; the next attempt may succeed."

    def __init__(self, exit_code: int, complaint: str) -> None:
        super().__init__(_with_output(f"exit code {exit_code}", complaint))
        self.exit_code = exit_code


class ReviewerRefused(ReviewerFailed):
    """The reviewer refused the task for good, by its exit code."""

    code = "reviewer_refused"
    remedy = "Read the reviewer's output; another attempt would fail the same way."
    retry = RetryAdvice.NEVER


class ReviewerKilled(ReviewerError):
    """A signal ended the reviewer: it crashed, or memory ran out."""

    code = "reviewer_killed"
    remedy = "Check whether the program crashed or ran out of memory."

    def __init__(self, signal_name: str, complaint: str) -> None:
        super().__init__(_with_output(f"ended by {signal_name}", complaint))
        self.signal_name = signal_name


class ReviewTooLarge(ReviewerError):
    """The reviewer printed more than a review may have; it was ended, and its output dropped."""

    code = "review_too_large"
    remedy = "Print only the review to standard output; send the rest to standard error."

    def __init__(self, limit: int) -> None:
        super().__init__(f"the reviewer printed more than {limit} bytes")
        self.limit = limit


def verdict(error: ReviewerError) -> Retry | Discard:
    """How the attempt ends because of *error*."""
    reason = f"{type(error).__qualname__}: {error}"
    return Discard(reason) if error.retry is RetryAdvice.NEVER else Retry(reason)


def _with_output(what: str, complaint: str) -> str:
    return f"{what}; its output: {complaint}" if complaint else what
