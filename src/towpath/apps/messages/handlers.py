"""The handlers of messages: push each message to the worker's URL, deliver answers to callbacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from towpath.app.app import Towpath
from towpath.apps.messages.callbacks import (
    DELIVERY,
    SENTRY,
    Callback,
    sentry_id,
    submit_delivery,
)
from towpath.apps.messages.model import (
    CALLBACK_OPTIONS,
    CALLBACKS,
    ENDED,
    MESSAGE_OPTIONS,
    MESSAGES,
    STATES,
    Message,
    MessageState,
    message_ref,
)
from towpath.apps.messages.options import CALLBACK, PUSH, MessagesOptions
from towpath.apps.outcomes import calling
from towpath.calls.answer import CallAnswer, Next, require_taken
from towpath.calls.errors import AnswerTooLarge
from towpath.calls.signature import derive_secret
from towpath.calls.signature import message_id as webhook_id
from towpath.clock import minutes, seconds
from towpath.engine.model import JobInfo
from towpath.errors import JobNotFound
from towpath.worker.context import Context, Discard, Snooze

_JSON = {"content-type": "application/json"}
_LONGEST_PAUSE, _SHORT_PAUSE = minutes(5), seconds(5)
_SLACK = seconds(10)
_ENDING_DELIVERY = frozenset({Next.GONE, Next.MOVED})
"""Answers that end a delivery for good. All others are retried: the receiver may be repaired."""


class Post(Protocol):
    """Sends POST requests to allowed addresses, like `calls.Caller`."""

    async def post(
        self,
        url: str,
        body: bytes,
        *,
        headers: Mapping[str, str] = ...,
        message: str = "",
        secrets: Sequence[str] = (),
    ) -> CallAnswer:
        """Returns the answer of any status. Raises CallRefused, CallFailed, AnswerTooLarge."""
        ...


def add_callbacks(app: Towpath, post: Post, options: MessagesOptions) -> None:
    """Add the handlers to *app* that deliver answers to the callback URLs of their messages."""
    handlers = _CallbackHandlers(app, post, options)
    app.handler(
        CALLBACKS, name=SENTRY, time_limit=minutes(1), keep=CALLBACK_OPTIONS.keep
    )(handlers.check)  # fmt: skip
    app.handler(
        CALLBACKS, name=DELIVERY, time_limit=options.callback_within + _SLACK
    )(handlers.deliver)  # fmt: skip


def add_push(app: Towpath, post: Post, options: MessagesOptions) -> None:
    """Add the handler to *app* that pushes messages to the worker's URL and returns its answers."""
    handler = _PushHandler(post, options)
    app.handler(
        MESSAGES,
        time_limit=options.push_within + _SLACK,
        retry=MESSAGE_OPTIONS.retry,
        max_attempts=MESSAGE_OPTIONS.max_attempts,
        keep=MESSAGE_OPTIONS.keep,
    )(handler.push)


class _PushHandler:
    def __init__(self, post: Post, options: MessagesOptions) -> None:
        self._post = post
        self._secrets = tuple(derive_secret(secret, PUSH) for secret in options.secrets)
        self._url = options.worker_url or ""

    async def push(self, payload: bytes, ctx: Context) -> bytes:
        """Send a message to the worker. Another attempt has the same webhook-id."""
        body = msgspec.json.encode(_push_body(payload, ctx))
        with calling("the worker"):
            answer = await _send(self._post, self._url, body, id=ctx.id, secrets=self._secrets)
            require_taken(answer, "the worker")
        return _as_json(answer.body)


