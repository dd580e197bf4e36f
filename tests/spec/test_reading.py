"""A reader finds an unused queue empty and leaves nothing behind in it."""

from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from tests.spec.deployment import Deployment
from towpath.clock import milliseconds
from towpath.engine.engine import Engine
from towpath.engine.keys import keys_of
from towpath.engine.model import job_ref, new_job
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import JobNotFound, ScheduleNotFound, StillOpen, TowpathError
from towpath.ids import queue_name

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
    "histories": lambda engine: engine.inspect.histories([NOWHERE, "elsewhere"]),
    "counts": lambda engine: engine.inspect.counts(NOWHERE),
    "counts_of": lambda engine: engine.inspect.counts_of([NOWHERE, "elsewhere"]),
    "options": lambda engine: engine.queues.options(NOWHERE),
    "known_options": lambda engine: engine.queues.known_options(NOWHERE),
    "events": lambda engine: engine.events.list(NOWHERE),
    "newest_event": lambda engine: engine.events.newest(NOWHERE),
    "follow": followed,
    "ended": lambda engine: engine.events.ended(JOB, within=milliseconds(20)),
    "living": lambda engine: engine.workers.list(),
    "queues": lambda engine: engine.queues.list(),
    "schedules": lambda engine: engine.schedules.of(NOWHERE),
    "schedules.get": lambda engine: engine.schedules.get(NOWHERE, "nightly"),
    "schedules.list": lambda engine: engine.schedules.list(),
    "schedules.changes": lambda engine: engine.schedules.changes(),
}


@pytest.mark.parametrize("look", LOOKS)
async def test_reading_creates_no_queue(engine: Engine, deployment: Deployment, look: str) -> None:
    with suppress(JobNotFound, ScheduleNotFound, StillOpen):
        await LOOKS[look](engine)
    assert deployment.key_names() == set()


async def test_reading_shows_the_options_of_a_queue_that_another_process_made(
    engine: Engine, other_engine: Engine
) -> None:
    assert await engine.queues.options(NOWHERE) == QueueOptions()
    chosen = QueueOptions(max_attempts=7)
    await other_engine.queues.configure(NOWHERE, chosen)
    assert await engine.queues.options(NOWHERE) == chosen
    assert await engine.queues.known_options(NOWHERE) == chosen


class TestManyQueuesAtOnce:
    """They are read in few messages, with the same answers as one by one."""

    async def test_are_counted(self, engine: Engine, other_engine: Engine) -> None:
        names = [f"queue-{n}" for n in range(120)]
        for n, name in enumerate(names[::10]):
            await engine.submit_many(name, [new_job(b"x") for _ in range(n + 1)])
        found = await other_engine.inspect.counts_of([*names, names[0]])
        assert list(found) == names
        assert [counts.ready for counts in found.values() if counts.ready] == list(range(1, 13))
        assert found == {name: await other_engine.inspect.counts(name) for name in names}
        assert await engine.inspect.counts_of([]) == {}

    async def test_have_their_histories_returned(self, engine: Engine) -> None:
        await engine.submit("a", b"x")
        found = await engine.inspect.histories(["a", "b"])
        assert [found[name].ready[-1] for name in ("a", "b")] == [1, 0]
        assert found["a"] == await engine.inspect.history("a")

    async def test_are_counted_after_redis_has_forgotten_the_scripts(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await engine.submit("a", b"x")
        await engine.inspect.counts_of(["a", "b"])
        for master in deployment.masters:
            master.ask("SCRIPT", "FLUSH")
        found = await engine.inspect.counts_of(["a", "b"])
        assert [counts.ready for counts in found.values()] == [1, 0]

    async def test_are_counted_without_a_corrupt_queue_among_them(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        for name in ("a", "b", "c"):
            await engine.submit(name, b"x")
        deployment.ask("DEL", keys_of(queue_name("b")).queue)
        deployment.ask("SET", keys_of(queue_name("b")).queue, "spoilt")
        with pytest.raises(TowpathError):
            await engine.inspect.counts("b")
        found = await engine.inspect.counts_of(["a", "b", "c"])
        assert {name: counts.ready for name, counts in found.items()} == {"a": 1, "c": 1}
        assert list(await engine.inspect.histories(["a", "b"])) == ["a"]

    async def test_are_counted_when_the_first_is_corrupt_and_the_scripts_are_forgotten(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        for name in ("a", "b"):
            await engine.submit(name, b"x")
        deployment.ask("DEL", keys_of(queue_name("a")).queue)
        deployment.ask("SET", keys_of(queue_name("a")).queue, "spoilt")
        for master in deployment.masters:
            master.ask("SCRIPT", "FLUSH")
        assert list(await engine.inspect.counts_of(["a", "b"])) == ["b"]
