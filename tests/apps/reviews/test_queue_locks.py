"""The lock of a review task: who holds it, how long it lasts, who may take it away."""

import pytest

from tests.apps.reviews.dequeuing import job
from towpath.apps.reviews.queue import (
    LOCK_TTL,
    TASK_OPTIONS,
    ReviewQueue,
    TaskNotHeld,
    TaskNotLocked,
)
from towpath.clock import ManualClock, milliseconds, seconds
from towpath.engine.states import State
from towpath.errors import JobNotFound, LeaseLost


class TestTheLockOfAReviewTask:
    """AC3, AC6."""

    async def test_exists_from_dequeue_to_release(self, queue: ReviewQueue) -> None:
        assert not await queue.is_locked("a")
        await queue.enqueue("a")
        assert (await queue.queue_size(), await queue.is_locked("a")) == (1, False)
        await queue.dequeue()
        assert (await queue.queue_size(), await queue.is_locked("a")) == (0, True)
        await queue.release_lock("a")
        assert (await queue.queue_size(), await queue.is_locked("a")) == (0, False)
        assert await queue.dequeue() is None

    async def test_of_another_owner_is_not_released(
        self, queue: ReviewQueue, other: ReviewQueue
    ) -> None:
        await queue.enqueue("a")
        await queue.dequeue()
        for verb in (other.release_lock, other.renew):
            with pytest.raises(TaskNotHeld) as refused:
                await verb("a")
            assert refused.value.code == "task_not_held"
            assert "force_release" in refused.value.remedy
        assert await queue.is_locked("a")
        await queue.release_lock("a")

    async def test_that_nobody_holds_is_not_released(self, queue: ReviewQueue) -> None:
        await queue.enqueue("a")
        for task in ("a", "never"):
            with pytest.raises(TaskNotHeld):
                await queue.release_lock(task)

    async def test_is_renewed_for_long_work(self, queue: ReviewQueue, clock: ManualClock) -> None:
        await queue.enqueue("a")
        await queue.dequeue()
        for _ in range(5):
            clock.advance(seconds(299))
            ends = await queue.renew("a")
            assert ends == clock.now + LOCK_TTL
        assert await queue.is_locked("a")
        await queue.release_lock("a")

    async def test_expires_and_the_task_comes_back_at_its_place(
        self, queue: ReviewQueue, other: ReviewQueue, clock: ManualClock
    ) -> None:
        """AC8: no sweep is needed; the next dequeue finds it."""
        for task in ("a", "b"):
            await queue.enqueue(task)
        assert await queue.dequeue() == "a"
        clock.advance(LOCK_TTL - milliseconds(1))
        assert await queue.is_locked("a")
        clock.advance(milliseconds(1))
        assert (await queue.is_locked("a"), await queue.queue_size()) == (False, 2)
        assert await other.dequeue() == "a"

    async def test_that_expired_cannot_be_released_over_its_new_owner(
        self, queue: ReviewQueue, other: ReviewQueue, clock: ManualClock
    ) -> None:
        await queue.enqueue("a")
        await queue.dequeue()
        clock.advance(LOCK_TTL)
        assert await other.dequeue() == "a"
        for call in (queue.release_lock("a"), queue.renew("a"), queue.requeue_with_delay("a", 1)):
            with pytest.raises(LeaseLost):
                await call
        assert await queue.is_locked("a")
        await other.release_lock("a")

    async def test_that_expires_again_and_again_ends_the_task_dead(
        self, queue: ReviewQueue, clock: ManualClock
    ) -> None:
        """A task that kills its workers does not go on for ever, and says why."""
        await queue.enqueue("deadly")
        for _ in range(TASK_OPTIONS.max_attempts or 0):
            assert await queue.dequeue() == "deadly"
            clock.advance(LOCK_TTL)
        assert await queue.dequeue() is None
        dead = await job(queue, "deadly")
        assert dead.state is State.DEAD
        assert dead.reason is not None
        assert queue.worker in dead.reason

    async def test_leaves_no_tokens_of_unreleased_tasks_behind(
        self, queue: ReviewQueue, clock: ManualClock
    ) -> None:
        for n in range(50):
            await queue.enqueue(str(n))
            await queue.dequeue()
            clock.advance(LOCK_TTL)
        assert len(queue._held) < 5  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- what it keeps


class TestForcingALock:
    async def test_releases_the_task_and_refuses_its_holder(
        self, queue: ReviewQueue, other: ReviewQueue
    ) -> None:
        for task in ("a", "b"):
            await queue.enqueue(task)
        await queue.dequeue()
        await other.force_release("a")
        assert (await queue.is_locked("a"), await queue.queue_size()) == (False, 2)
        with pytest.raises(LeaseLost):
            await queue.release_lock("a")
        assert await other.dequeue() == "a"

    async def test_is_refused_without_a_lock(self, queue: ReviewQueue) -> None:
        await queue.enqueue("a")
        with pytest.raises(TaskNotLocked) as refused:
            await queue.force_release("a")
        assert "force_release" not in refused.value.remedy
        with pytest.raises(JobNotFound):
            await queue.force_release("never")
        assert await queue.queue_size() == 1
