"""The data of a queue has a layout number: data with another one is refused and not changed."""

from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import REVIEWS, claim_one, submit_ids
from towpath.clock import milliseconds, minutes
from towpath.embedded import CommandRefused
from towpath.embedded.process import items
from towpath.engine.codec import pack
from towpath.engine.engine import Engine
from towpath.engine.keys import REGISTRY, keys_of
from towpath.engine.model import job_ref, new_job
from towpath.engine.options import LAYOUT, QueueOptions, layout_of, version_of
from towpath.engine.script import ARGS, Scripts
from towpath.engine.states import State
from towpath.errors import LayoutDiffers
from towpath.ids import QueueName

META = keys_of(QueueName(REVIEWS)).meta
OLD, LATER = b"{}", b"[2,{}]"
"""What a clone before layouts had numbers, and a later version, keep of a queue's options."""
JOB = job_ref(REVIEWS, "a")
SCRIPTS = Scripts()


@pytest.fixture(params=[OLD, LATER], ids=["of a clone", "of a later version"])
def foreign(request: pytest.FixtureRequest, deployment: Deployment) -> Deployment:
    """A queue with a job that a version with another layout has made."""
    whole: bytes = request.param
    version = "0123456789abcdef" if whole == OLD else "2.0123456789abcdef"
    deployment.ask("HSET", META, "whole", whole, "options", b"\0" * 90, "version", version)
    deployment.ask("SET", keys_of(QueueName(REVIEWS)).job("a"), b"of another form")
    deployment.ask("ZADD", keys_of(QueueName(REVIEWS)).queue, "1", "a")
    deployment.ask("HSET", REGISTRY, REVIEWS, whole)
    return deployment


Calling = Callable[[Engine], Awaitable[object]]
CALLS: dict[str, Calling] = {
    "submit": lambda engine: engine.submit(REVIEWS, b"1"),
    "submit many": lambda engine: engine.submit_many(REVIEWS, [new_job(b"1"), new_job(b"2")]),
    "claim": lambda engine: engine.claim(REVIEWS, worker="anna", lease=minutes(1)),
    "cancel": lambda engine: engine.cancel(JOB),
    "set": lambda engine: engine.set(REVIEWS, b"1", id="a"),
    "pause": lambda engine: engine.queues.pause(REVIEWS),
    "declare": lambda engine: engine.queues.declare(REVIEWS, keep=minutes(1)),
    "configure": lambda engine: engine.queues.configure(REVIEWS, QueueOptions()),
    "reconfigure": lambda engine: engine.queues.reconfigure(REVIEWS, QueueOptions()),
    "delete": lambda engine: engine.queues.delete(REVIEWS, forced=True),
    "incarnation": lambda engine: engine.queues.incarnation(REVIEWS),
    "follow": lambda engine: engine.events.newest(REVIEWS),
    "options": lambda engine: engine.queues.options(REVIEWS),
    "job": lambda engine: engine.inspect.job(JOB),
    "state": lambda engine: engine.inspect.state(JOB),
    "explain": lambda engine: engine.inspect.explain(JOB),
    "lane": lambda engine: engine.inspect.lane(REVIEWS, "ann"),
    "list": lambda engine: engine.inspect.list(REVIEWS, State.READY),
    "search": lambda engine: engine.inspect.search_dead(REVIEWS, "disk"),
    "groups": lambda engine: engine.inspect.dead_groups(REVIEWS),
    "history": lambda engine: engine.inspect.history(REVIEWS),
    "counts": lambda engine: engine.inspect.counts(REVIEWS),
    "ended": lambda engine: engine.events.ended(JOB, within=milliseconds(20)),
    "schedules": lambda engine: engine.schedules.of(REVIEWS),
}


@pytest.mark.parametrize("call", CALLS)
async def test_data_with_another_layout_is_refused_and_not_changed(
    engine: Engine, foreign: Deployment, call: str
) -> None:
    before = foreign.dump()
    with pytest.raises(LayoutDiffers) as refusal:
        await CALLS[call](engine)
    assert refusal.value.queue == REVIEWS
    assert foreign.dump() == before


@pytest.mark.parametrize("verb", ARGS)
def test_no_script_works_on_data_with_another_layout(foreign: Deployment, verb: str) -> None:
    """Writing scripts are called with the options of today's layout."""
    source, before = SCRIPTS[verb].source, foreign.dump()
    version = f"{LAYOUT}.0123456789abcdef"
    words = ("", "channel", "1", pack([]), version, *[""] * 9)
    ask = partial(foreign.ask, "EVAL", source, "2", META, f"{META}:never")
    if verb == "configure":  # the script replaces only the version that its caller has read
        packed = pack({})
        answer = ask("[1,{}]", b"", version, version, "", packed, packed)
        whole, stored, _, _ = items(answer)
        assert [whole, stored] == foreign.ask("HMGET", META, "whole", "version")
    else:
        with pytest.raises(CommandRefused, match=r"LAYOUT_DIFFERS|QUEUE_CHANGED"):
            ask(*words)
    assert foreign.dump() == before


async def test_data_with_another_layout_hides_no_other_queue(
    engine: Engine, foreign: Deployment
) -> None:
    await engine.submit("mails", b"1")
    assert list(await engine.queues.list()) == ["mails"]
    assert list(await engine.inspect.counts_of([REVIEWS, "mails"])) == ["mails"]


async def test_an_engine_that_knew_the_queue_before_is_refused_too(
    engine: Engine, deployment: Deployment
) -> None:
    """The queue was emptied, and another version was the first to use it again."""
    await submit_ids(engine, "a")
    lease = await claim_one(engine)
    deployment.ask("HSET", META, "whole", LATER, "version", "2.0123456789abcdef")
    before = deployment.dump()
    for call in (
        engine.submit(REVIEWS, b"1"),
        engine.complete(lease),
        engine.inspect.counts(REVIEWS),
    ):
        with pytest.raises(LayoutDiffers):
            await call
    assert deployment.dump() == before


def test_the_version_of_options_begins_with_the_layout() -> None:
    """Scripts compare the versions, so none ever works on data of another layout."""
    assert version_of(b"[1,{}]").startswith(f"{LAYOUT}.")


@pytest.mark.parametrize(
    ("stored", "layout"),
    [(b"[1,{}]", 1), (b"[12,{}]", 12), (b"{}", None), (b"", None), (b"?", None)],
)
def test_the_layout_is_read_from_the_stored_options(stored: bytes, layout: int | None) -> None:
    assert layout_of(stored) == layout
