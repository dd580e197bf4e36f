"""A reviewer that is a program: the task comes on its input, the review is what it prints.

    exit code 0     the review is on standard output: as JSON, or as plain text
    exit code 65    the task can't be reviewed (EX_DATAERR): the review is dead
    any other       the attempt has failed (75, EX_TEMPFAIL, is the usual code): another one follows

The task is JSON on standard input, and its plain fields are in the environment too, as
TOWPATH_REVIEW_REPOSITORY, TOWPATH_REVIEW_HEAD and so on. The environment also has PATH, HOME, LANG
and the configured variables, and nothing else of ours. The end of standard error becomes the reason
of a failed attempt.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from towpath.apps.reviews.model import REVIEW_MOST, Review, ReviewTask
from towpath.apps.reviews.options import WITHIN
from towpath.apps.reviews.reviewers.errors import (
    ReviewerError,
    ReviewerFailed,
    ReviewerKilled,
    ReviewerRefused,
    ReviewerTimedOut,
    ReviewerUnavailable,
    ReviewTooLarge,
    verdict,
)
from towpath.apps.reviews.reviewers.port import printed
from towpath.clock import Duration, duration_ms, milliseconds
from towpath.engine.check import integer
from towpath.errors import InvalidOption
from towpath.processes.command import (
    Command,
    CommandTimedOut,
    CommandUnavailable,
    Ended,
    OutputTooLarge,
    require_script,
    run,
)
from towpath.worker.context import Context

NEVER_AGAIN = 65
"""EX_DATAERR of sysexits.h: the exit code for a task that no other attempt can review."""

_PREFIX = "TOWPATH_REVIEW_"
_INHERITED = {"PATH": os.defpath, "HOME": "/", "LANG": "C.UTF-8"}
_LONGEST_VALUE = 4096
_NOTHING: Mapping[str, str] = MappingProxyType({})


class CommandReviewer:
    """Runs *argv* for each task, without a shell; no text of a task becomes an argument.

    *environment* is added to the program's, *directory* is where it runs. The program and all that
    it started are ended after *within*, when it prints more than *largest* bytes, or when the task
    is cancelled or lost. Each task costs a process, which starts in some 20 ms.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] = _NOTHING,
        directory: str | Path = ".",
        within: Duration = WITHIN,
        largest: int = REVIEW_MOST,
    ) -> None:
        self._argv = _check_argv(argv)
        self._environment = _check_environment(environment)
        self._directory = Path(directory)
        self._within = within
        duration_ms("within", within, least=milliseconds(1))
        self._largest = integer("largest", largest, 1, 1 << 30)

    @property
    def within(self) -> Duration:
        """How long one review may take."""
        return self._within

    def require_program(self) -> None:
        """Raises ReviewerUnavailable if the program, or the script that it is to run, is missing.
        Costs a short process for `python -m`."""
        with _as_reviewer_errors():
            require_script(self._run_with(_inherited() | self._environment))

    async def review(self, task: ReviewTask, ctx: Context) -> Review:
        """The review that the program printed. Raises Retry or Discard, from a ReviewerError."""
        try:
            with _as_reviewer_errors():
                ended = await run(self._command(task, ctx), task.packed())
            _require_success(ended)
        except ReviewerError as error:
            raise verdict(error) from error
        return printed(ended.output)

    def _command(self, task: ReviewTask, ctx: Context) -> Command:
        attempt = {f"{_PREFIX}ID": ctx.id, f"{_PREFIX}ATTEMPT": str(ctx.attempt)}
        return self._run_with(
            {**_inherited(), **_task_variables(task), **attempt, **self._environment}
        )

    def _run_with(self, environment: Mapping[str, str]) -> Command:
        return Command(
            argv=self._argv,
            environment=environment,
            directory=self._directory,
            within=self._within,
            largest=self._largest,
        )


@contextmanager
def _as_reviewer_errors() -> Generator[None]:
    """Turn errors of the command into errors of the reviewer."""
    try:
        yield
    except CommandUnavailable as error:
        raise ReviewerUnavailable(error.program, error.reason) from error
    except CommandTimedOut as error:
        raise ReviewerTimedOut(error.within, error.complaint) from None
    except OutputTooLarge as error:
        raise ReviewTooLarge(error.limit) from None


def _require_success(ended: Ended) -> None:
    if ended.code < 0:
        raise ReviewerKilled(_signal_name(-ended.code), ended.complaint)
    if ended.code == NEVER_AGAIN:
        raise ReviewerRefused(ended.code, ended.complaint)
    if ended.code:
        raise ReviewerFailed(ended.code, ended.complaint)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


def _inherited() -> dict[str, str]:
    return {name: os.environ.get(name, usual) for name, usual in _INHERITED.items()}


def _task_variables(task: ReviewTask) -> dict[str, str]:
    """The plain fields of a task as variables.

    The system refuses a variable that is very long or contains NUL, so long values are cut and NULs
    removed. The JSON has the whole values.
    """
    fields: dict[str, Any] = msgspec.to_builtins(task)
    return {
        f"{_PREFIX}{name.upper()}": str(value).replace("\0", "")[:_LONGEST_VALUE]
        for name, value in fields.items()
        if isinstance(value, str | int) and value != ""
    }


def _check_argv(argv: Sequence[str]) -> tuple[str, ...]:
    if isinstance(argv, str) or not argv or not all(isinstance(arg, str) for arg in argv):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise InvalidOption("command", argv, rule="must be a list: the program and its arguments")
    if not argv[0] or any("\0" in arg for arg in argv):
        raise InvalidOption("command", argv, rule="must name a program, without NUL bytes")
    return tuple(argv)


def _check_environment(environment: Mapping[str, str]) -> dict[str, str]:
    for name, value in environment.items():
        if not name or "=" in name or "\0" in name + value:
            raise InvalidOption(
                "environment", name, rule="must be names and values without NUL bytes"
            )
    return dict(environment)