class _CallbackHandlers:
    def __init__(self, app: Towpath, post: Post, options: MessagesOptions) -> None:
        self._app, self._post = app, post
        self._secrets = tuple(derive_secret(secret, CALLBACK) for secret in options.secrets)

    async def check(self, callback: Callback, ctx: Context) -> None:
        """Submit the delivery if the message has ended; else check again, less and less often."""
        job = await self._message(callback, ctx, sentry_id(callback.message_id))
        if STATES[job.state] not in ENDED:
            age = ctx.claimed_at - ctx.submitted_at
            raise Snooze(min(max(age, seconds(30)), _LONGEST_PAUSE))
        await submit_delivery(self._app.engine, callback.message_id)

    async def deliver(self, callback: Callback, ctx: Context) -> None:
        """Send the answer. All attempts have one webhook-id, so receivers recognise repeats."""
        job = await self._message(callback, ctx, callback.message_id)
        if STATES[job.state] not in ENDED:
            raise Snooze(_SHORT_PAUSE)  # the message was dead and has been retried
        message = _read(job.payload)
        if message is None or message.callback_url is None:
            raise Discard("its job is no message that asks for a callback")
        body, url = msgspec.json.encode(_callback_body(job, message)), message.callback_url
        with calling("the receiver"):
            try:
                answer = await _send(self._post, url, body, id=job.id, secrets=self._secrets)
            except AnswerTooLarge as large:
                answer = CallAnswer(large.status, {}, b"")  # only the status counts
            require_taken(answer, "the receiver", final=_ENDING_DELIVERY)

    async def _message(self, callback: Callback, ctx: Context, own_id: str) -> JobInfo:
        """Returns the job of the message. Raises Discard unless this job has *own_id*: jobs that a
        user submits under other ids must not send the answer again.
        """
        if ctx.id != own_id:
            raise Discard("its id is not that of the message's own job")
        try:
            return await self._app.engine.inspect.job(message_ref(callback.message_id))
        except JobNotFound:
            raise Discard("its message was never submitted or is no longer kept") from None


# ── bodies ───────────────────────────────────────────────────────────────────────────────


def _read(payload: bytes) -> Message | None:
    """Returns the message in a payload; None if it was not submitted by `Messages.send`. Unknown
    fields are dropped, so that the server never signs them.
    """
    try:
        return msgspec.json.decode(payload, type=Message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _push_body(payload: bytes, ctx: Context) -> dict[str, Any]:
    message = _read(payload)
    if message is None:  # submitted by `MessageQueue.enqueue` or as a raw job: plain text
        fields: dict[str, Any] = {"message": payload.decode(errors="replace")}
    else:
        fields = _given_fields(message, _PUSHED)
    return {**fields, "message_id": ctx.id, "attempt": ctx.attempt}


def _given_fields(message: Message, names: Sequence[str]) -> dict[str, Any]:
    """Returns the fields *names* of a message that its sender has set."""
    values = {name: getattr(message, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


_TYPES = {
    MessageState.ANSWERED: "message.answered",
    MessageState.FAILED: "message.failed",
    MessageState.CANCELLED: "message.cancelled",
}
_RETURNED = ("user_id", "org_id", "client_id", "client_message_id", "metadata")
_PUSHED = (*_RETURNED, "message")
"""Without the callback's URL: Towpath delivers the answer itself."""


def _callback_body(job: JobInfo, message: Message) -> dict[str, Any]:
    state = STATES[job.state]
    data = {"message_id": job.id, **_given_fields(message, _RETURNED)}
    if state is MessageState.ANSWERED:
        data["answer"] = msgspec.Raw(_as_json(job.result or b""))
    if state is MessageState.FAILED:
        data["reason"] = job.reason
    return {"type": _TYPES[state], "timestamp": job.ended_at, "data": data}


def _as_json(body: bytes) -> bytes:
    """Returns *body* unchanged if it is JSON, null if it is empty, else as a JSON string."""
    if not body.strip():
        return b"null"
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.encode(body.decode(errors="replace"))
    return body


async def _send(
    post: Post, url: str, body: bytes, *, id: str, secrets: tuple[str, ...]
) -> CallAnswer:
    return await post.post(url, body, headers=_JSON, message=webhook_id(id), secrets=secrets)
