"""list: the jobs in one state, page by page."""

from collections.abc import Awaitable, Callable

import pytest

from tests.spec.jobs_in_states import (
    LEASE,
    REVIEWS,
    buried,
    claim,
    claim_one,
    leased,
    submit_ids,
)
from towpath.clock import ManualClock, hours, seconds
from towpath.engine.engine import Engine
from towpath.engine.model import Complete, job_ref, new_job
from towpath.engine.options import QueueOptions
from towpath.engine.record import STATES
from towpath.engine.states import State
from towpath.errors import InvalidName, InvalidOption

Given = Callable[[Engine, ManualClock], Awaitable[None]]
"""Brings seven jobs into a state."""
IDS = [f"{n:02}" for n in range(7)]


async def ready(engine: Engine, clock: ManualClock) -> None:
    await submit_ids(engine, *IDS)


async def delayed(engine: Engine, clock: ManualClock) -> None:
    jobs = [new_job(b"", id=id, delay=hours(n + 1)) for n, id in enumerate(IDS)]
    await engine.submit_many(REVIEWS, jobs)


async def waiting(engine: Engine, clock: ManualClock) -> None:
    await submit_ids(engine, "head", *IDS, lane="octo")


async def in_hands(engine: Engine, clock: ManualClock) -> None:
    await submit_ids(engine, *IDS)
    for _ in IDS:
        await claim_one(engine)
        clock.advance(seconds(1))


async def done(engine: Engine, clock: ManualClock) -> None:
    await submit_ids(engine, *IDS)
    await engine.settle([Complete(lease) for lease in await claim(engine, len(IDS))])


async def cancelled(engine: Engine, clock: ManualClock) -> None:
    for ref in await submit_ids(engine, *IDS):
        await engine.cancel(ref)


async def dead(engine: Engine, clock: ManualClock) -> None:
    for id in IDS:
        await buried(engine, id)
        clock.advance(seconds(1))


EVERY_STATE = pytest.mark.parametrize(
    ("state", "given"),
    [
        (State.READY, ready),
        (State.DELAYED, delayed),
        (State.WAITING, waiting),
        (State.LEASED, in_hands),
        (State.DONE, done),
        (State.CANCELLED, cancelled),
        (State.DEAD, dead),
    ],
)


async def pages(engine: Engine, state: State, size: int) -> list[list[str]]:
    found: list[list[str]] = []
    after: str | None = None
    while True:
        page = await engine.inspect.list(REVIEWS, state, after=after, size=size)
        found.append([job.id for job in page.jobs])
        after = page.after
        if after is None:
            return found


class TestListingJobs:
    @pytest.fixture(autouse=True)
    async def keeping(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))

    @EVERY_STATE
    async def test_gives_each_job_once_page_by_page(
        self, engine: Engine, clock: ManualClock, state: State, given: Given
    ) -> None:
        await given(engine, clock)
        found = await pages(engine, state, 3)
        assert [id for page in found for id in page] == IDS
        assert all(len(page) <= 3 for page in found)

    @EVERY_STATE
    async def test_gives_only_jobs_in_that_state(
        self, engine: Engine, clock: ManualClock, state: State, given: Given
    ) -> None:
        await given(engine, clock)
        for other in set(STATES) - {state, State.READY}:
            assert (await engine.inspect.list(REVIEWS, other)).jobs == []
        assert {job.state for job in (await engine.inspect.list(REVIEWS, state)).jobs} == {state}

    async def test_keeps_done_and_cancelled_apart(self, engine: Engine) -> None:
        await engine.complete(await leased(engine, "done"))
        [ref] = await submit_ids(engine, "cancelled")
        await engine.cancel(ref)
        assert [job.id for job in (await engine.inspect.list(REVIEWS, State.DONE)).jobs] == ["done"]
        assert [job.id for job in (await engine.inspect.list(REVIEWS, State.CANCELLED)).jobs] == [
            "cancelled"
        ]

    async def test_in_an_empty_state_is_one_empty_page(self, engine: Engine) -> None:
        page = await engine.inspect.list(REVIEWS, State.READY)
        assert (page.jobs, page.after) == ([], None)

    async def test_shows_everything_but_the_payload(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.submit(REVIEWS, b"secret", id="a", lane="octo", priority=70)
        [job] = (await engine.inspect.list(REVIEWS, State.READY)).jobs
        assert job.ref == job_ref(REVIEWS, "a")
        assert (job.lane, job.priority, job.submitted_at) == ("octo", 70, clock.now)
        assert job.payload == b""

    async def test_shows_until_when_a_job_is_leased(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        lease = await leased(engine)
        [job] = (await engine.inspect.list(REVIEWS, State.LEASED)).jobs
        assert (job.worker, job.token) == ("anna", lease.token)
        assert job.expires_at == clock.now + LEASE

    async def test_skips_no_job_that_stays_while_others_leave(self, engine: Engine) -> None:
        refs = await submit_ids(engine, *IDS)
        first = await engine.inspect.list(REVIEWS, State.READY, size=3)
        for ref in refs[:3]:
            await engine.cancel(ref)
        rest = await engine.inspect.list(REVIEWS, State.READY, after=first.after)
        assert {job.id for job in rest.jobs} >= set(IDS[3:])

    async def test_leaves_out_finished_jobs_whose_retention_is_over(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.complete(await leased(engine))
        clock.advance(hours(1))
        assert (await engine.inspect.list(REVIEWS, State.DONE)).jobs == []


class TestListingOneLane:
    async def test_gives_its_waiting_jobs_in_order(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b", "c", lane="octo")
        await submit_ids(engine, "x", "y", lane="other")
        page = await engine.inspect.list(REVIEWS, State.WAITING, lane="octo")
        assert [job.id for job in page.jobs] == ["b", "c"]

    async def test_is_refused_for_another_state(self, engine: Engine) -> None:
        with pytest.raises(InvalidOption, match="lane"):
            await engine.inspect.list(REVIEWS, State.READY, lane="octo")

    async def test_is_refused_without_the_name_of_the_lane(self, engine: Engine) -> None:
        with pytest.raises(InvalidName):
            await engine.inspect.list(REVIEWS, State.WAITING, lane="")


class TestListingIsRefused:
    @pytest.mark.parametrize("cursor", ["%", "é", "a", "MTIz", "bmFuIGE=", "MV8wIGE="])
    async def test_after_an_invalid_cursor(self, engine: Engine, cursor: str) -> None:
        """Nonsense, `123` without an id, and scores that only Python reads: `nan a`, `1_0 a`."""
        await submit_ids(engine, "a")
        with pytest.raises(InvalidOption, match="after"):
            await engine.inspect.list(REVIEWS, State.DONE, after=cursor)

    async def test_in_the_state_gone(self, engine: Engine) -> None:
        with pytest.raises(InvalidOption, match="gone"):
            await engine.inspect.list(REVIEWS, State.GONE)
