"""The queue of review tasks by the names of its document: order, delay, and the queue behind it."""

import asyncio
import socket
from math import inf, nan

import pytest

from tests.apps.reviews.dequeuing import QUEUE, RETRY, drained, job
from tests.spec.deployment import Deployment
from towpath.apps.reviews.queue import TASK_OPTIONS, ReviewQueue, TaskNotHeld
from towpath.clock import ZERO, ManualClock, hours, milliseconds, seconds
from towpath.embedded import EmbeddedServer
from towpath.embedded.process import items
from towpath.engine.engine import Engine
from towpath.engine.model import HIGH, LOW, NORMAL
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import InvalidName, InvalidOption, QueueDiffers


class TestTheOrderOfReviewTasks:
    """AC1, AC2, AC7."""

    async def test_is_high_before_normal_before_low(self, queue: ReviewQueue) -> None:
        for task, priority in (("1", LOW), ("2", NORMAL), ("3", HIGH), ("4", 75)):
            assert await queue.enqueue(task, priority)
        assert await drained(queue) == ["3", "4", "2", "1"]

    async def test_is_first_in_first_out_within_a_priority(
        self, queue: ReviewQueue, clock: ManualClock
    ) -> None:
        """This holds within one millisecond too, where the text of the ids says otherwise."""
        tasks = [str(n) for n in range(120)]
        for task in tasks:
            await queue.enqueue(task, HIGH)
        clock.advance(milliseconds(1))
        await queue.enqueue("0-later", HIGH)
        assert await drained(queue) == [*tasks, "0-later"]

    async def test_of_mixed_work_is_by_priority_then_by_arrival(self, queue: ReviewQueue) -> None:
        for n in range(60):
            await queue.enqueue(str(n), (HIGH, NORMAL, LOW)[n % 3])
        wanted = [str(n) for third in range(3) for n in range(third, 60, 3)]
        assert await drained(queue) == wanted

    @pytest.mark.parametrize("priority", [HIGH, 73, NORMAL, LOW])
    async def test_is_the_score_of_the_document(
        self, queue: ReviewQueue, server: EmbeddedServer, clock: ManualClock, priority: int
    ) -> None:
        """(100 - priority) · 1e13 + the time in ms, under the key of the document with its tag."""
        await queue.enqueue("42", priority)
        now_ms = int(clock.now.timestamp() * 1000)
        assert items(server.ask("ZRANGE", QUEUE, 0, -1)) == [b"42"]
        assert server.ask("ZSCORE", QUEUE, "42") == b"%d" % ((100 - priority) * 10**13 + now_ms)

    async def test_counts_ticks_while_the_clock_stands_still(
        self, queue: ReviewQueue, server: EmbeddedServer, clock: ManualClock
    ) -> None:
        for task in ("9", "10", "11"):
            await queue.enqueue(task, HIGH)
        now_ms = int(clock.now.timestamp() * 1000)
        scored = items(server.ask("ZRANGE", QUEUE, 0, -1, "WITHSCORES"))
        assert [int(score) for score in scored[1::2] if isinstance(score, bytes)] == [
            now_ms,
            now_ms + 1,
            now_ms + 2,
        ]

    @pytest.mark.parametrize("priority", [-1, 101, 50.0, True, None])
    async def test_knows_no_other_priorities(self, queue: ReviewQueue, priority: int) -> None:
        with pytest.raises(InvalidOption, match="priority"):
            await queue.enqueue("42", priority)
        assert await queue.queue_size() == 0


