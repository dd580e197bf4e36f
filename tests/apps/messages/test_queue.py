"""The queue of messages: the operations of its document, first in, first out, one at a time per
user.
"""

import asyncio
import random
from collections import defaultdict

import pytest
from msgspec.structs import replace

from tests.apps.messages.sending import waiting
from towpath.apps.messages.errors import MessageDiffers, MessageNotHeld
from towpath.apps.messages.model import MESSAGE_OPTIONS, MESSAGES, MessagesLoad, UserQueue
from towpath.apps.messages.queue import Dequeued, MessageQueue
from towpath.clock import ManualClock, hours, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.engine.options import QueueOptions
from towpath.errors import InvalidName, LeaseLost


async def enqueue(queue: MessageQueue, user_id: str, *ids: str) -> list[int]:
    return [await queue.enqueue(user_id, id, f'{{"order":"{id}"}}') for id in ids]


class TestTheLifecycleOfTheDocumentation:
    async def test_runs_as_documented(self, queue: MessageQueue) -> None:
        assert await enqueue(queue, "user1", "msg1", "msg2") == [1, 2]
        assert await queue.get_queue_length("user1") == 2

        first = await queue.dequeue("user1")
        assert first == Dequeued("msg1", '{"order":"msg1"}')
        assert first is not None
        assert await queue.is_processing("user1") is True
        assert await queue.get_current_message_id("user1") == "msg1"

        await queue.mark_complete("user1", first.message_id)
        assert await queue.is_processing("user1") is False
        assert await queue.get_current_message_id("user1") is None
        assert await queue.ping() is True


class TestEnqueueing:
    async def test_returns_the_position_among_the_waiting_messages(
        self, queue: MessageQueue
    ) -> None:
        """The message that is being processed does not count."""
        assert await enqueue(queue, "ann", "a", "b") == [1, 2]
        await queue.dequeue("ann")
        assert await enqueue(queue, "ann", "c") == [2]
        assert await enqueue(queue, "ben", "d") == [1]

    async def test_twice_adds_nothing(self, queue: MessageQueue) -> None:
        assert await enqueue(queue, "ann", "a", "b", "b") == [1, 2, 2]
        assert await queue.get_queue_length("ann") == 2

    async def test_with_other_data_under_the_same_id_is_refused(self, queue: MessageQueue) -> None:
        await queue.enqueue("ann", "a", "one")
        with pytest.raises(MessageDiffers):
            await queue.enqueue("ann", "a", "other")

    @pytest.mark.parametrize("user_id", ["", "x" * 513, "é" * 257, "a\nb", "a\x00", "\ud800"])
    async def test_refuses_an_invalid_user_id(self, queue: MessageQueue, user_id: str) -> None:
        with pytest.raises(InvalidName, match="user_id"):
            await queue.enqueue(user_id, "a", "hello")
        assert await queue.load() == MessagesLoad(0, 0)


class TestDequeueingAMessage:
    async def test_returns_nothing_from_an_empty_queue(self, queue: MessageQueue) -> None:
        assert await queue.dequeue("nobody") is None
        assert await queue.user("nobody") == waiting(0)

    async def test_returns_none_while_the_user_has_a_message_in_process(
        self, queue: MessageQueue
    ) -> None:
        await enqueue(queue, "ann", "a", "b")
        assert await queue.dequeue("ann") is not None
        assert await queue.dequeue("ann") is None
        assert await queue.user("ann") == UserQueue(1, is_processing=True, current_message_id="a")

    async def test_takes_only_messages_of_that_user(self, queue: MessageQueue) -> None:
        await enqueue(queue, "ann", "a")
        await enqueue(queue, "ben", "b")
        found = await queue.dequeue("ben")
        assert found is not None
        assert found.message_id == "b"

    async def test_brings_it_back_after_300_seconds_at_its_old_place(
        self, queue: MessageQueue, clock: ManualClock
    ) -> None:
        await enqueue(queue, "ann", "a", "b")
        await queue.dequeue("ann")
        clock.advance(seconds(299))
        assert await queue.is_processing("ann") is True
        clock.advance(seconds(2))
        assert await queue.user("ann") == waiting(2)
        again = await queue.dequeue("ann")
        assert again is not None
        assert again.message_id == "a"


