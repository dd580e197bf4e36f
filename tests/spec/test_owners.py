"""The owner of a job: with it, a change is made only to a job of that owner."""

from collections.abc import Awaitable, Callable

import pytest

from tests.spec.jobs_in_states import LEASE, REVIEWS, claim_one
from towpath.clock import hours
from towpath.engine.engine import Engine
from towpath.engine.model import JobRef, job_ref
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import InvalidName, JobNotFound, NotOwned

CHANGES: dict[str, Callable[[Engine, JobRef, str], Awaitable[object]]] = {
    "cancel": lambda engine, job, owner: engine.cancel(job, for_owner=owner),
    "move": lambda engine, job, owner: engine.move(job, delay=hours(1), for_owner=owner),
    "set": lambda engine, job, owner: engine.set(
        job.queue, b"new", id=job.id, owner=owner, for_owner=owner
    ),
}
each_change = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
Change = Callable[[Engine, JobRef, str], Awaitable[object]]


async def submitted(engine: Engine, owner: str | None) -> JobRef:
    await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
    return (await engine.submit(REVIEWS, b"old", id="a", owner=owner)).job


class TestTheOwnerOfAJob:
    async def test_is_shown_to_readers_and_to_the_worker(self, engine: Engine) -> None:
        job = await submitted(engine, "ann")
        assert (await engine.inspect.job(job)).owner == "ann"
        assert (await claim_one(engine)).owner == "ann"

    async def test_is_none_by_default(self, engine: Engine) -> None:
        assert (await engine.inspect.job(await submitted(engine, None))).owner is None

    @pytest.mark.parametrize("owner", ["", "a\nb", "x" * 513])
    async def test_follows_the_rule_for_names(self, engine: Engine, owner: str) -> None:
        with pytest.raises(InvalidName):
            await submitted(engine, owner)


@each_change
class TestAChangeForOneOwner:
    async def test_is_made_to_a_job_of_that_owner(self, engine: Engine, change: Change) -> None:
        job = await submitted(engine, "ann")
        await change(engine, job, "ann")
        found = await engine.inspect.job(job)
        assert (found.owner, found.state is State.READY) == ("ann", found.payload == b"new")

    @pytest.mark.parametrize("owner", ["bob", None])
    async def test_is_refused_for_any_other_job(
        self, engine: Engine, change: Change, owner: str | None
    ) -> None:
        job = await submitted(engine, owner)
        with pytest.raises(NotOwned):
            await change(engine, job, "ann")
        found = await engine.inspect.job(job)
        assert (found.owner, found.state, found.payload) == (owner, State.READY, b"old")

    async def test_is_refused_while_another_owners_job_runs(
        self, engine: Engine, change: Change
    ) -> None:
        job = await submitted(engine, "bob")
        lease = await claim_one(engine)
        with pytest.raises(NotOwned):
            await change(engine, job, "ann")
        assert not (await engine.renew(lease, LEASE)).cancel_requested

    async def test_is_refused_after_another_owners_job_has_ended(
        self, engine: Engine, change: Change
    ) -> None:
        job = await submitted(engine, "bob")
        await engine.complete(await claim_one(engine), b"done")
        with pytest.raises(NotOwned):
            await change(engine, job, "ann")
        assert (await engine.inspect.job(job)).result == b"done"


async def test_a_job_that_does_not_exist_can_be_set_by_every_owner(engine: Engine) -> None:
    placed = await engine.set(REVIEWS, b"", id="a", owner="ann", for_owner="ann")
    assert (placed.replaced, (await engine.inspect.job(placed.job)).owner) == (False, "ann")


@pytest.mark.parametrize("name", ["cancel", "move"])
async def test_a_job_that_does_not_exist_is_not_found_by_any_owner(
    engine: Engine, name: str
) -> None:
    with pytest.raises(JobNotFound):
        await CHANGES[name](engine, job_ref(REVIEWS, "nobody"), "ann")


async def test_a_change_without_an_owner_is_made_to_every_job(engine: Engine) -> None:
    job = await submitted(engine, "bob")
    assert await engine.move(job, delay=hours(1)) is State.DELAYED
    assert (await engine.set(REVIEWS, b"new", id="a")).replaced
    assert (await engine.inspect.job(job)).owner is None
    assert await engine.cancel(job) is State.CANCELLED
