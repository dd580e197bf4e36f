"""A job that has a record is changed only on behalf of its record."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.spec.jobs_in_states import REVIEWS, claim_one
from towpath.clock import hours
from towpath.engine.engine import Engine
from towpath.engine.model import NewJob, job_ref
from towpath.engine.options import LanePolicy, QueueOptions
from towpath.engine.states import State
from towpath.errors import JobHasRecord

JOB = job_ref(REVIEWS, "invoice-7~2")
"""The job of the record invoice-7, as Redis knows it."""
CHANGES: dict[str, Callable[[Engine], Coroutine[Any, Any, object]]] = {
    "cancel": lambda engine: engine.cancel(JOB),
    "move": lambda engine: engine.move(JOB, delay=hours(1)),
    "retry": lambda engine: engine.retry(JOB),
    "delete": lambda engine: engine.delete(JOB),
    "set": lambda engine: engine.set(REVIEWS, b"other", id=JOB.id),
}


async def submit(engine: Engine, **more: Any) -> None:
    job = NewJob(JOB.id, b"", {"named": 1, "record": "invoice-7", **more})
    await engine.submit_many(REVIEWS, [job])


async def bury(engine: Engine) -> None:
    await engine.bury(await claim_one(engine), "hopeless")


@pytest.mark.parametrize("verb", CHANGES)
@pytest.mark.parametrize("state", [State.READY, State.DELAYED, State.LEASED, State.DEAD])
async def test_a_change_is_refused_and_names_the_record(
    engine: Engine, verb: str, state: State
) -> None:
    await submit(engine, **({"delay": 60_000} if state is State.DELAYED else {}))
    if state is State.LEASED:
        await claim_one(engine)
    if state is State.DEAD:
        await bury(engine)
    before = await engine.inspect.job(JOB)
    with pytest.raises(JobHasRecord) as refusal:
        await CHANGES[verb](engine)
    assert refusal.value.record == "invoice-7"
    assert before.state is state
    assert await engine.inspect.job(JOB) == before


async def test_the_record_may_cancel_and_delete_its_job(engine: Engine) -> None:
    await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
    await submit(engine)
    assert await engine.cancel(JOB, by_record=True) is State.CANCELLED
    await engine.delete(JOB, by_record=True)
    assert await engine.inspect.state(JOB) is State.GONE


async def test_leases_and_job_infos_have_the_id_of_the_record(engine: Engine) -> None:
    await submit(engine)
    assert (await engine.inspect.job(JOB)).id == "invoice-7"
    [listed] = (await engine.inspect.list(REVIEWS, State.READY)).jobs
    assert (listed.id, listed.ref) == ("invoice-7", JOB)
    lease = await claim_one(engine)
    assert (lease.id, lease.job) == ("invoice-7", JOB)
    await engine.progress(lease, b"half")
    await engine.complete(lease)


async def test_the_head_of_a_lane_is_named_by_its_record(engine: Engine) -> None:
    await engine.queues.configure(REVIEWS, QueueOptions(lanes=LanePolicy.PARK))
    await submit(engine, lane="anna")
    await engine.submit(REVIEWS, b"", id="behind", lane="anna")
    assert (await engine.inspect.lane(REVIEWS, "anna")).head == "invoice-7"
    await bury(engine)
    assert " invoice-7:" in (await engine.inspect.explain(job_ref(REVIEWS, "behind"))).text
    assert (await engine.drop(REVIEWS, "anna")).id == "invoice-7"
