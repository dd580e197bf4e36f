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
    async with engine.events.follow(NOWHERE):
        pass


LOOKS: dict[str, Look] = {
    "job": lambda engine: engine.inspect.job(JOB),
    "state": lambda engine: engine.inspect.state(JOB),
    "position": lambda engine: engine.inspect.position(JOB),
    "explain": lambda engine: engine.inspect.explain(JOB),
    "lane": lambda engine: engine.inspect.lane(NOWHERE, "ann"),
    "lanes_waiting": lambda engine: engine.inspect.lanes_waiting(NOWHERE),
    "list": lambda engine: engine.inspect.list(NOWHERE, State.READY),
    "search_dead": lambda engine: engine.inspect.search_dead(NOWHERE, "disk"),
    "dead_groups": lambda engine: engine.inspect.dead_groups(NOWHERE),
    "history": lambda engine: engine.inspect.history(NOWHERE),
    "counts": lambda engine: engine.inspect.counts(NOWHERE),
    "options": lambda engine: engine.queues.options(NOWHERE),
    "known_options": lambda engine: engine.queues.known_options(NOWHERE),
    "events": lambda engine: engine.events.list(NOWHERE),
    "newest_event": lambda engine: engine.events.newest(NOWHERE),
    "follow": followed,
    "ended": lambda engine: engine.events.ended(JOB, within=milliseconds(20)),
    "living": lambda engine: engine.workers.list(),
    "queues": lambda engine: engine.queues.list(),
    "recurring": lambda engine: engine.schedules.recurring(NOWHERE),
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
    assert await engine.queues.options(NOWHERE) == QueueOptions()
    chosen = QueueOptions(max_attempts=7)
    await other_engine.queues.configure(NOWHERE, chosen)
    assert await engine.queues.options(NOWHERE) == chosen
    assert await engine.queues.known_options(NOWHERE) == chosen
