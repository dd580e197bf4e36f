"""The shortest path of a submit leaves the same keys and gives the same answers as the others."""

from typing import Any

import pytest

from tests.queue_numbers import set_numbers
from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import REVIEWS, claim, claim_one
from towpath.clock import ManualClock, hours
from towpath.engine.engine import Engine
from towpath.engine.keys import keys_of
from towpath.engine.model import Call, NewJob
from towpath.engine.options import EventPolicy, QueueOptions
from towpath.engine.script import Scripts
from towpath.errors import CallStale, CallTaken, TowpathError
from towpath.ids import QueueName, job_id

pytestmark = pytest.mark.deployments

META, EVENTS = keys_of(QueueName(REVIEWS)).meta, keys_of(QueueName(REVIEWS)).events
LARGEST = 2000
OTHER_WAYS = {"plain": {"lone_submit"}, "long": {"lone_submit", "plain_submit"}}
"""The pieces that are left out, so that a submit takes that way."""


async def story(engine: Engine, deployment: Deployment) -> object:
    """Makes each call twice: jobs of every size, and ids that are open, leased and kept."""
    options = QueueOptions(max_payload=LARGEST, keep=hours(1))
    await engine.queues.configure(REVIEWS, options)
    await engine.submit_many(REVIEWS, [NewJob(job_id("first"), b"1")])
    set_numbers(deployment.ask, META, watched=0)
    answers: list[object] = []
    numbers = iter(range(1, 100))

    async def submit(id: str, payload: bytes) -> None:
        call = Call("caller", next(numbers))
        for _ in range(2):
            jobs = [NewJob(job_id(id), payload)]
            [answer] = await engine.submit_many(REVIEWS, jobs, call=call)
            answers.append(str(answer) if isinstance(answer, TowpathError) else answer)

    for size in (0, 1, 255, 256, 257, LARGEST, LARGEST + 1):
        await submit(f"of-{size}", b"x" * size)
    await submit("of-0", b"")
    await submit("of-257", b"another")
    await engine.complete(await claim_one(engine), b"kept")
    held = await claim(engine, 2)
    for id in ("first", *(lease.id for lease in held)):
        await submit(id, b"again")
    set_numbers(deployment.ask, META, paused=1)
    await submit("while-paused", b"1")
    return answers, [(lease.id, lease.payload, lease.token) for lease in held]


async def outcome(deployment: Deployment, scripts: Scripts) -> object:
    deployment.flush()
    async with Engine(deployment.url, clock=ManualClock(), scripts=scripts) as engine:
        answers, kept = await story(engine, deployment), deployment.dump()
        kept.pop(EVENTS, None)  # their ids contain the time of Redis
        return answers, kept


@pytest.mark.parametrize("way", OTHER_WAYS)
async def test_a_lone_submit_leaves_the_same_keys_as_a_batch(
    deployment: Deployment, way: str
) -> None:
    left_out = OTHER_WAYS[way]
    other = Scripts(lambda piece, text: "" if piece in left_out else text)
    assert await outcome(deployment, Scripts()) == await outcome(deployment, other)


async def test_a_refused_lone_submit_changes_nothing(
    engine: Engine, other_engine: Engine, deployment: Deployment
) -> None:
    """Its number belongs to a call of another verb, or to an older call."""
    await engine.submit_many(REVIEWS, [NewJob(job_id("first"), b"1")])
    set_numbers(deployment.ask, META, watched=0)
    lease = await claim_one(engine)
    await engine.complete(lease, call=Call("caller", 5))
    memory = keys_of(QueueName(REVIEWS)).call("caller")
    before = deployment.dump(), deployment.ask("GET", memory)
    for number, refusal in ((5, CallTaken), (4, CallStale)):
        jobs, refused = [NewJob(job_id("a"), b"1")], pytest.raises(refusal)
        with refused:
            await other_engine.submit_many(REVIEWS, jobs, call=Call("caller", number))
    assert (deployment.dump(), deployment.ask("GET", memory)) == before


NEVER, LATER = 0, 2**42
"""Until when the queue is followed."""


def entries(deployment: Deployment) -> list[list[bytes]]:
    """The fields of each entry in the stream of events."""
    found: Any = deployment.ask("XRANGE", EVENTS, "-", "+")
    return [fields for _, fields in found]


@pytest.mark.parametrize(
    ("policy", "watched", "told"),
    [
        (EventPolicy.FOLLOWED, NEVER, []),
        (EventPolicy.FOLLOWED, LATER, [[b"submit", b"second"]]),
        (EventPolicy.ALL, NEVER, [[b"submit", b"second"]]),
        (EventPolicy.ALL, LATER, [[b"submit", b"second"]]),
        (EventPolicy.NONE, NEVER, []),
    ],
)
async def test_a_lone_submit_writes_its_event(
    engine: Engine,
    deployment: Deployment,
    policy: EventPolicy,
    watched: int,
    told: list[list[bytes]],
) -> None:
    await engine.queues.configure(REVIEWS, QueueOptions(events=policy))
    await engine.submit_many(REVIEWS, [NewJob(job_id("first"), b"1")])
    set_numbers(deployment.ask, META, watched=watched)
    deployment.ask("DEL", EVENTS)
    read_by_others = deployment.calls("mget")
    await engine.submit_many(REVIEWS, [NewJob(job_id("second"), b"2")])
    assert deployment.calls("mget") == read_by_others, "another way took the job"
    assert entries(deployment) == told


async def test_a_lone_submit_leaves_the_mark_of_a_gap_to_other_scripts(
    engine: Engine, deployment: Deployment
) -> None:
    """The time of the followers is over: the first event that is not written becomes a mark."""
    await engine.submit_many(REVIEWS, [NewJob(job_id("first"), b"1")])
    set_numbers(deployment.ask, META, watched=1)
    deployment.ask("DEL", EVENTS)
    for id in ("second", "third"):
        await engine.submit_many(REVIEWS, [NewJob(job_id(id), b"2")])
    assert entries(deployment) == [[b"gap", b""]]
