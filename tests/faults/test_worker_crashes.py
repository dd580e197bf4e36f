"""I4, I11, I12: workers are killed and frozen at random; nothing is lost, doubled or reordered."""

import itertools
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.amounts import amount
from tests.faults.queue_contents import QueueContents, contents_of, is_drained
from tests.journals import JournalEntry
from tests.programs import Program, ProgramGroup
from tests.waiting import eventually, eventually_async
from towpath.clock import hours, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import Complete, Lease, NewJob, new_job
from towpath.engine.options import EventPolicy, QueueOptions
from towpath.engine.states import State
from towpath.ids import JobId, LaneKey

QUEUE, CLAIMER = "crashes", "tests.faults.claim_program"
JOBS, SOME = amount(8_000, thoroughly=20_000), 5_000
LANES = 250
WORKERS = 8
FAULTS = 30
LEASE_MS = 400

Lanes = dict[LaneKey, list[JobId]]
"""The jobs of each lane in the order they were submitted."""


async def test_killed_and_frozen_workers_lose_double_and_reorder_no_job(
    server: EmbeddedServer, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    async with Engine(server.url) as engine:
        await engine.queues.configure(QUEUE, QueueOptions(keep=hours(1), events=EventPolicy.NONE))
        jobs, lanes = new_jobs(chance)
        await engine.submit_many(QUEUE, jobs)
        with claimers(server, tmp_path, count=WORKERS) as workers:
            # At least one of the killed workers holds jobs; the others may or may not.
            workers.kill(await stop_a_holder(engine, workers))
            await disturb(engine, workers, chance)
            await eventually_async(lambda: is_drained(engine, QUEUE))
            eventually(lambda: have_ended(workers))
            journals = workers.entries()
        found = await contents_of(engine, QUEUE)
    assert found.ids(State.DONE, State.DEAD) == {job.id for job in jobs}
    assert violations(found, journals) == []
    assert disorder(found, journals, lanes) == []
    assert found.counts.totals["reaped"] > 0, "nobody was killed while holding a job"


async def test_a_worker_frozen_past_its_lease_completes_nothing(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    async with Engine(server.url) as engine:
        await engine.queues.configure(QUEUE, QueueOptions(keep=hours(1)))
        await engine.submit_many(QUEUE, [new_job(b"x") for _ in range(SOME)])
        with claimers(server, tmp_path, count=1) as workers:
            frozen = await stop_a_holder(engine, workers)
            held = (await engine.inspect.counts(QUEUE)).leased
            ours = await claim_all(engine)
            frozen.send_signal(signal.SIGCONT)
            eventually(lambda: words(workers)["lost"] == held)
            outcomes = await engine.settle([Complete(lease) for lease in ours])
            eventually(lambda: have_ended(workers))
            found, journals = await contents_of(engine, QUEUE), workers.entries()
    assert held > 0
    assert set(outcomes) == {State.DONE}
    assert len(ours) + sum(entry.word == "done" for entry in journals) == SOME
    assert violations(found, journals) == []


async def stop_a_holder(engine: Engine, workers: ProgramGroup) -> Program[bytes]:
    """Stops a worker while it holds jobs. If it holds none between two batches, it goes on and this
    tries again.
    """
    stopped: list[Program[bytes]] = []

    async def is_stopped() -> bool:
        for number, program in enumerate(workers.started):
            program.send_signal(signal.SIGSTOP)
            leased = await engine.inspect.list(QUEUE, State.LEASED, size=1000)
            if any(job.worker == f"{CLAIMER}-{number}" for job in leased.jobs):
                stopped.append(program)
                return True
            program.send_signal(signal.SIGCONT)
        return False

    await eventually_async(is_stopped)
    return stopped[0]


def claimers(server: EmbeddedServer, folder: Path, *, count: int) -> ProgramGroup:
    workers = ProgramGroup(CLAIMER, folder)
    for _ in range(count):
        workers.start(server.url, QUEUE, str(LEASE_MS))
    return workers


def have_ended(workers: ProgramGroup) -> bool:
    """Whether all have ended: those that were not killed end when no job is left."""
    return {program.poll() for program in workers.started} <= {0, -signal.SIGKILL}


async def claim_all(engine: Engine) -> list[Lease]:
    """Claims every job that is not done, including those of the frozen worker once its lease has
    ended.
    """
    ours: list[Lease] = []
    while len(ours) < SOME - (await engine.inspect.counts(QUEUE)).totals["completed"]:
        ours += await engine.claim(QUEUE, worker="test", lease=hours(1), count=500, wait=seconds(5))
    return ours


def words(workers: ProgramGroup) -> Counter[str]:
    return Counter(entry.word for entry in workers.entries())


def new_jobs(chance: random.Random) -> tuple[list[NewJob], Lanes]:
    """Jobs of mixed priorities, half of them in lanes."""
    jobs: list[NewJob] = []
    lanes: Lanes = defaultdict(list)
    for number in range(JOBS):
        lane = LaneKey(f"lane-{chance.randrange(LANES)}") if chance.random() < 0.5 else None
        jobs.append(
            new_job(b"%d" % number, lane=lane, priority=chance.choice([0, 10, 50, 50, 90, 100]))
        )
        if lane is not None:
            lanes[lane].append(jobs[-1].id)
    return jobs, lanes


async def disturb(engine: Engine, workers: ProgramGroup, chance: random.Random) -> None:
    """Kills or freezes a worker whenever some more jobs are done; thaws it a few faults later."""
    for number in range(FAULTS):
        due = JOBS * 0.9 * (number + chance.random()) / FAULTS
        await eventually_async(_completed(engine, int(due)))
        if number % 4 == 3:
            workers.thaw()
        if chance.random() < 0.7:
            workers.kill_one(chance)
        else:
            workers.freeze_one(chance)
    workers.thaw()


def _completed(engine: Engine, wanted: int) -> Callable[[], Awaitable[bool]]:
    async def enough() -> bool:
        return (await engine.inspect.counts(QUEUE)).totals["completed"] >= wanted

    return enough


def violations(found: QueueContents, journals: list[JournalEntry]) -> list[str]:
    """Completions that were accepted twice, or under another token than the last one (I4)."""
    done = [entry for entry in journals if entry.word == "done"]
    twice = [id for id, times in Counter(entry.id for entry in done).items() if times > 1]
    stale = [entry.id for entry in done if found.jobs[entry.id].token != entry.token]
    total, states = found.counts.totals["completed"], len(found.ids(State.DONE))
    miscounted = [f"{total} completions of {states} jobs"] if total != states else []
    return [*twice, *stale, *miscounted]


def disorder(found: QueueContents, journals: list[JournalEntry], lanes: Lanes) -> list[str]:
    """Jobs that were delivered before the job ahead of them in their lane had ended (I11).

    Tokens grow with every delivery of the queue, so they tell the order.
    """
    last = {id: job.token or 0 for id, job in found.jobs.items()}
    first = dict(last)
    for entry in journals:
        first[entry.id] = min(first[entry.id], entry.token)
    pairs = (pair for ids in lanes.values() for pair in itertools.pairwise(ids))
    return [f"{after} before {ahead}" for ahead, after in pairs if first[after] <= last[ahead]]
