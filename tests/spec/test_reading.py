"""Reading: who looks at a queue that nobody used finds it empty, and leaves nothing behind."""

from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from tests.spec.deployment import Deployment
from towpath.clock import milliseconds
from towpath.engine.engine import Engine
from towpath.engine.model import job_ref
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import JobNotFound, ScheduleNotFound, StillOpen

NOWHERE = "nowhere"
JOB = job_ref(NOWHERE, "nobody")
Look = Callable[[Engine], Awaitable[object]]


async def followed(engine: Engine) -> None:
    async with engine.follow(NOWHERE):
        pass


LOOKS: dict[str, Look] = {
    "job": lambda engine: engine.job(JOB),
    "state": lambda engine: engine.state(JOB),
    "position": lambda engine: engine.position(JOB),
    "explain": lambda engine: engine.explain(JOB),
    "lane": lambda engine: engine.lane(NOWHERE, "ann"),
    "lanes_waiting": lambda engine: engine.lanes_waiting(NOWHERE),
    "list": lambda engine: engine.list(NOWHERE, State.READY),
    "search_dead": lambda engine: engine.search_dead(NOWHERE, "disk"),
    "counts": lambda engine: engine.counts(NOWHERE),
    "options": lambda engine: engine.options(NOWHERE),
    "known_options": lambda engine: engine.known_options(NOWHERE),
    "events": lambda engine: engine.events(NOWHERE),
    "newest_event": lambda engine: engine.newest_event(NOWHERE),
    "follow": followed,
    "ended": lambda engine: engine.ended(JOB, within=milliseconds(20)),
    "living": lambda engine: engine.living.list(),
    "queues": lambda engine: engine.queues(),
    "recurring": lambda engine: engine.recurring(NOWHERE),
    "schedules.get": lambda engine: engine.schedules.get(NOWHERE, "nightly"),
    "schedules.list": lambda engine: engine.schedules.list(),
    "schedules.changes": lambda engine: engine.schedules.changes(),
}


@pytest.mark.parametrize("look", LOOKS)
async def test_makes_no_queue(engine: Engine, deployment: Deployment, look: str) -> None:
    with suppress(JobNotFound, ScheduleNotFound, StillOpen):
        await LOOKS[look](engine)
    assert deployment.key_names() == set()


async def test_tells_the_options_of_one_that_another_process_made(
    engine: Engine, other_engine: Engine
) -> None:
    assert await engine.options(NOWHERE) == QueueOptions()
    chosen = QueueOptions(max_attempts=7)
    await other_engine.configure(NOWHERE, chosen)
    assert await engine.options(NOWHERE) == chosen
    assert await engine.known_options(NOWHERE) == chosen
