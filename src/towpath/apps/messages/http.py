"""Messages over HTTP: send, read, wait for the answer, cancel; and the health of the queue.

Paths, bodies and names are those of the broker that Towpath replaces; so is the text of a 503.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Path, Request, Response
from pydantic import BeforeValidator, Field
from sse_starlette import EventSourceResponse, ServerSentEvent

from towpath.apps.messages.model import (
    MESSAGES,
    Message,
    MessagesLoad,
    MessageState,
    MessageView,
    UserQueue,
)
from towpath.apps.messages.service import Messages
from towpath.apps.owners import ALL, Access
from towpath.errors import ServerError, TowpathError
from towpath.ledger.keys.key import KeyInfo, Scope
from towpath.web.application_routes import ApplicationRoutes
from towpath.web.audit import audited
from towpath.web.auth import scoped
from towpath.web.bodies import BodyRoute, DirectRoute
from towpath.web.dependencies import checked, service
from towpath.web.fields import Answer, Body, Json, alike, answer_from, decoded, example, json_field
from towpath.web.problems import RETRY_AFTER_S, Refused, documented, status_of
from towpath.web.streams import Chunk, stream

UNAVAILABLE = "Queue service unavailable"
_LONGEST_NAME, _LONGEST_URL = 512, 2048


class _OldBrokerRoute(BodyRoute):
    """Gives a 503 the text that the old broker had."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_with_old_text(request: Request) -> Response:
            try:
                return await handle(request)
            except TowpathError as error:
                if status_of(error) != 503:
                    raise
                again = {"Retry-After": str(RETRY_AFTER_S)}
                raise Refused(
                    503, error.code, UNAVAILABLE, remedy=error.remedy, headers=again
                ) from error

        return handle_with_old_text


class _SendRoute(_OldBrokerRoute, DirectRoute):
    """The route of the most frequent request, which skips FastAPI's own reading of bodies."""


router = APIRouter(prefix="/api/v1", tags=["messages"], route_class=_OldBrokerRoute)
health_router = APIRouter(tags=["health"])


TheMessages = Annotated[Messages, Depends(service("messages"))]
CanSend = Annotated[KeyInfo, Depends(scoped(Scope.SUBMIT, queue=MESSAGES))]
CanLook = Annotated[KeyInfo, Depends(scoped(Scope.READ, queue=MESSAGES))]
Name = Annotated[str, Field(min_length=1, max_length=_LONGEST_NAME)]
UserId = Annotated[str, BeforeValidator(decoded), Path(max_length=_LONGEST_NAME, examples=["ann"])]
MessageId = Annotated[str, BeforeValidator(decoded), Path(max_length=_LONGEST_NAME)]


class MessageIn(Body):
    """A user's message."""

    model_config = example(user_id="ann", org_id="acme", message="hello", client_id="web")

    user_id: Name
    """The user whose queue the message joins: 1 to 512 bytes without control characters."""
    org_id: Name
    message: Annotated[str, Field(min_length=1)]
    """The text of the message."""
    client_id: Name
    client_message_id: Name | None = None
    """Your own id; the same id of the same user and owner is the same message."""
    callback_url: Annotated[str, Field(min_length=1, max_length=_LONGEST_URL)] | None = None
    """URL that the answer is sent to, with a signature: http or https, no private address."""
    metadata: dict[str, Json] | None = None
    """Any JSON object; consumers get it, and it is returned with the answer."""


class QueuedOut(Answer):
    """A message that is in its user's queue."""

    status: Literal["queued"]
    queue_position: int
    """Its place among the user's waiting messages: 1 = next; 0 = it was sent before and no longer
    waits."""
    message_id: str


class _User(Answer):
    user_id: str


class UserQueueOut(answer_from(UserQueue, base=_User)):
    """A user's queue."""


class _Health(Answer):
    status: Literal["healthy", "degraded", "unhealthy"]
    redis_connected: bool
    """Whether Redis answers."""


class HealthOut(answer_from(MessagesLoad, base=_Health)):
    """The state of the message queue."""


_SHOWN_OTHERWISE = {"estimated_wait", "progress", "progress_base64", "answer", "answer_base64"}


class MessageOut(Answer):
    """A message as it is now."""

    message_id: str
    user_id: str | None
    state: MessageState
    queue_position: int
    """Its place among the user's waiting messages: 1 = next; 0 = it does not wait."""
    estimated_wait: float | None
    """Estimated wait in seconds, from recent messages; null = not known."""
    attempts: int
    submitted_at: datetime
    started_at: datetime | None = None
    """When a consumer got it."""
    ended_at: datetime | None = None
    progress: Json = None
    """The consumer's last progress note, if it is JSON."""
    progress_base64: str | None = None
    """The consumer's last progress note, if it is not JSON."""
    answer: Json = None
    """The answer, if it is JSON."""
    answer_base64: str | None = None
    """The answer, if it is not JSON."""
    reason: str | None = None
    """Why the message or its last attempt failed."""

    @classmethod
    def of(cls, view: MessageView) -> MessageOut:
        return cls(
            estimated_wait=view.estimate.total_seconds() if view.estimate is not None else None,
            **alike(cls, view, but=_SHOWN_OTHERWISE),
            **json_field("progress", view.progress or b""),
            **json_field("answer", view.answer or b""),
        )


class CancelledOut(Answer):
    """A cancelled message."""

    message_id: str
    state: MessageState
    """`cancelled`, or `processing` while its consumer is asked to stop."""