class TestCompleting:
    async def test_is_refused_once_another_consumer_has_the_message(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        stalled, current = MessageQueue(engine), MessageQueue(engine)
        await enqueue(stalled, "ann", "a")
        await stalled.dequeue("ann")
        clock.advance(seconds(301))
        await current.dequeue("ann")

        with pytest.raises(LeaseLost):
            await stalled.mark_complete("ann", "a")
        assert await current.get_current_message_id("ann") == "a"

    async def test_is_refused_in_a_process_that_did_not_dequeue_the_message(
        self, engine: Engine
    ) -> None:
        queue = MessageQueue(engine)
        await enqueue(queue, "ann", "a")
        await queue.dequeue("ann")
        for other, user_id in ((MessageQueue(engine), "ann"), (queue, "ben")):
            with pytest.raises(MessageNotHeld):
                await other.mark_complete(user_id, "a")

    async def test_forgets_messages_that_are_never_completed(
        self, queue: MessageQueue, clock: ManualClock
    ) -> None:
        for i in range(20):
            await enqueue(queue, f"user{i}", f"m{i}")
            await queue.dequeue(f"user{i}")
            clock.advance(seconds(200))
        assert len(queue._held) <= 2  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]


class TestCounting:
    async def test_returns_the_users_that_wait_and_the_messages_in_process(
        self, queue: MessageQueue
    ) -> None:
        await enqueue(queue, "ann", "a1", "a2")
        await enqueue(queue, "ben", "b1")
        assert await queue.load() == MessagesLoad(2, 0)
        await queue.dequeue("ben")
        await queue.mark_complete("ben", "b1")
        assert await queue.load() == MessagesLoad(1, 0)
        await queue.dequeue("ann")
        assert await queue.get_processing_count() == 1
        assert await queue.get_active_queue_count() == 1

    async def test_leaves_out_a_user_whose_only_message_is_in_process(
        self, queue: MessageQueue
    ) -> None:
        await enqueue(queue, "ann", "a")
        await queue.dequeue("ann")
        assert await queue.load() == MessagesLoad(0, 1)

    async def test_ping_is_false_while_redis_is_away(self) -> None:
        with EmbeddedServer() as server:
            limits = Limits(answer=seconds(0.2), give_up=seconds(0.2))
            engine = Engine(server.url, limits=limits)
            await engine.__aenter__()
        assert await MessageQueue(engine).ping() is False
        await engine.__aexit__()


class TestTheOptionsOfTheQueue:
    async def test_are_set_even_if_a_claim_created_the_queue(self, queue: MessageQueue) -> None:
        """With other options, answers would be deleted at once."""
        await queue.engine.claim(MESSAGES, worker="early", lease=seconds(1))
        await enqueue(queue, "ann", "a")
        assert await queue.engine.queues.options(MESSAGES) == MESSAGE_OPTIONS

    async def test_stay_as_an_operator_chose_them(self, queue: MessageQueue) -> None:
        chosen = QueueOptions(keep=hours(2), max_length=10)
        await queue.engine.queues.configure(MESSAGES, chosen)
        await enqueue(queue, "ann", "a")
        stored = await queue.engine.queues.options(MESSAGES)
        assert stored == replace(MESSAGE_OPTIONS, keep=hours(2), max_length=10)


async def test_order_per_user_is_exact_when_consumers_crash(
    engine: Engine, clock: ManualClock
) -> None:
    """20 users, 10 messages each, 8 consumers, of which some stop without completing."""
    queue, chance = MessageQueue(engine), random.Random(5)
    await engine.queues.configure(
        MESSAGES, QueueOptions(max_attempts=1000, max_deaths=1000, keep=hours(1))
    )
    for i in range(10):
        for user in range(20):
            await queue.enqueue(f"u{user}", f"u{user}-{i}", str(i))
    done: dict[str, list[int]] = defaultdict(list)
    in_process: set[str] = set()

    async def consume(name: str) -> None:
        while leases := await engine.claim(MESSAGES, worker=name, lease=seconds(30), count=2):
            for lease in leases:
                assert lease.lane is not None
                assert lease.lane not in in_process
                in_process.add(lease.lane)
            for lease in leases:
                assert lease.lane is not None
                if chance.random() < 0.2:
                    continue  # it crashed: its lease is neither settled nor renewed
                # from here on another consumer may hold the next one
                in_process.discard(lease.lane)
                await engine.complete(lease)
                done[lease.lane].append(int(lease.payload))

    while sum(map(len, done.values())) < 200:
        await asyncio.gather(*(consume(f"c{i}") for i in range(8)))
        clock.advance(seconds(31))
        in_process.clear()
    assert {user: done[user] for user in done} == {f"u{i}": list(range(10)) for i in range(20)}
