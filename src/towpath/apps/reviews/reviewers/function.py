"""A reviewer that is a Python function, plain or async: `(task) -> Review | str | dict`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from towpath.apps.reviews.model import Review, ReviewTask
from towpath.apps.reviews.reviewers.port import returned
from towpath.errors import InvalidOption
from towpath.worker.context import Context, Retry
from towpath.worker.executors import Threads

ReviewFunction = Callable[[ReviewTask], Any]
"""Returns a Review, its text, a dict of its fields, or an awaitable of one of these."""

_MOST_STUCK = 32


class FunctionReviewer:
    """Calls *function* for each task: an async one in the loop, a plain one in a thread.

    A thread can't be ended from outside: a plain function goes on after its task is cancelled.
    While 32 such calls have not returned, no new call begins. Code that may hang belongs in an
    async function or a command.
    """

    def __init__(self, function: ReviewFunction) -> None:
        if not callable(function):
            raise InvalidOption("function", function, rule="must be a function that takes a task")
        self._function = function
        self._stuck = 0
        self._threads = Threads(lost=self._count_lost, regained=self._count_regained)

    @classmethod
    def at(cls, path: str) -> FunctionReviewer:
        """The function at `module:name`. For configuration, never for values from a job.

        Raises InvalidOption if there is none; what the module itself raises is left as it is.
        """
        module_name, colon, name = path.partition(":")
        if not (module_name and colon and name):
            raise InvalidOption("reviewer_function", path, rule="must be MODULE:FUNCTION")
        try:
            found = vars(import_module(module_name)).get(name)
        except ModuleNotFoundError as error:
            rule = f"there is no module {error.name}"
            raise InvalidOption("reviewer_function", path, rule=rule) from error
        if not callable(found):
            raise InvalidOption("reviewer_function", path, rule="the module has no such function")
        return cls(found)

    async def review(self, task: ReviewTask, ctx: Context) -> Review:
        """The review that the function returns. Raises what it raises, also Retry and Discard."""
        if inspect.iscoroutinefunction(self._function):
            answer = await self._function(task)
        else:
            answer = await self._in_thread(task)
        return returned(answer)

    async def _in_thread(self, task: ReviewTask) -> Any:
        if self._stuck >= _MOST_STUCK:
            raise Retry(f"{self._stuck} earlier calls of the reviewer have not returned yet")
        answer = await self._threads.run(lambda: self._function(task))
        # An object with an async __call__, or a plain function around an async one.
        return await answer if inspect.isawaitable(answer) else answer

    def _count_lost(self) -> None:
        self._stuck += 1

    def _count_regained(self) -> None:
        self._stuck -= 1
