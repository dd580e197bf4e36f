"""Brings jobs into a state by the verbs of the engine, for tests that begin in that state."""

from collections.abc import Iterable

from towpath.clock import Duration, seconds
from towpath.engine.engine import Engine
from towpath.engine.model import JobRef, Lease, Submitted, job_ref, new_job

REVIEWS = "reviews"
LEASE = seconds(30)


async def claim(
    engine: Engine, count: int = 1, *, worker: str = "anna", lane: str | None = None
) -> list[Lease]:
    return await engine.claim(REVIEWS, worker=worker, lease=LEASE, count=count, lane=lane)


async def claim_one(engine: Engine, *, worker: str = "anna", lane: str | None = None) -> Lease:
    [lease] = await claim(engine, worker=worker, lane=lane)
    return lease


async def submit_ids(engine: Engine, *ids: str, lane: str | None = None) -> list[JobRef]:
    """Submit one job per id, in one call; the payload is the id."""
    jobs = [new_job(id.encode(), id=id, lane=lane) for id in ids]
    answers = await engine.submit_many(REVIEWS, jobs)
    assert all(isinstance(answer, Submitted) and not answer.existed for answer in answers)
    return [job_ref(REVIEWS, id) for id in ids]


async def leased(
    engine: Engine, id: str = "job", *, lane: str | None = None, lease: Duration = LEASE
) -> Lease:
    """A job that worker anna holds."""
    await submit_ids(engine, id, lane=lane)
    [held] = await engine.claim(REVIEWS, worker="anna", lease=lease)
    return held


async def buried(engine: Engine, id: str = "job", *, lane: str | None = None) -> JobRef:
    """A dead job."""
    lease = await leased(engine, id, lane=lane)
    await engine.bury(lease, "broken")
    return lease.job


def ids_of(leases: Iterable[Lease]) -> list[str]:
    return [lease.id for lease in leases]


async def run_all(engine: Engine) -> list[str]:
    """Claim and complete, one at a time, until nothing is ready; the ids in the order they ran."""
    ran: list[str] = []
    while leases := await claim(engine):
        ran += ids_of(leases)
        await engine.complete(leases[0])
    return ran
