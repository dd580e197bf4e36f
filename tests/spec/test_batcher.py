"""The micro-batcher: submits that come at the same time travel in one script call."""

import asyncio

import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import REVIEWS, claim, ids_of
from towpath.engine.durability import Durability
from towpath.engine.engine import LARGEST_BATCH, Engine
from towpath.engine.model import new_job
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import DurabilityUnavailable, EngineClosed, InvalidOption, QueueFull

MEMORY = Durability.parse("memory")


@pytest.fixture(autouse=True)
async def queue_in_use(engine: Engine) -> None:
    """The queue is in use, and Redis knows the script."""
    await engine.submit("warm", b"")
    await engine.queues.configure(REVIEWS, QueueOptions())


async def listed(engine: Engine, queue: str, state: State) -> list[str]:
    """The ids of all jobs in that state, in order."""
    page = await engine.inspect.list(queue, state, size=1000)
    ids: list[str] = [job.id for job in page.jobs]
    while page.after is not None:
        page = await engine.inspect.list(queue, state, size=1000, after=page.after)
        ids += [job.id for job in page.jobs]
    return ids


def scripts(deployment: Deployment) -> int:
    return deployment.calls("evalsha", "eval")


class TestALoneSubmit:
    async def test_is_sent_alone(self, engine: Engine, deployment: Deployment) -> None:
        before = scripts(deployment)
        await engine.submit(REVIEWS, b"")
        assert scripts(deployment) - before == 1

    async def test_after_another_submit_is_another_call(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        before = scripts(deployment)
        for _ in range(3):
            await engine.submit(REVIEWS, b"")
        assert scripts(deployment) - before == 3


class TestConcurrentSubmits:
    async def test_share_a_call(self, engine: Engine, deployment: Deployment) -> None:
        before = scripts(deployment)
        await asyncio.gather(*(engine.submit(REVIEWS, b"") for _ in range(200)))
        assert scripts(deployment) - before <= 2
        assert (await engine.inspect.counts(REVIEWS)).ready == 200

    async def test_share_the_first_use_of_a_queue(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        before = scripts(deployment)
        await asyncio.gather(*(engine.submit("new", b"") for _ in range(200)))
        assert scripts(deployment) - before <= 5
        assert (await engine.inspect.counts("new")).ready == 200

    async def test_are_answered_each_with_its_own_result(self, engine: Engine) -> None:
        submitting = (engine.submit(REVIEWS, b"", id=f"{n % 50}") for n in range(100))
        answers = await asyncio.gather(*submitting)
        assert [answer.id for answer in answers] == [f"{n % 50}" for n in range(100)]
        assert sum(answer.existed for answer in answers) == 50

    async def test_keep_their_order(self, engine: Engine) -> None:
        await asyncio.gather(*(engine.submit(REVIEWS, b"", id=f"{n}") for n in range(100)))
        assert ids_of(await claim(engine, 100)) == [f"{n}" for n in range(100)]

    async def test_keep_their_order_beyond_the_largest_batch(self, engine: Engine) -> None:
        """The order of calls is the order of the lane, and the order within one priority."""
        numbers = range(3 * LARGEST_BATCH + 100)
        laned = (engine.submit(REVIEWS, b"", id=f"{n}", lane="octo") for n in numbers)
        await asyncio.gather(*laned)
        plain = (engine.submit("plain", b"", id=f"{n}") for n in numbers)
        await asyncio.gather(*plain)
        [head] = await claim(engine)
        assert [head.id, *await listed(engine, REVIEWS, State.WAITING)] == [f"{n}" for n in numbers]
        assert await listed(engine, "plain", State.READY) == [f"{n}" for n in numbers]

    async def test_keep_their_order_however_they_are_submitted(self, engine: Engine) -> None:
        """One by one, many in one step or in several, with and without a durability class."""

        async def several(first: int, count: int) -> None:
            jobs = [new_job(b"", id=f"{n}") for n in range(first, first + count)]
            await engine.submit_many("plain", jobs)

        await asyncio.gather(
            engine.submit("plain", b"", id="0"),
            engine.submit("plain", b"", id="1", durability=MEMORY),
            several(2, 700),
            *(engine.submit("plain", b"", id=f"{n}", durability=MEMORY) for n in range(702, 710)),
            several(710, 3),
            engine.submit("plain", b"", id="713"),
        )
        assert await listed(engine, "plain", State.READY) == [f"{n}" for n in range(714)]

    async def test_keep_their_order_at_the_first_use_of_a_queue(self, engine: Engine) -> None:
        async def late(id: str, turns: int) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            await engine.submit("new", b"", id=id)

        submits = [asyncio.create_task(late(f"{turns:03}", turns)) for turns in range(300)]
        await asyncio.wait(submits)
        found = await listed(engine, "new", State.READY)
        assert found == sorted(found)

    async def test_are_refused_each_with_its_own_error(self, engine: Engine) -> None:
        await engine.queues.configure("short", QueueOptions(max_length=3))
        submitting = (engine.submit("short", b"") for _ in range(5))
        answers = await asyncio.gather(*submitting, return_exceptions=True)
        assert [isinstance(answer, QueueFull) for answer in answers] == [False] * 3 + [True] * 2

    async def test_beside_an_invalid_submit_are_accepted(self, engine: Engine) -> None:
        answers = await asyncio.gather(
            engine.submit(REVIEWS, b"", priority=101),
            engine.submit(REVIEWS, b""),
            return_exceptions=True,
        )
        assert isinstance(answers[0], InvalidOption)
        assert (await engine.inspect.counts(REVIEWS)).ready == 1

    async def test_outlive_a_cancelled_submit_of_their_batch(self, engine: Engine) -> None:
        submits = [asyncio.create_task(engine.submit(REVIEWS, b"")) for _ in range(3)]
        await asyncio.sleep(0)
        submits[1].cancel()
        await asyncio.wait(submits)
        assert [submit.cancelled() for submit in submits] == [False, True, False]
        submits[0].result()
        submits[2].result()

    async def test_beyond_the_largest_batch_are_sent_in_several_calls(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        before = scripts(deployment)
        await asyncio.gather(*(engine.submit(REVIEWS, b"") for _ in range(1200)))
        assert 3 <= scripts(deployment) - before <= 5
        assert (await engine.inspect.counts(REVIEWS)).ready == 1200

    async def test_are_sent_in_several_calls_if_they_are_large(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        """As with `submit_many`, a call is bounded in bytes too."""
        await engine.queues.configure("large", QueueOptions(max_payload=4 * 1024 * 1024))
        before = scripts(deployment)
        await asyncio.gather(*(engine.submit("large", bytes(4 * 1024 * 1024)) for _ in range(5)))
        assert scripts(deployment) - before >= 3


class TestBatches:
    async def test_are_per_queue(self, engine: Engine, deployment: Deployment) -> None:
        before = scripts(deployment)
        queues = ["warm", REVIEWS] * 20
        await asyncio.gather(*(engine.submit(queue, b"") for queue in queues))
        assert 2 <= scripts(deployment) - before <= 4

    async def test_are_per_durability_class(self, engine: Engine, deployment: Deployment) -> None:
        """A submit without a class must not wait for a confirmation that another one asked for."""
        before = scripts(deployment)
        classes = [*[None] * 20, *[MEMORY] * 20]
        await asyncio.gather(
            *(engine.submit(REVIEWS, b"", durability=durability) for durability in classes)
        )
        assert 2 <= scripts(deployment) - before <= 4

    async def test_with_an_unavailable_class_do_not_fail_the_others(self, engine: Engine) -> None:
        answers = await asyncio.gather(
            engine.submit(REVIEWS, b"", durability=Durability.parse("disk")),
            engine.submit(REVIEWS, b""),
            return_exceptions=True,
        )
        assert isinstance(answers[0], DurabilityUnavailable)
        assert (await engine.inspect.counts(REVIEWS)).ready == 1


class TestLeavingAnEngine:
    async def test_waits_for_submits_under_way(
        self, deployment: Deployment, engine: Engine
    ) -> None:
        async with Engine(deployment.url) as leaving:
            await leaving.queues.options(REVIEWS)
            submits = [asyncio.create_task(leaving.submit(REVIEWS, b"")) for _ in range(10)]
            await asyncio.sleep(0)
        assert len(await asyncio.gather(*submits)) == 10
        assert (await engine.inspect.counts(REVIEWS)).ready == 10

    async def test_refuses_later_submits(self, deployment: Deployment) -> None:
        async with Engine(deployment.url) as left:
            await left.queues.options(REVIEWS)
        with pytest.raises(EngineClosed):
            await left.submit(REVIEWS, b"")
