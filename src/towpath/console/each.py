"""Verbs that take several names: each is seen to, and the answer is that of all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import typer

from towpath.console.verb import Session
from towpath.errors import TowpathError

N = TypeVar("N")


async def each(session: Session, names: Iterable[N], do: Callable[[N], Awaitable[None]]) -> None:
    """Do it to one after the other. One that is refused is told, and the others have their turn.

    The exit code is that of the first refusal. What is not about one of them, such as a server
    that does not answer, ends it.
    """
    from towpath.console import exits  # noqa: PLC0415 -- a help text needs none

    code = exits.OK
    for name in names:
        try:
            await do(name)
        except TowpathError as error:
            own = exits.exit_code(error)
            if session.debug or own not in (exits.USAGE, exits.REFUSED, exits.NOT_FOUND):
                raise
            session.refused(error)
            code = code or own
    if code:
        raise typer.Exit(code)
