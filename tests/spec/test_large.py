"""Answers are bounded in bytes, so they arrive over a slow connection too."""

from typing import Any

import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import LEASE, REVIEWS, claim, ids_of
from towpath.clock import ZERO
from towpath.embedded.process import items
from towpath.engine.engine import Engine
from towpath.engine.keys import keys_of
from towpath.engine.model import Call, Complete, NewJob, new_job
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.ids import JobId, QueueName

MEBIBYTE = 1024 * 1024
ANSWER = 8 * MEBIBYTE
KINDS = pytest.mark.parametrize("more", [None, {"priority": 60}], ids=["plain", "special"])


@pytest.fixture(autouse=True)
async def large(engine: Engine) -> None:
    """Jobs may be large, and the queue was claimed from just now: plain jobs go the short way."""
    await engine.queues.configure(REVIEWS, QueueOptions(max_payload=9 * MEBIBYTE, remember=ZERO))
    await claim(engine)


async def submit(engine: Engine, more: Any, *sizes: int) -> list[str]:
    """Submits one job per size, in MiB; returns their ids in order."""
    jobs = [NewJob(JobId(f"{n}"), bytes(size * MEBIBYTE), more) for n, size in enumerate(sizes)]
    await engine.submit_many(REVIEWS, jobs)
    return [job.id for job in jobs]


class TestAClaim:
    @KINDS
    async def test_of_large_jobs_returns_as_many_as_one_answer_carries(
        self, engine: Engine, more: Any
    ) -> None:
        ids = await submit(engine, more, 3, 3, 3, 3, 3)
        claimed = [ids_of(await claim(engine, 5)) for _ in range(4)]
        assert claimed == [ids[:2], ids[2:4], ids[4:], []]

    @KINDS
    async def test_returns_at_least_one_job(self, engine: Engine, more: Any) -> None:
        ids = await submit(engine, more, 9, 9, 0)
        assert [ids_of(await claim(engine, 3)) for _ in range(3)] == [[id] for id in ids]

    @KINDS
    async def test_of_jobs_that_fit_returns_all(self, engine: Engine, more: Any) -> None:
        ids = await submit(engine, more, 0, 0, 4, 0, 4, 0, 0)
        assert ids_of(await claim(engine, 10)) == ids

    @KINDS
    async def test_tells_at_once_that_more_jobs_are_ready(self, engine: Engine, more: Any) -> None:
        """These jobs keep their places."""
        ids = await submit(engine, more, 5, 5, 0)
        first = await engine.exchange(REVIEWS, [], worker="anna", lease=LEASE, count=3)
        assert (ids_of(first.leases), first.left, first.due_in) == (ids[:1], 2, ZERO)
        page = await engine.inspect.list(REVIEWS, State.READY)
        assert [(job.id, job.attempts) for job in page.jobs] == [(id, 0) for id in ids[1:]]
        settled = [Complete(lease) for lease in first.leases]
        second = await engine.exchange(REVIEWS, settled, worker="anna", lease=LEASE, count=3)
        assert (ids_of(second.leases), second.left) == (ids[1:], 0)
        assert second.due_in != ZERO

    @KINDS
    async def test_that_is_repeated_returns_the_same_jobs(self, engine: Engine, more: Any) -> None:
        await submit(engine, more, 5, 5)
        call = Call("client-7", 1)
        first, again = [
            await engine.claim(REVIEWS, worker="anna", lease=LEASE, count=2, call=call)
            for _ in range(2)
        ]
        assert ids_of(first) == ids_of(again) == ["0"]


class TestSettling:
    async def test_with_large_results_takes_several_calls(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        """Requests are bounded in bytes as well."""
        await submit(engine, {"keep": 60_000}, 0, 0, 0, 0, 0)
        leases = await claim(engine, 5)
        before = deployment.calls("evalsha", "eval")
        outcomes = await engine.settle([Complete(lease, bytes(3 * MEBIBYTE)) for lease in leases])
        assert outcomes == [State.DONE] * 5
        assert deployment.calls("evalsha", "eval") - before >= 3


class TestAListOfJobs:
    async def test_with_large_records_takes_several_pages(self, engine: Engine) -> None:
        ids = await submit(engine, None, *[0] * 130)
        for lease in await claim(engine, 130):
            await engine.progress(lease, bytes(64 * 1024))
        first = await engine.inspect.list(REVIEWS, State.LEASED, size=130)
        assert len(first.jobs) < 130
        assert sum(len(job.progress or b"") for job in first.jobs) <= ANSWER
        rest = await engine.inspect.list(REVIEWS, State.LEASED, size=130, after=first.after)
        assert rest.after is None
        assert sorted(job.id for job in first.jobs + rest.jobs) == sorted(ids)


class TestTheStreamOfEvents:
    LONG = 500

    async def test_is_capped_in_bytes(self, engine: Engine, deployment: Deployment) -> None:
        """Each entry has a limit in bytes, and the stream a limit of entries."""
        await engine.queues.reconfigure(REVIEWS, QueueOptions(events_most=20))
        for batch in range(4):
            jobs = [new_job(b"", id=f"{batch}-{n}".ljust(self.LONG, "x")) for n in range(500)]
            await engine.submit_many(REVIEWS, jobs)
        key = keys_of(QueueName(REVIEWS)).events
        entries = items(deployment.ask("XRANGE", key, "-", "+"))
        sizes = [len(items(items(entry)[1])[1]) for entry in entries]  # pyright: ignore[reportArgumentType] -- texts
        assert max(sizes) <= 8192 + self.LONG
        assert len(sizes) <= 20 + 100, "XADD trims whole nodes"

    async def test_has_all_jobs_of_a_large_batch_in_order(self, engine: Engine) -> None:
        jobs = [new_job(b"", id=f"{n}".ljust(self.LONG, "x")) for n in range(100)]
        await engine.submit_many(REVIEWS, jobs)
        leases = await claim(engine, 100)
        await engine.settle([Complete(lease) for lease in leases])
        told = [
            (event.verb, event.job.id) for event in await engine.events.list(REVIEWS, size=1000)
        ]
        ids = [job.id for job in jobs]
        assert told == [(verb, id) for verb in ("submit", "claim", "complete") for id in ids]