class TestEnqueuingAReviewTask:
    async def test_twice_makes_one_task(self, queue: ReviewQueue) -> None:
        """Priority and place of the first one stay."""
        assert await queue.enqueue("a", NORMAL)
        assert await queue.enqueue("b", NORMAL)
        assert not await queue.enqueue("b", HIGH)
        assert await queue.queue_size() == 2
        assert await drained(queue) == ["a", "b"]

    async def test_that_is_in_process_adds_nothing(self, queue: ReviewQueue) -> None:
        await queue.enqueue("a")
        await queue.dequeue()
        assert not await queue.enqueue("a")
        assert await queue.dequeue() is None
        await queue.release_lock("a")
        assert await queue.queue_size() == 0

    async def test_that_is_delayed_adds_nothing(self, queue: ReviewQueue) -> None:
        await queue.enqueue("a")
        await queue.dequeue()
        await queue.requeue_with_delay("a", 60)
        assert not await queue.enqueue("a", HIGH)
        assert await queue.dequeue() is None

    async def test_that_has_ended_starts_it_anew(self, queue: ReviewQueue) -> None:
        for _ in range(3):
            assert await queue.enqueue("a")
            assert await drained(queue) == ["a"]

    async def test_that_is_dead_starts_it_anew(
        self, queue: ReviewQueue, engine: Engine, server: EmbeddedServer
    ) -> None:
        """This holds even if the dead job was never a task: its own entry is intact."""
        await queue.queue_size()
        server.ask("ZADD", QUEUE, 1, "a")
        assert await queue.dequeue() is None
        assert (await job(queue, "a")).state is State.DEAD
        assert await queue.enqueue("a", HIGH)
        assert await drained(queue) == ["a"]
        assert (await engine.inspect.counts("task")).dead == 0

    async def test_many_times_at_once_makes_one_task(
        self, queue: ReviewQueue, other: ReviewQueue
    ) -> None:
        calls = (service.enqueue("a") for _ in range(20) for service in (queue, other))
        assert sorted(await asyncio.gather(*calls)) == [False] * 39 + [True]
        assert await drained(queue) == ["a"]

    @pytest.mark.parametrize("task", ["", "two\nlines", "\0", "x" * 513, 42])
    async def test_with_an_invalid_name_is_refused(self, queue: ReviewQueue, task: str) -> None:
        with pytest.raises(InvalidName, match="task"):
            await queue.enqueue(task)

    @pytest.mark.parametrize("task", ["octo/repo#7", "a:b:{c}", "Ü", "x" * 512])
    async def test_accepts_real_names(self, queue: ReviewQueue, task: str) -> None:
        await queue.enqueue(task)
        assert await queue.dequeue() == task
        assert await queue.is_locked(task)
        await queue.release_lock(task)


class TestDequeuingAReviewTask:
    """AC3, AC4."""

    async def test_from_an_empty_queue_returns_nothing(self, queue: ReviewQueue) -> None:
        assert await queue.dequeue() is None

    async def test_takes_and_locks_it_in_one_step(
        self, queue: ReviewQueue, server: EmbeddedServer
    ) -> None:
        """It is one script, so there is no moment at which the task is in neither place."""
        await queue.dequeue()  # Redis knows the script from now on
        await queue.enqueue("42", HIGH)
        below = Deployment.of(server)
        before = below.calls("evalsha", "eval")
        assert await queue.dequeue() == "42"
        assert below.calls("evalsha", "eval") == before + 1
        assert server.ask("ZCARD", QUEUE) == 0
        assert await queue.is_locked("42")

    async def test_writes_the_lock_with_its_owner_and_time(
        self, queue: ReviewQueue, server: EmbeddedServer
    ) -> None:
        await queue.enqueue("42")
        await queue.dequeue()
        value = server.ask("GET", "{task}:lock:42")
        assert isinstance(value, bytes)
        owner, _, token = value.decode().rpartition(" ")
        assert owner == queue.worker
        assert int(token) == (await job(queue, "42")).token
        left = server.ask("PTTL", "{task}:lock:42")
        assert isinstance(left, int)
        assert 290_000 < left <= 300_000

    async def test_names_the_owner_by_host_and_a_random_part(
        self, queue: ReviewQueue, other: ReviewQueue
    ) -> None:
        assert queue.worker.startswith(f"{socket.gethostname()}-")
        assert len(queue.worker) == len(socket.gethostname()) + 37
        assert queue.worker != other.worker

    async def test_returns_nothing_while_the_queue_is_paused(
        self, queue: ReviewQueue, engine: Engine
    ) -> None:
        await queue.enqueue("a")
        await engine.queues.pause("task")
        assert await queue.dequeue() is None
        await engine.queues.resume("task")
        assert await queue.dequeue() == "a"