# ── sending ──────────────────────────────────────────────────────────────────────────────


@audited("user_id", "org_id", only_people=True)
async def send(body: MessageIn, messages: TheMessages, key: CanSend) -> Response:
    """Add a message to its user's queue: first in, first out, one at a time.

    With a `client_message_id`, sending it again is safe; other content under the same id is
    refused with 409. Another owner's same id is another message.
    """
    receipt = await messages.send(Message(**vars(body)), messages.access(key))
    queued = {"status": "queued", **msgspec.structs.asdict(receipt)}
    return Response(msgspec.json.encode(queued), media_type="application/json")


router.add_api_route(
    "/message",
    send,
    methods=["POST"],
    response_model=QueuedOut,
    responses=documented(409),
    route_class_override=_SendRoute,
)


@router.post(
    "/message/{message_id}/cancel", response_model=CancelledOut, responses=documented(404, 409)
)
@router.delete(
    "/message/{message_id}",
    response_model=CancelledOut,
    responses=documented(404, 409),
    deprecated=True,
)
@audited(answer=("state",))
async def cancel(message_id: MessageId, messages: TheMessages, key: CanSend) -> CancelledOut:
    """Cancel a message that has not ended. Another owner's message is answered as a missing one."""
    state = await messages.cancel(message_id, messages.access(key))
    return CancelledOut(message_id=message_id, state=state)


# ── reading ──────────────────────────────────────────────────────────────────────────────


@router.get("/queue/{user_id:path}", response_model=UserQueueOut, responses=documented())
async def user_queue(user_id: UserId, messages: TheMessages, key: CanLook) -> UserQueueOut:
    """Read a user's queue. An unknown user has an empty queue."""
    found = await messages.user(user_id, visible_to(messages, key))
    return UserQueueOut(user_id=user_id, **alike(UserQueueOut, found, but={"user_id"}))


@router.get("/message/{message_id}", response_model=MessageOut, responses=documented(404))
async def look(message_id: MessageId, messages: TheMessages, key: CanLook) -> MessageOut:
    """Read a message: its state, its estimated wait, and its answer, which is kept for an hour.
    Another owner's message is answered as a missing one.
    """
    return MessageOut.of(await messages.get(message_id, messages.access(key)))


def visible_to(messages: Messages, key: KeyInfo) -> Access:
    """Returns whose message ids *key* may see. A consumer sees all, as it gets them by claiming."""
    return ALL if key.may(Scope.WORK) else messages.access(key)


@router.get(
    "/message/{message_id}/events",
    response_class=EventSourceResponse,
    responses={
        200: {
            "description": "Server-sent events: `position` while it waits, `processing`, "
            "`progress`, then `answer`, `failed` or `cancelled`; then the stream ends. "
            "`data` is the message as `GET /api/v1/message/{message_id}` shows it.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        **documented(404, 409),
    },
)
async def events(
    message_id: MessageId,
    request: Request,
    messages: TheMessages,
    key: CanLook,
) -> EventSourceResponse:
    """Follow a message until its answer. If there is an answer already, it is sent at once."""
    await messages.get(message_id, messages.access(key))
    return await stream(_view_events(messages, message_id), request)


_ENDS = {
    MessageState.ANSWERED: "answer",
    MessageState.FAILED: "failed",
    MessageState.CANCELLED: "cancelled",
}


async def _view_events(messages: Messages, message_id: str) -> AsyncGenerator[Chunk]:
    last: MessageView | None = None
    async with aclosing(messages.watch(message_id)) as views:
        async for view in views:
            if (name := _event(view, last)) is not None:
                yield ServerSentEvent(event=name, data=MessageOut.of(view).model_dump_json())
            last = view


def _event(view: MessageView, last: MessageView | None) -> str | None:
    """Returns the name of the event for the change since *last*; None = no event."""
    if view.ended:
        return _ENDS[view.state]
    queued = view.state is MessageState.QUEUED
    if last is None or last.state is not view.state or last.attempts != view.attempts:
        return "position" if queued else "processing"
    if queued:
        return "position" if last.queue_position != view.queue_position else None
    return "progress" if last.progress != view.progress else None


# ── health ───────────────────────────────────────────────────────────────────────────────


@health_router.head("/health", include_in_schema=False)
@health_router.get("/health", response_model=HealthOut)
async def health(request: Request, messages: TheMessages) -> HealthOut:
    """The state of the message queue in four fields. Needs no key. `degraded` while Redis or the
    database is unreachable, `unhealthy` while both are. At most a second old.
    """
    return await request.app.state.snapshots.cached("health", lambda: _health(request, messages))


async def _health(request: Request, messages: Messages) -> HealthOut:
    load, ledger = await asyncio.gather(_load(messages), checked(request.app.state.ledger.probe()))
    works = load is not None, ledger.ok
    return HealthOut(
        status="healthy" if all(works) else "degraded" if any(works) else "unhealthy",
        redis_connected=load is not None,
        **msgspec.structs.asdict(load or MessagesLoad(0, 0)),
    )


async def _load(messages: Messages) -> MessagesLoad | None:
    """Returns the load, or None while Redis is away."""
    try:
        return await messages.load()
    except ServerError:
        return None


ROUTES = ApplicationRoutes(
    routers=(router, health_router),
    tags={"messages": "Messages, one at a time per user: send, read, wait, cancel."},
    open=("/health",),
)
