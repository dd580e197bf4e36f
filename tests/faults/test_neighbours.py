"""One worker process and three queues, two of them in trouble: the third is worked on meanwhile.

The trouble is keys of the wrong type on one Redis, or a frozen master of a cluster. Every job is
done once, those of the good queue by their first attempt, the others once the trouble is over.
"""

from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from tests.faults.queue_contents import QueueContents, contents_of, is_drained
from tests.faults.three_queues_app import BAD, GOOD
from tests.waiting import eventually_async, eventually_in_loop
from tests.worker.test_isolation import FreezableShards, hidden, running_shards, shards
from towpath.clock import seconds, steady
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import new_job
from towpath.engine.states import State
from towpath.testing.process import WorkerProcess

__all__ = ["running_shards", "shards"]
JOBS, BESIDE, DELAY = 2_000, 200, seconds(1)
APP = "tests.faults.three_queues_app:app"


@contextmanager
def broken(server: EmbeddedServer) -> Generator[None]:
    with ExitStack() as stack:
        for queue in BAD:
            stack.enter_context(hidden(server, f"{{{queue}}}:queue"))
        yield


@contextmanager
def frozen(cluster: FreezableShards) -> Generator[None]:
    assert cluster.bad == BAD[0]
    assert BAD[1] in cluster.others
    cluster.freeze()
    yield
    cluster.thaw()


async def test_a_queue_with_keys_of_the_wrong_type_does_not_stop_its_neighbour(
    server: EmbeddedServer,
) -> None:
    await through(server.url, broken(server))


async def test_a_queue_on_a_frozen_master_does_not_stop_its_neighbour(
    shards: FreezableShards,
) -> None:
    await through(shards.url, frozen(shards))


async def through(url: str, trouble: AbstractContextManager[None]) -> None:
    """Starts the *trouble* while a worker process is at work."""
    async with Engine(url) as engine, WorkerProcess(APP, url=url):
        await engine.submit_many(GOOD, [new_job(b"null") for _ in range(100)])
        await eventually_async(lambda: _completed(engine, 100))
        for queue in BAD:
            jobs = [new_job(b"null", delay=DELAY) for _ in range(BESIDE)]
            await engine.submit_many(queue, jobs)
        due = steady() + 2 * DELAY.total_seconds()
        with trouble:
            # The worker claims when the jobs fall due, for all its slots.
            await eventually_in_loop(lambda: steady() > due)
            for _ in range(4):
                jobs = [new_job(b"null") for _ in range((JOBS - 100) // 4)]
                await engine.submit_many(GOOD, jobs)
            await eventually_async(lambda: _completed(engine, JOBS))
        for queue in BAD:
            await eventually_async(lambda name=queue: is_drained(engine, name))
        found = {name: await contents_of(engine, name) for name in (GOOD, *BAD)}
        wrong = {name: await violations(engine, found[name]) for name in found}
    assert {name: len(found[name].ids(State.DONE)) for name in found} == {
        GOOD: JOBS, BAD[0]: BESIDE, BAD[1]: BESIDE,
    }  # fmt: skip
    assert wrong == {name: [] for name in found}


async def _completed(engine: Engine, wanted: int) -> bool:
    return (await engine.inspect.counts(GOOD)).totals["completed"] >= wanted


async def violations(engine: Engine, found: QueueContents) -> list[str]:
    """Jobs that were not done once, or, in the good queue, not by their first attempt."""
    wrong: list[str] = []
    for id, listed in found.jobs.items():
        job = await engine.inspect.job(listed.ref)
        # a lease may end while the master is frozen
        attempts = job.attempts if job.ref.queue == GOOD else 1
        if (attempts, job.result) != (1, b"%d" % (job.token or 0)):
            wrong.append(f"{id}: attempt {job.attempts}, token {job.token}, result {job.result!r}")
    total, states = found.counts.totals["completed"], len(found.ids(State.DONE))
    return wrong if total == states else [*wrong, f"{total} completions of {states} jobs"]
