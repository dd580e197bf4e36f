"""Consumers in a worker: messages are sent to a URL, and answers to the callback URL of the
message.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.apps.messages.sending import SECRET, send
from tests.calls.receivers import Reader, Receiver, Writer, answering, http
from tests.waiting import HANGS, eventually_async, eventually_in_loop
from tests.worker.in_process_worker import working
from towpath.app.app import Towpath
from towpath.apps.messages.adapters import MessageAdapters
from towpath.apps.messages.callbacks import (
    FIRST_CHECK,
    sentry_id,
    submit_delivery,
    submit_sentry,
)
from towpath.apps.messages.handlers import add_callbacks, add_push
from towpath.apps.messages.model import CALLBACKS, MESSAGES, MessageReceipt, message_ref
from towpath.apps.messages.options import CALLBACK, PUSH, MessagesOptions
from towpath.apps.messages.service import Messages
from towpath.calls.errors import CallRefused, SecretInvalid, SignatureWrong
from towpath.calls.signature import derive_secret, verify
from towpath.clock import ManualClock, ServerClock, hours, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import JobInfo, job_ref
from towpath.engine.states import State
from towpath.errors import InvalidOption

SOON = seconds(HANGS)


@pytest.fixture
def clock() -> ServerClock:
    """The clock of Redis, which workers use."""
    return ServerClock()


@asynccontextmanager
async def pushing(
    server: EmbeddedServer, engine: Engine, receiver: Receiver
) -> AsyncGenerator[Messages]:
    """Messages, and a worker that pushes them to *receiver*."""
    options = MessagesOptions(worker_url=receiver.url(), secrets=(SECRET,))
    app = Towpath(server.url)
    async with MessageAdapters(options) as outgoing, Messages(engine, options) as messages:
        add_push(app, outgoing.push, options)
        async with working(app):
            yield messages


@asynccontextmanager
async def calling_back(server: EmbeddedServer, engine: Engine) -> AsyncGenerator[Messages]:
    """Messages that consumers claim, and a worker that delivers the answers."""
    options = MessagesOptions(secrets=(SECRET,), allow=("127.0.0.0/8",))
    async with (
        MessageAdapters(options) as outgoing,
        delivering(server, engine, options, outgoing) as messages,
    ):
        yield messages


@asynccontextmanager
async def delivering(
    server: EmbeddedServer, engine: Engine, options: MessagesOptions, outgoing: MessageAdapters
) -> AsyncGenerator[Messages]:
    app = Towpath(server.url)
    add_callbacks(app, outgoing.callback, options)
    async with Messages(engine, options) as messages, working(app):
        yield messages


async def ended(engine: Engine, sent: MessageReceipt) -> JobInfo:
    return await engine.events.ended(message_ref(sent.message_id), within=SOON)


async def delivered(engine: Engine, sent: MessageReceipt) -> JobInfo:
    """The job of the callback once it has ended."""
    ref = job_ref(CALLBACKS, sent.message_id)

    async def there() -> bool:
        return await engine.inspect.state(ref) is not State.GONE

    await eventually_async(there)
    return await engine.events.ended(ref, within=SOON)


async def answer(engine: Engine, result: bytes) -> None:
    [lease] = await engine.claim(MESSAGES, worker="w", lease=seconds(30))
    await engine.complete(lease, result)


class TestPushing:
    async def test_sends_the_message_signed_and_stores_the_answer(
        self, server: EmbeddedServer, engine: Engine, receiver: Receiver
    ) -> None:
        receiver.answer = http(body=b'{"text":"hi ann"}')
        async with pushing(server, engine, receiver) as messages:
            more: dict[str, Any] = {
                "metadata": {"thread": 7},
                "callback_url": "https://example.com/?token=t0k",
            }
            sent = await send(messages, **more)
            assert (await ended(engine, sent)).result == b'{"text":"hi ann"}'
        [request] = receiver.requests
        assert (
            verify([derive_secret(SECRET, PUSH)], request.headers, request.body).id
            == sent.message_id
        )
        with pytest.raises(SignatureWrong):  # who gets callbacks can't pass for us here
            verify([derive_secret(SECRET, CALLBACK)], request.headers, request.body)
        assert msgspec.json.decode(request.body) == {
            "user_id": "ann",
            "org_id": "acme",
            "message": "hello",
            "client_id": "web",
            "metadata": {"thread": 7},
            "message_id": sent.message_id,
            "attempt": 1,
        }

    @pytest.mark.parametrize(
        ("body", "kept"),
        [(b"", b"null"), (b"hi", b'"hi"'), (b'"hi"', b'"hi"'), (b"\xff", '"�"'.encode())],
    )
    async def test_stores_every_answer_as_json(
        self, server: EmbeddedServer, engine: Engine, receiver: Receiver, body: bytes, kept: bytes
    ) -> None:
        receiver.answer = http(body=body)
        async with pushing(server, engine, receiver) as messages:
            assert (await ended(engine, await send(messages))).result == kept

    async def test_keeps_the_order_per_user_when_the_worker_fails(
        self, server: EmbeddedServer, engine: Engine, receiver: Receiver
    ) -> None:
        """The message is tried again before the next one of its user is sent."""
        refusals = [http("503 No", headers=(("Retry-After", "1"),)), http("500 No")]

        async def moody(_: Reader, writer: Writer) -> None:
            writer.write(refusals.pop() if refusals else http(body=b'"ok"'))
            await writer.drain()

        receiver.behaviour = moody
        async with pushing(server, engine, receiver) as messages:
            sent = [await send(messages, message=str(i)) for i in range(3)]
            assert (await ended(engine, sent[-1])).state is State.DONE
        seen: list[Any] = [msgspec.json.decode(request.body) for request in receiver.requests]
        assert [push["message"] for push in seen] == ["0", "0", "0", "1", "2"]
        assert [push["attempt"] for push in seen] == [1, 2, 3, 1, 1]

    async def test_ends_a_message_dead_that_the_worker_refuses(
        self, server: EmbeddedServer, engine: Engine, receiver: Receiver
    ) -> None:
        receiver.answer = http("422 No")
        async with pushing(server, engine, receiver) as messages:
            job = await ended(engine, await send(messages))
        assert job.state is State.DEAD
        assert "422" in str(job.reason)

    async def test_needs_a_secret_and_a_url(self) -> None:
        with pytest.raises(InvalidOption, match="secrets"):
            MessagesOptions(worker_url="https://example.com/")
        with pytest.raises(CallRefused):
            MessagesOptions(worker_url="ftp://example.com/", secrets=(SECRET,))
        with pytest.raises(SecretInvalid):
            MessagesOptions(secrets=("short",))

    def test_shows_its_options_without_secrets(self) -> None:
        options = MessagesOptions(worker_url="https://example.com/?token=t0k", secrets=(SECRET,))
        assert "t0k" not in repr(options)
        assert SECRET not in repr(options)


class TestCallbacks:
    async def test_deliver_the_answer_signed(
        self, server: EmbeddedServer, engine: Engine, receiver: Receiver
    ) -> None:
        async with calling_back(server, engine) as messages:
            url = receiver.url(path="/hook?token=t0k")
            sent = await send(messages, callback_url=url, client_message_id="c1")
            await answer(engine, b'{"text":"hi"}')
            assert (await delivered(engine, sent)).state is State.DONE
        [request] = receiver.requests
        assert (
            verify([derive_secret(SECRET, CALLBACK)], request.headers, request.body).id
            == sent.message_id
        )
        body = msgspec.json.decode(request.body)
        assert body["type"] == "message.answered"
        assert body["data"] == {
            "message_id": sent.message_id,
            "user_id": "ann",
            "org_id": "acme",
            "client_id": "web",
            "client_message_id": "c1",
            "answer": {"text": "hi"},
        }

    @pytest.mark.parametrize("end", ["failed", "cancelled"])
    async def test_delivers_failed_and_cancelled_messages_too(
        self, server: EmbeddedServer, engine: Engine, receiver: Receiver, end: str
    ) -> None:
        async with calling_back(server, engine) as messages:
            sent = await send(messages, callback_url=receiver.url())
            if end == "failed":
                [lease] = await engine.claim(MESSAGES, worker="w", lease=SOON)
                await engine.bury(lease, "no luck")
            else:
                await messages.cancel(sent.message_id)
            await delivered(engine, sent)
        body = msgspec.json.decode(receiver.requests[0].body)
        assert body["type"] == f"message.{end}"
        assert body["data"].get("reason") == ("no luck" if end == "failed" else None)

    async def test_are_tried_again_when_the_receiver_is_away(
        self, server: EmbeddedServer, engine: Engine, receiver: Receiver
    ) -> None:
        receiver.answer = http("503 No", headers=(("Retry-After", "1"),))
        async with calling_back(server, engine) as messages:
            sent = await send(messages, callback_url=receiver.url())
            await answer(engine, b'"hi"')
            await eventually_in_loop(lambda: len(receiver.requests) >= 1)
            receiver.answer = http()
            assert (await delivered(engine, sent)).state is State.DONE
        ids = {request.headers["webhook-id"] for request in receiver.requests}
        assert ids == {sent.message_id}
        assert len(receiver.requests) >= 2

    @pytest.mark.parametrize("status", ["410 Gone", "302 Found"])
    async def test_gives_up_when_the_receiver_refuses_for_good(
        self, server: EmbeddedServer, engine: Engine, receiver: Receiver, status: str
    ) -> None:
        receiver.answer = http(status, headers=(("Location", receiver.url(path="/other")),))
        async with calling_back(server, engine) as messages:
            sent = await send(messages, callback_url=receiver.url())
            await answer(engine, b'"hi"')
            job = await delivered(engine, sent)
        assert job.state is State.DEAD
        assert status[:3] in str(job.reason)
        assert len(receiver.requests) == 1

    async def test_is_dead_if_the_host_resolves_to_a_private_address(
        self, server: EmbeddedServer, engine: Engine, receiver: Receiver
    ) -> None:
        """The address is known, and refused, only when the call is made."""
        options = MessagesOptions(secrets=(SECRET,))
        outgoing = MessageAdapters(options, resolve=answering("127.0.0.1"))
        async with outgoing, delivering(server, engine, options, outgoing) as messages:
            url = receiver.url("hook.example.com", path="/?token=t0k")
            sent = await send(messages, callback_url=url)
            await answer(engine, b'"hi"')
            job = await delivered(engine, sent)
        assert job.state is State.DEAD
        assert "hook.example.com" in str(job.reason)
        assert "t0k" not in str(job.reason)
        assert [dead.id for dead in (await engine.inspect.list(CALLBACKS, State.DEAD)).jobs] == [
            job.id
        ]
        assert receiver.connections == 0


class TestTheSentry:
    async def test_submits_the_delivery_after_the_server_died(
        self, server: EmbeddedServer, receiver: Receiver
    ) -> None:
        """No process watches the message any more; its sentry is in Redis."""
        clock = ManualClock()
        options = MessagesOptions(secrets=(SECRET,), allow=("127.0.0.0/8",))
        async with Engine(server.url, clock=clock) as engine:
            async with Messages(engine, options) as messages:
                sent = await send(messages, callback_url=receiver.url())
            await answer(engine, b'"hi"')
            assert await engine.inspect.state(job_ref(CALLBACKS, sent.message_id)) is State.GONE
            clock.advance(FIRST_CHECK + seconds(1))
            app = Towpath(server.url, clock=clock)
            async with MessageAdapters(options) as outgoing:
                add_callbacks(app, outgoing.callback, options)
                async with working(app):
                    assert (await delivered(engine, sent)).state is State.DONE
        assert len(receiver.requests) == 1

    async def test_checks_again_later_while_the_message_waits(
        self, server: EmbeddedServer, engine: Engine
    ) -> None:
        async with calling_back(server, engine) as messages:
            sent = await send(messages)
            look = sentry_id(sent.message_id)
            await engine.submit(
                CALLBACKS,
                msgspec.json.encode({"message_id": sent.message_id}),
                id=look,
                headers={"handler": "sentry"},
            )

            async def released() -> bool:
                return (await engine.inspect.counts(CALLBACKS)).totals["released"] == 1

            await eventually_async(released)
            job = await engine.inspect.job(job_ref(CALLBACKS, look))
            assert (job.state, job.attempts) == (State.DELAYED, 0)

    async def test_is_cancelled_when_the_delivery_is_submitted_first(
        self, server: EmbeddedServer, engine: Engine, receiver: Receiver
    ) -> None:
        async with calling_back(server, engine) as messages:
            sent = await send(messages, callback_url=receiver.url())
            sentry = job_ref(CALLBACKS, sentry_id(sent.message_id))
            assert await engine.inspect.state(sentry) is State.DELAYED
            await answer(engine, b'"hi"')
            assert (await engine.events.ended(sentry, within=SOON)).state is State.CANCELLED

    async def test_replaces_another_job_under_the_id_of_the_delivery(
        self, server: EmbeddedServer, engine: Engine, receiver: Receiver
    ) -> None:
        async with calling_back(server, engine) as messages:
            sent = await send(messages, callback_url=receiver.url())
            await engine.submit(CALLBACKS, b"not yours", id=sent.message_id, delay=hours(1))
            await answer(engine, b'"hi"')
            await delivered(engine, sent)
        assert len(receiver.requests) == 1

    async def test_and_the_delivery_have_no_effect_when_they_are_submitted_again(
        self, server: EmbeddedServer, engine: Engine, receiver: Receiver
    ) -> None:
        async with calling_back(server, engine) as messages:
            sent = await send(messages, callback_url=receiver.url())
            await answer(engine, b'"hi"')
            await delivered(engine, sent)
            await submit_delivery(engine, sent.message_id)
            await submit_sentry(engine, sent.message_id)
        assert (await engine.inspect.counts(CALLBACKS)).ready == 0
        assert len(receiver.requests) == 1


class TestARawJob:
    """Jobs that were submitted to the queues without `POST /api/v1/message`."""

    @pytest.mark.parametrize(
        "payload",
        [
            b"no JSON",
            b"[1]",
            b'{"callback_url": "%s"}',
            b'{"callback_url":"%s","user_id":{},"org_id":"o","message":"m","client_id":"c"}',
        ],
    )
    async def test_that_is_no_message_gets_no_callback(
        self, server: EmbeddedServer, engine: Engine, receiver: Receiver, payload: bytes
    ) -> None:
        async with calling_back(server, engine) as messages:
            await messages.queue.prepare()
            url = receiver.url().encode()
            await engine.submit(MESSAGES, payload.replace(b"%s", url), id="raw", lane="ann")
            await answer(engine, b'"signed for me"')
            await submit_delivery(engine, "raw")
            job = await engine.events.ended(job_ref(CALLBACKS, "raw"), within=SOON)
        assert job.state is State.DEAD
        assert receiver.connections == 0

    async def test_gets_a_callback_with_the_fields_of_a_message_only(
        self, server: EmbeddedServer, engine: Engine, receiver: Receiver
    ) -> None:
        said = {"user_id": "ann", "org_id": "acme", "message": "hello", "client_id": "web"}
        raw = {**said, "callback_url": receiver.url(), "type": "payment", "amount": 7}
        async with calling_back(server, engine) as messages:
            await messages.queue.prepare()
            await engine.submit(MESSAGES, msgspec.json.encode(raw), id="raw", lane="ann")
            await answer(engine, b'"hi"')
            await submit_delivery(engine, "raw")
            await engine.events.ended(job_ref(CALLBACKS, "raw"), within=SOON)
        [request] = receiver.requests
        body = msgspec.json.decode(request.body)
        assert (body.keys(), body["type"]) == ({"type", "timestamp", "data"}, "message.answered")
        assert body["data"].keys() == {"message_id", "user_id", "org_id", "client_id", "answer"}

    @pytest.mark.parametrize("handler", ["sentry", "delivery"])
    async def test_in_the_queue_of_callbacks_sends_no_answer_again(
        self, server: EmbeddedServer, engine: Engine, receiver: Receiver, handler: str
    ) -> None:
        async with calling_back(server, engine) as messages:
            sent = await send(messages, callback_url=receiver.url())
            await answer(engine, b'"hi"')
            await delivered(engine, sent)
            await engine.submit(
                CALLBACKS,
                msgspec.json.encode({"message_id": sent.message_id}),
                id="again",
                headers={"handler": handler},
            )
            again = await engine.events.ended(job_ref(CALLBACKS, "again"), within=SOON)
        assert again.state is State.DEAD
        assert len(receiver.requests) == 1

    @pytest.mark.parametrize(
        ("payload", "pushed"),
        [
            (b"hello", {"message": "hello"}),
            (b'{"type": "payment"}', {"message": '{"type": "payment"}'}),
        ],
    )
    async def test_is_pushed_as_the_text_of_a_message(
        self,
        server: EmbeddedServer,
        engine: Engine,
        receiver: Receiver,
        payload: bytes,
        *,
        pushed: dict[str, str],
    ) -> None:
        receiver.answer = http(body=b'"ok"')
        async with pushing(server, engine, receiver) as messages:
            await messages.queue.prepare()
            await engine.submit(MESSAGES, payload, id="raw", lane="ann")
            await engine.events.ended(message_ref("raw"), within=SOON)
        [request] = receiver.requests
        assert msgspec.json.decode(request.body) == {**pushed, "message_id": "raw", "attempt": 1}
