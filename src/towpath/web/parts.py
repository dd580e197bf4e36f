"""What a request handler may ask for: the parts of the running server.

Dependencies are coroutines, also those that wait for nothing: FastAPI runs a plain function in a
thread, and the way there and back costs more than most requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Header, Request

from towpath.engine.engine import Engine
from towpath.engine.model import Call
from towpath.errors import TowpathError
from towpath.web.auth import Key
from towpath.web.fields import Answer
from towpath.web.polling import Poll
from towpath.web.sessions import Sessions
from towpath.web.streams import Followed

_WITHIN = 2.0


async def _engine(request: Request) -> Engine:
    return request.app.state.engine


def service(name: str) -> Callable[[Request], Awaitable[Any]]:
    """A dependency: the service of the application *name*, while the server runs."""

    async def serving(request: Request) -> Any:
        return request.app.state.services[name]

    return serving


async def _sessions(request: Request) -> Sessions:
    return request.app.state.sessions


async def _followed(request: Request) -> Followed:
    return request.app.state.followed


class Repeatable(msgspec.Struct, frozen=True):
    """A request that its sender gave a name: again under it, it has no effect and the same answer.

    The name counts for the sender's own key, so that no other can guess the answers.
    """

    name: str

    def call(self, content: bytes = b"") -> Call:
        """The call of that name; with *content*, other content is another call."""
        return Call(f"http/{_digest(self.name, content)}", 1)

    def job_id(self, place: int) -> str:
        """The id of the job at *place* that was sent without one: the same again."""
        return f"call-{_digest(self.name, str(place).encode())[:32]}"


def _digest(name: str, more: bytes) -> str:
    return sha256(name.encode() + b"\0" + more).hexdigest()


async def _repeatable(
    key: Key,
    idempotency_key: Annotated[
        str | None,
        Header(
            max_length=255,
            description="Makes the request repeatable: the same key again within ten minutes has "
            "no effect and the same answer.",
            examples=["5f0c2a7e-mail-17"],
        ),
    ] = None,
) -> Repeatable | None:
    return Repeatable(f"{key.id}/{idempotency_key}") if idempotency_key else None


async def _poll(request: Request, engine: TheEngine) -> Poll:
    return Poll(engine, request, request.app.state.draining, request.app.state.sessions)


# ── whether they work ────────────────────────────────────────────────────────────────────


class PartOut(Answer):
    """Whether a part of the server works."""

    ok: bool
    error: str | None = None
    """The error's code; the name of its type for a task in the background."""
    remedy: str | None = None


async def checked(probe: Awaitable[None]) -> PartOut:
    """Whether a part works; it has two seconds to say so."""
    try:
        async with asyncio.timeout(_WITHIN):
            await probe
    except TowpathError as error:
        return PartOut(ok=False, error=error.code, remedy=error.remedy)
    except TimeoutError:
        return PartOut(
            ok=False,
            error="timeout",
            remedy="The probe timed out after 2 s; check that this part responds.",
        )
    return PartOut(ok=True)


TheEngine = Annotated[Engine, Depends(_engine)]
TheSessions = Annotated[Sessions, Depends(_sessions)]
TheFollowed = Annotated[Followed, Depends(_followed)]
ThePoll = Annotated[Poll, Depends(_poll)]
Named = Annotated[Repeatable | None, Depends(_repeatable)]
