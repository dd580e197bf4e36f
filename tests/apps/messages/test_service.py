"""Messages for their senders: send, read, watch."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import msgspec
import pytest

from tests.apps.messages.sending import SECRET, a_message, send, waiting
from tests.waiting import HANGS, eventually_async
from towpath.apps.messages import service
from towpath.apps.messages.errors import MessageDiffers
from towpath.apps.messages.model import (
    CALLBACKS,
    MESSAGES,
    MessageState,
    MessageView,
    message_ref,
)
from towpath.apps.messages.options import MessagesOptions
from towpath.apps.messages.service import Messages
from towpath.clock import ManualClock, hours, milliseconds, minutes, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.keys import keys_of
from towpath.engine.model import Lease, job_ref
from towpath.engine.options import EventPolicy
from towpath.errors import InvalidName, InvalidOption, JobNotFound, PayloadTooLarge

PUBLIC = "https://example.com/hook"


@pytest.fixture
async def messages(engine: Engine) -> AsyncIterator[Messages]:
    async with Messages(engine, MessagesOptions(secrets=(SECRET,))) as messages:
        yield messages


async def claim(engine: Engine) -> Lease:
    [lease] = await engine.claim(MESSAGES, worker="w", lease=seconds(30))
    return lease


class TestSendingAMessage:
    async def test_again_under_the_clients_own_id_is_harmless(self, messages: Messages) -> None:
        await send(messages, message="first")
        sent = await send(messages, client_message_id="c1")
        assert await send(messages, client_message_id="c1") == sent
        assert await messages.user("ann") == waiting(2)

    async def test_again_after_it_has_ended_is_harmless_too(
        self, messages: Messages, engine: Engine, clock: ManualClock
    ) -> None:
        """This holds even when the answer is no longer kept."""
        sent = await send(messages, client_message_id="c1")
        await engine.complete(await claim(engine), b'"hi"')
        for _ in range(2):
            again = await send(messages, client_message_id="c1")
            assert (again.message_id, again.queue_position) == (sent.message_id, 0)
            clock.advance(hours(2))
            await engine.queues.trim(MESSAGES)
        assert (await engine.inspect.counts(MESSAGES)).totals["submitted"] == 1

    async def test_allows_two_users_the_same_id(self, messages: Messages) -> None:
        ann = await send(messages, "ann", client_message_id="c1")
        ben = await send(messages, "ben", client_message_id="c1")
        assert ann.message_id != ben.message_id

    async def test_with_other_content_under_the_same_id_is_refused(
        self, messages: Messages
    ) -> None:
        await send(messages, client_message_id="c1")
        with pytest.raises(MessageDiffers):
            await send(messages, message="other", client_message_id="c1")

    @pytest.mark.parametrize("field", ["user_id", "org_id", "client_id", "client_message_id"])
    @pytest.mark.parametrize("value", ["", "x" * 513, "a\nb", "a\u2028b"])
    async def test_refuses_invalid_names(self, field: str, value: str) -> None:
        with pytest.raises(InvalidName, match=field):
            a_message(**{"user_id": "ann", field: value})

    async def test_over_the_size_limit_of_the_queue_is_refused(
        self, messages: Messages, engine: Engine
    ) -> None:
        for more in ({}, {"callback_url": PUBLIC}):
            with pytest.raises(PayloadTooLarge):
                await send(messages, message="x" * 1024 * 1024, **more)
        assert (await engine.inspect.counts(CALLBACKS)).delayed == 0

    @pytest.mark.parametrize(
        "url",
        [
            "ftp://example.com/", "//example.com", "example.com", "http://", "http://127.0.0.1/",
            "http://10.0.0.1/", "http://[::1]/", "http://[::ffff:10.0.0.1]/", "http://0x7f.1/",
            "http://169.254.169.254/latest/", "http://user:pw@example.com/", "http://2130706433/",
        ],
    )  # fmt: skip
    async def test_refuses_a_callback_url_that_may_not_be_called(
        self, messages: Messages, url: str
    ) -> None:
        with pytest.raises(InvalidOption, match="callback_url") as refused:
            await send(messages, callback_url=url)
        assert url not in str(refused.value)
        assert await messages.user("ann") == waiting(0)

    async def test_refuses_callbacks_if_there_is_no_secret_to_sign_them(
        self, engine: Engine
    ) -> None:
        async with Messages(engine, MessagesOptions()) as unsigned:
            with pytest.raises(InvalidOption, match=r"calls\.secrets"):
                await send(unsigned, callback_url=PUBLIC)


class TestReadingAMessage:
    async def test_shows_each_state_from_queued_to_answered(
        self, messages: Messages, engine: Engine
    ) -> None:
        first, second = await send(messages), await send(messages)
        view = await messages.get(second.message_id)
        assert (view.state, view.queue_position) == (MessageState.QUEUED, 2)

        lease = await claim(engine)
        view = await messages.get(first.message_id)
        assert (view.state, view.queue_position) == (MessageState.PROCESSING, 0)
        assert (await messages.get(second.message_id)).queue_position == 1

        await engine.complete(lease, b'{"text":"hi"}')
        view = await messages.get(first.message_id)
        assert (view.state, view.answer) == (MessageState.ANSWERED, b'{"text":"hi"}')

    async def test_estimates_how_long_it_still_waits(
        self, messages: Messages, engine: Engine, clock: ManualClock
    ) -> None:
        _, _, last = [await send(messages) for _ in range(3)]
        assert (await messages.get(last.message_id)).estimate is None
        lease = await claim(engine)
        clock.advance(seconds(10))
        await engine.complete(lease)
        view = await messages.get(last.message_id)
        assert view.estimate is not None
        assert view.estimate > seconds(0)

    async def test_returns_the_answer_for_an_hour(
        self, messages: Messages, engine: Engine, clock: ManualClock
    ) -> None:
        sent = await send(messages)
        await engine.complete(await claim(engine), b'"hi"')
        clock.advance(minutes(59))
        assert (await messages.get(sent.message_id)).answer == b'"hi"'
        clock.advance(minutes(2))
        with pytest.raises(JobNotFound):
            await messages.get(sent.message_id)

    async def test_after_a_failed_attempt_shows_it_at_its_place(
        self, messages: Messages, engine: Engine
    ) -> None:
        first, second = await send(messages), await send(messages)
        await engine.fail(await claim(engine), "no luck", delay=seconds(5))
        view = await messages.get(first.message_id)
        assert (view.state, view.queue_position, view.reason) == ("queued", 1, "no luck")
        assert (await messages.get(second.message_id)).queue_position == 2


async def state_of(watched: AsyncIterator[MessageView]) -> tuple[str, int]:
    async with asyncio.timeout(HANGS):
        view = await anext(watched)
    return view.state, view.queue_position


class TestWatching:
    async def test_yields_each_position_and_then_the_answer(
        self, messages: Messages, engine: Engine
    ) -> None:
        sent = [await send(messages) for _ in range(3)]
        watched = messages.watch(sent[2].message_id)
        assert await state_of(watched) == ("queued", 3)
        lease = await claim(engine)
        assert await state_of(watched) == ("queued", 2)
        await messages.cancel(sent[1].message_id)
        assert await state_of(watched) == ("queued", 1)
        await engine.complete(lease)
        lease = await claim(engine)
        assert await state_of(watched) == ("processing", 0)
        await engine.progress(lease, b'"half"')
        async with asyncio.timeout(HANGS):
            view = await anext(watched)
        assert view.progress == b'"half"'
        await engine.complete(lease, b'"hi"')
        async with asyncio.timeout(HANGS):
            assert (await anext(watched)).answer == b'"hi"'
            assert [view async for view in watched] == []

    async def test_yields_every_position_of_a_message_that_is_far_behind(
        self, messages: Messages, engine: Engine
    ) -> None:
        """More messages are ahead of it than are watched one by one."""
        last = [await send(messages) for _ in range(130)][-1]
        watched = messages.watch(last.message_id)
        for place in range(129, 0, -1):
            lease = await claim(engine)
            while await state_of(watched) != ("queued", place):
                pass
            await engine.complete(lease)
        await watched.aclose()

    async def test_gives_a_late_watcher_the_answer_at_once(
        self, messages: Messages, engine: Engine
    ) -> None:
        sent = await send(messages)
        await engine.complete(await claim(engine), b'"hi"')
        assert [view.state async for view in messages.watch(sent.message_id)] == ["answered"]

    @pytest.mark.parametrize("end", ["failed", "cancelled"])
    async def test_ends_when_the_message_does(
        self, messages: Messages, engine: Engine, end: str
    ) -> None:
        sent = await send(messages)
        watched = messages.watch(sent.message_id)
        assert await state_of(watched) == ("queued", 1)
        if end == "failed":
            await engine.bury(await claim(engine), "no luck")
        else:
            await messages.cancel(sent.message_id)
        rest = [view.state async for view in watched]
        assert rest[-1] == end

    async def test_shares_one_reader_between_a_thousand_watchers(
        self, messages: Messages, engine: Engine, server: EmbeddedServer
    ) -> None:
        sent = await send(messages)
        watched = [messages.watch(sent.message_id) for _ in range(1000)]
        assert {await state_of(events) for events in watched} == {("queued", 1)}
        assert readers(server) == 1
        await messages.cancel(sent.message_id)
        async with asyncio.timeout(HANGS):
            assert {await state_of(events) for events in watched} == {("cancelled", 0)}
        for events in watched:
            await events.aclose()

    async def test_stops_the_reader_with_the_last_watcher(
        self, messages: Messages, server: EmbeddedServer
    ) -> None:
        sent = await send(messages)
        watched = messages.watch(sent.message_id)
        await anext(watched)

        async def reading(count: int) -> bool:
            return readers(server) == count

        await eventually_async(partial(reading, 1))
        await watched.aclose()
        await eventually_async(partial(reading, 0))


def readers(server: EmbeddedServer) -> int:
    """Connections that wait for events."""
    clients = server.ask("CLIENT", "LIST")
    assert isinstance(clients, bytes)
    return clients.count(b"cmd=xread ")


async def test_the_job_of_a_message_has_its_user_as_lane_and_its_fields_as_payload(
    messages: Messages, engine: Engine
) -> None:
    """A consumer that claims over the API of queues sees who sent it."""
    sent = await send(messages, metadata={"thread": 7})
    job = await engine.inspect.job(message_ref(sent.message_id))
    assert job.lane == "ann"
    assert job.payload == (
        b'{"user_id":"ann","org_id":"acme","message":"hello","client_id":"web",'
        b'"metadata":{"thread":7}}'
    )


class TestTheServerThatAcceptedAMessage:
    """It submits the delivery as soon as the message ends."""

    async def test_submits_no_delivery_for_an_open_message_after_a_loss_of_events(
        self, messages: Messages, engine: Engine, server: EmbeddedServer
    ) -> None:
        """After a loss of events, any message may have ended: the server reads which ones have."""
        first = await send(messages, "ann", callback_url=PUBLIC)
        second = await send(messages, "ben", callback_url=PUBLIC)
        lease = await claim(engine)
        lose_events(server)
        await engine.complete(lease, b'"hi"')
        ended, still_open = (first, second) if lease.id == first.message_id else (second, first)
        await eventually_async(partial(is_submitted, engine, ended.message_id))
        assert not await is_submitted(engine, still_open.message_id)
        await engine.complete(await claim(engine), b'"ho"')
        await eventually_async(partial(is_submitted, engine, still_open.message_id))

    async def test_leaves_deliveries_to_the_sentries_if_the_queue_has_no_events(
        self, messages: Messages, engine: Engine
    ) -> None:
        await send(messages, "ann", callback_url=PUBLIC)
        await set_policy(engine, EventPolicy.NONE)
        await engine.complete(await claim(engine), b'"hi"')
        await send(messages, "ann", callback_url=PUBLIC)
        await engine.complete(await claim(engine), b'"hi"')
        await set_policy(engine, EventPolicy.FOLLOWED)
        last = await send(messages, "ann", callback_url=PUBLIC)
        await engine.complete(await claim(engine), b'"hi"')
        await eventually_async(partial(is_submitted, engine, last.message_id))

    async def test_still_yields_the_answer_after_the_queue_stopped_its_events(
        self, messages: Messages, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(service, "_READ_EVERY", milliseconds(20))
        sent = await send(messages)
        views = messages.watch(sent.message_id)
        assert (await anext(views)).state is MessageState.QUEUED
        await set_policy(engine, EventPolicy.NONE)
        await engine.complete(await claim(engine), b'"hi"')
        async with asyncio.timeout(HANGS):
            states = [view.state async for view in views]
        assert states[-1] is MessageState.ANSWERED


def lose_events(server: EmbeddedServer) -> None:
    """Delete the stream and close all connections, as in a fail-over."""
    server.ask("DEL", keys_of(MESSAGES).events)
    server.ask("CLIENT", "KILL", "TYPE", "normal")


async def set_policy(engine: Engine, policy: EventPolicy) -> None:
    options = await engine.queues.options(MESSAGES)
    await engine.queues.reconfigure(MESSAGES, msgspec.structs.replace(options, events=policy))


async def is_submitted(engine: Engine, message_id: str) -> bool:
    try:
        await engine.inspect.job(job_ref(CALLBACKS, message_id))
    except JobNotFound:
        return False
    return True
