"""Queues in turn: one that Redis can't take does not keep back the others."""

from __future__ import annotations

from towpath.errors import ServerError


class Turns:
    """`with turns:` around each queue's turn; `done` raises the first refusal, when all had one."""

    def __init__(self) -> None:
        self._first: ServerError | None = None

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: object
    ) -> bool:
        if not isinstance(error, ServerError):
            return False
        self._first = self._first or error
        return True

    def done(self) -> None:
        """Raise the first refusal, if there was one."""
        if self._first is not None:
            raise self._first
