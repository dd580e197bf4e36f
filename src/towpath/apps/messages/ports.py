"""What the application needs from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from towpath.calls.answer import Answer


class Post(Protocol):
    """Sends what it is given, to where that may go. `calls.Caller` is one."""

    async def post(
        self,
        url: str,
        body: bytes,
        *,
        headers: Mapping[str, str] = ...,
        message: str = "",
        secrets: Sequence[str] = (),
    ) -> Answer:
        """The answer, whatever its status. Raises CallRefused, CallFailed, AnswerTooLarge."""
        ...
