"""Does something at one chosen await of a coroutine, so that a test can try all of them."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class AtAwait(Generic[T]):
    """Awaits *work*, and calls *do* when it suspends for the *number*th time, counted from 0."""

    def __init__(self, work: Awaitable[T], number: int, do: Callable[[Any], None]) -> None:
        self._work, self._number, self._do = work, number, do
        self._count = 0

    @property
    def reached(self) -> bool:
        """Whether *work* suspended that often."""
        return self._count > self._number

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._work.__await__()
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                waits_for: Any = steps.send(value) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            if self._count == self._number:
                self._do(waits_for)
            self._count += 1
            value = error = None
            try:
                value = yield waits_for
            except BaseException as raised:  # noqa: BLE001 -- belongs to the work
                error = raised


def cancel_before_the_answer(_: Any) -> None:
    """Cancels the task while it waits."""
    asyncio.get_running_loop().call_soon(_current_task().cancel)


def cancel_after_the_answer(waits_for: Any) -> None:
    """Cancels the task when its answer has arrived and the task has not seen it yet."""
    task = _current_task()
    if waits_for is None:  # a plain pause, without an answer
        asyncio.get_running_loop().call_soon(task.cancel)
    else:

        def cancel(_: Any) -> None:
            task.cancel()

        waits_for.add_done_callback(cancel)


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task
