"""I4, I11, I12: worker programs are killed at random; every job is done once, lanes keep order."""

import itertools
import random
from collections import Counter, defaultdict
from pathlib import Path

import msgspec

from tests.faults.queue_contents import QueueContents, contents_of, is_drained
from tests.journals import JournalEntry
from tests.waiting import eventually_async
from tests.worker import worker_program
from tests.worker.worker_programs import WorkerPrograms, programs
from towpath.app.app import Towpath
from towpath.clock import seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import HIGH, NewJob, new_job
from towpath.engine.states import State

JOBS, LANES, WORKERS, KILLS = 3_000, 60, 3, 6

Lanes = dict[str, list[str]]
"""The jobs of each lane in the order they were submitted."""


async def test_every_job_is_done_once_and_in_the_order_of_its_lane(
    server: EmbeddedServer, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    jobs, lanes = new_jobs(chance)
    gate = tmp_path / "gate"
    held = job_at(gate)
    with programs(server.url, tmp_path, lease=seconds(1), concurrency=20) as workers:
        for _ in range(WORKERS):
            workers.start()
        async with Towpath(server.url) as app:
            await app.engine.submit_many(worker_program.QUEUE, [held, *jobs])
            # At least one of the killed programs holds a job; the others may or may not.
            workers.kill(workers.holder_of(held.id))
            gate.touch()
            await kill_at_random(app.engine, workers, chance)
            await eventually_async(lambda: is_drained(app.engine, worker_program.QUEUE))
            found = await contents_of(app.engine, worker_program.QUEUE)
        began, done = workers.entries("began"), workers.entries("job.completed")
    assert found.ids(State.DONE) == {held.id, *(job.id for job in jobs)}
    assert found.counts.totals["completed"] == JOBS + 1
    assert {id: n for id, n in Counter(entry.id for entry in done).items() if n > 1} == {}
    assert disorder(found, began, lanes) == []
    assert found.counts.totals["reaped"] > 0


def job_at(gate: Path) -> NewJob:
    """A job whose handler ends when the gate is open."""
    path = msgspec.json.encode(str(gate))
    return new_job(path, headers={"handler": "wait"}, priority=HIGH, max_attempts=KILLS + 2)


def new_jobs(chance: random.Random) -> tuple[list[NewJob], Lanes]:
    """Jobs, two thirds of them in lanes, with more attempts than kills can use up."""
    jobs: list[NewJob] = []
    lanes: Lanes = defaultdict(list)
    for _ in range(JOBS):
        lane = f"lane-{chance.randrange(LANES)}" if chance.random() < 0.67 else None
        jobs.append(new_job(b"null", lane=lane, max_attempts=KILLS + 2))
        if lane is not None:
            lanes[lane].append(jobs[-1].id)
    return jobs, lanes


async def kill_at_random(engine: Engine, workers: WorkerPrograms, chance: random.Random) -> None:
    """Kills one program whenever some more jobs are done."""
    for number in range(KILLS):
        due = JOBS * 0.8 * (number + chance.random()) / KILLS

        async def enough(due: float = due) -> bool:
            return (await engine.inspect.counts(worker_program.QUEUE)).totals["completed"] >= due

        await eventually_async(enough)
        workers.kill_one(chance)


def disorder(found: QueueContents, began: list[JournalEntry], lanes: Lanes) -> list[str]:
    """Jobs that began before the job ahead of them in their lane had ended."""
    last = {str(id): job.token or 0 for id, job in found.jobs.items()}
    first = dict(last)
    for entry in began:
        first[entry.id] = min(first[entry.id], entry.token)
    pairs = (pair for ids in lanes.values() for pair in itertools.pairwise(ids))
    return [f"{after} before {ahead}" for ahead, after in pairs if first[after] <= last[ahead]]