class TestRequeuingAReviewTaskWithDelay:
    """AC5."""

    async def test_returns_the_task_after_its_time_and_never_before(
        self, queue: ReviewQueue, clock: ManualClock
    ) -> None:
        """Neither an empty queue nor a high priority changes that."""
        await queue.enqueue("late", HIGH)
        await queue.dequeue()
        await queue.requeue_with_delay("late", 30)
        clock.advance(seconds(30) - milliseconds(1))
        assert await queue.dequeue() is None
        clock.advance(milliseconds(1))
        assert await queue.dequeue() == "late"

    async def test_lets_tasks_of_a_lower_priority_go_first(
        self, queue: ReviewQueue, clock: ManualClock
    ) -> None:
        await queue.enqueue("late", HIGH)
        await queue.dequeue()
        await queue.requeue_with_delay("late", 30)
        await queue.enqueue("fresh", LOW)
        assert await queue.dequeue() == "fresh"

    async def test_keeps_the_priority(self, queue: ReviewQueue, clock: ManualClock) -> None:
        await queue.enqueue("late", HIGH)
        await queue.dequeue()
        await queue.requeue_with_delay("late", 30)
        await queue.enqueue("fresh", NORMAL)
        clock.advance(seconds(30))
        assert await drained(queue) == ["late", "fresh"]

    async def test_releases_the_lock_and_counts_the_task_as_waiting(
        self, queue: ReviewQueue, server: EmbeddedServer, clock: ManualClock
    ) -> None:
        await queue.enqueue("late")
        await queue.dequeue()
        await queue.requeue_with_delay("late", 1.5)
        assert not await queue.is_locked("late")
        assert await queue.queue_size() == 1
        due_ms = int(clock.now.timestamp() * 1000) + 1500
        assert server.ask("ZSCORE", RETRY, "late") == b"%d" % due_ms

    async def test_may_be_repeated_without_limit(
        self, queue: ReviewQueue, clock: ManualClock
    ) -> None:
        """The record decides how often a task is tried: no attempt is lost here."""
        await queue.enqueue("a")
        for _ in range(20):
            assert await queue.dequeue() == "a"
            await queue.requeue_with_delay("a", 0.1)
            clock.advance(seconds(0.1))

    async def test_of_a_task_that_another_holds_is_refused(
        self, queue: ReviewQueue, other: ReviewQueue
    ) -> None:
        await queue.enqueue("a")
        await queue.dequeue()
        with pytest.raises(TaskNotHeld, match="a"):
            await other.requeue_with_delay("a", 0)
        assert await queue.is_locked("a")

    @pytest.mark.parametrize("delay", [-1, nan, inf, "5", None])
    async def test_refuses_other_delays(self, queue: ReviewQueue, delay: float) -> None:
        await queue.enqueue("a")
        await queue.dequeue()
        with pytest.raises(InvalidOption) as refused:
            await queue.requeue_with_delay("a", delay)
        assert "timedelta" not in str(refused.value)
        assert await queue.is_locked("a")


class TestTheQueueBehindReviewTasks:
    async def test_may_have_another_name(self, engine: Engine, server: EmbeddedServer) -> None:
        queue = ReviewQueue(engine, "reviews.fast")
        await queue.enqueue("a")
        assert server.ask("ZCARD", "{reviews.fast}:queue") == 1
        assert await ReviewQueue(engine).queue_size() == 0

    async def test_accepts_options_that_fit(self, queue: ReviewQueue, engine: Engine) -> None:
        chosen = QueueOptions(remember=ZERO, max_length=10, max_attempts=2)
        await engine.queues.configure("task", chosen)
        for _ in range(2):
            assert await queue.enqueue("a")
            assert await drained(queue) == ["a"]
        assert await engine.queues.options("task") == chosen

    @pytest.mark.parametrize(
        "chosen", [QueueOptions(remember=hours(2)), QueueOptions(remember=ZERO, keep=hours(1))]
    )
    async def test_is_refused_if_it_keeps_ended_jobs(
        self, queue: ReviewQueue, engine: Engine, chosen: QueueOptions
    ) -> None:
        """A task could not start anew there."""
        await engine.queues.configure("task", chosen)
        with pytest.raises(QueueDiffers, match=r"remember|keep"):
            await queue.enqueue("a")

    async def test_gets_its_options_even_if_it_was_inspected_before(
        self, queue: ReviewQueue, engine: Engine
    ) -> None:
        await engine.claim("task", worker="early", lease=seconds(1))
        await queue.enqueue("a")
        assert await engine.queues.options("task") == TASK_OPTIONS
