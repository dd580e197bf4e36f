"""A timer's due time in service mode is the same whatever becomes of its calls."""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
import pytest
from fastapi import FastAPI

from tests.apps.timers.service_mode import InstancesApi, altered, sample
from tests.calls.receivers import Reader, Receiver, Writer, http, receiving
from tests.waiting import HANGS, eventually_async
from towpath.apps.timers.log import Firing
from towpath.apps.timers.model import TypeKey, new_timer
from towpath.apps.timers.options import TimersOptions
from towpath.apps.timers.service import TimerService
from towpath.apps.timers.types import queue_of
from towpath.clock import instant_ms, milliseconds, seconds
from towpath.engine.retry import Fixed, RetryPolicy
from towpath.engine.states import State

KEY = TypeKey("t", "shop")
OFFSETS = (70, 10, 50, 30, 60, 20, 40)
"""Milliseconds between the first due time and that of each timer, in the order of submission."""
recorded = pytest.mark.parametrize("record", [False, True], ids=["plain", "recorded"])


@pytest.fixture
def timer_options() -> TimersOptions:
    # one at a time, so that calls have an order
    return altered(call_within=seconds(HANGS), calls_per_type=1)


@pytest.fixture
def timers(app: FastAPI) -> TimerService:
    return app.state.services["timers"]


@pytest.fixture
async def gone() -> Receiver:
    """An instance that can't be reached."""
    async with receiving(Receiver()) as gone:
        pass
    return gone


async def submit(
    timers: TimerService, *, record: bool, retry: RetryPolicy | None = None
) -> dict[str, int]:
    """Submit timers that are due soon, in mixed order. Returns their due times by id."""
    margin = 100
    while True:
        base = instant_ms("now", datetime.now(UTC)) + margin
        due = {f"timer-{margin}-{ms}": base + ms for ms in OFFSETS}
        for id, at in due.items():
            made = new_timer("t", app="shop", task_id=id, delay_time=at, record=record, retry=retry)
            assert (await timers.submit(made)).delay_time == at
        if instant_ms("now", datetime.now(UTC)) < base:
            return due
        margin *= 10  # a slow machine: the first was due before the last was submitted
        for id in due:
            await timers.cancel(KEY, id)


async def all_waiting(timers: TimerService, ids: Sequence[str]) -> None:
    """Return once calls to the instance fail and no timer is leased."""

    async def avoided() -> bool:
        found = [(await timers.explain(KEY, id)).why for id in ids]
        return set(found) == {"instances_avoided"}

    await eventually_async(avoided)


async def all_done(timers: TimerService, ids: Sequence[str]) -> None:
    async def done() -> bool:
        return {(await timers.get(KEY, id)).state for id in ids} == {State.DONE}

    await eventually_async(done)


async def firings(timers: TimerService, count: int, outcome: str = "done") -> list[Firing]:
    """Returns the firings with this outcome, once there are *count*."""
    found: list[Firing] = []

    async def logged() -> bool:
        found[:] = [
            firing
            for firing in (await timers.log.read(KEY, size=1000)).firings
            if firing.outcome == outcome
        ]
        return len(found) == count

    await eventually_async(logged)
    return found


def calls(receiver: Receiver) -> list[tuple[str, int]]:
    found = [msgspec.json.decode(request.body) for request in receiver.requests]
    return [(call["task_id"], call["delay_time"]) for call in found]


@recorded
async def test_timers_that_reached_no_instance_are_called_in_the_order_of_due_times(
    app: FastAPI, api: InstancesApi, timers: TimerService, gone: Receiver, *, record: bool
) -> None:
    await api.register(gone.url(), "t")
    due = await submit(timers, record=record)
    await all_waiting(timers, list(due))
    for id, at in due.items():
        assert (await timers.get(KEY, id)).delay_time == at
    async with receiving(Receiver(), port=gone.port) as back:
        await all_done(timers, list(due))
    called = [(id, at) for id, at in calls(back) if id in due]
    assert called == sorted(due.items(), key=lambda timer: timer[1])
    for firing in await firings(timers, len(back.requests)):
        if firing.task_id not in due:
            continue
        assert instant_ms("due", firing.due) == due[firing.task_id]
        assert firing.late == (firing.started_at - firing.due).total_seconds()
        assert firing.attempt == 1


@recorded
async def test_a_timer_that_is_tried_again_keeps_its_due_time(
    app: FastAPI, api: InstancesApi, timers: TimerService, receiver: Receiver, *, record: bool
) -> None:
    """The call, the log and the lateness show the first due time."""
    await api.register(receiver.url(), "t")
    answers = iter([http("500 No"), http("500 No"), http()])

    async def behave(_: Reader, writer: Writer) -> None:
        writer.write(next(answers))
        await writer.drain()

    receiver.behaviour = behave
    at = instant_ms("now", datetime.now(UTC)) + 50
    retry = Fixed(milliseconds(300))
    made = new_timer("t", app="shop", task_id="a", delay_time=at, record=record, retry=retry)
    await timers.submit(made)
    await all_done(timers, ["a"])
    assert calls(receiver) == [("a", at)] * 3
    assert (await timers.get(KEY, "a")).delay_time == at
    [done] = await firings(timers, 1)
    assert instant_ms("due", done.due) == at
    assert (done.attempt, done.late) == (3, (done.started_at - done.due).total_seconds())
    assert done.late >= 0.6, "two waits"
    late = await sample(app, "towpath_timers_late_seconds_sum", queue="timers.shop--t")
    assert late is not None
    assert late >= done.late


@recorded
async def test_a_timer_with_a_past_due_time_has_that_in_the_log(
    app: FastAPI, api: InstancesApi, timers: TimerService, receiver: Receiver, *, record: bool
) -> None:
    """The log shows the due time that was asked for, as the call does."""
    await api.register(receiver.url(), "t")
    receiver.answer = http()
    at = instant_ms("now", datetime.now(UTC)) - 5_000
    await timers.submit(new_timer("t", app="shop", task_id="a", delay_time=at, record=record))
    await all_done(timers, ["a"])
    assert calls(receiver) == [("a", at)]
    [done] = await firings(timers, 1)
    assert instant_ms("due", done.due) == at
    assert done.late >= 5


@recorded
async def test_a_timer_that_is_tried_again_comes_before_those_that_were_due_later(
    app: FastAPI, api: InstancesApi, timers: TimerService, receiver: Receiver, *, record: bool
) -> None:
    """The type is paused during the first call, so that no later timer is claimed meanwhile."""
    due = await submit(timers, record=record, retry=Fixed(milliseconds(1)))
    order = sorted(due, key=lambda id: due[id])
    engine, queue = app.state.engine, queue_of(KEY)

    async def all_are_due() -> bool:
        return instant_ms("now", datetime.now(UTC)) > max(due.values())

    await eventually_async(all_are_due)

    async def behave(_: Reader, writer: Writer) -> None:
        if len(receiver.requests) == 1:
            await engine.queues.pause(queue)
        writer.write(http("500 No" if len(receiver.requests) == 1 else "200 OK"))
        await writer.drain()

    receiver.behaviour = behave
    await api.register(receiver.url(), "t")

    async def first_waits() -> bool:
        return (await timers.get(KEY, order[0])).next_try_at is not None

    async def nobody_holds_one() -> bool:
        return (await engine.inspect.counts(queue)).leased == 0

    await eventually_async(first_waits)
    await eventually_async(nobody_holds_one)
    before = [id for id, _ in calls(receiver)]
    assert before[0] == order[0]
    await engine.queues.resume(queue)
    await all_done(timers, order)
    after = [id for id, _ in calls(receiver)][len(before) :]
    assert after == [id for id in order if id not in before[1:]]
    assert len(after) > 1


async def test_the_lease_of_a_timer_that_was_handed_over_ends_in_the_log(
    api: InstancesApi, timers: TimerService, receiver: Receiver
) -> None:
    """The first attempt is neither completed nor failed."""
    answers = iter([http("202 Accepted", b'{"lease_s": 1}'), http()])

    async def behave(_: Reader, writer: Writer) -> None:
        writer.write(next(answers))
        await writer.drain()

    receiver.behaviour = behave
    await api.register(receiver.url(), "t")
    await timers.submit(new_timer("t", app="shop", task_id="a", delay=0))
    await all_done(timers, ["a"])
    [lost] = await firings(timers, 1, "lost")
    assert (lost.task_id, lost.attempt) == ("a", 1)
    assert lost.worker == f"127.0.0.1:{receiver.port}"
    assert lost.ran >= 1
    [done] = await firings(timers, 1)
    assert done.attempt == 2


async def test_a_timer_that_died_when_its_last_lease_ended_is_in_the_log(
    app: FastAPI, api: InstancesApi, timers: TimerService, receiver: Receiver
) -> None:
    receiver.answer = http("202 Accepted", b'{"lease_s": 1}')
    await api.register(receiver.url(), "t")
    queue = await timers.types.ensure(KEY)
    await app.state.engine.submit(queue, b'{"params": 1}', id="a", max_attempts=1)
    [dead] = await firings(timers, 1, "dead")
    assert (dead.task_id, dead.attempt) == ("a", 1)


async def test_a_timer_that_was_handed_over_and_completed_ends_once_in_the_log(
    api: InstancesApi, timers: TimerService, receiver: Receiver
) -> None:
    """Its lease would have ended afterwards."""
    receiver.answer = http("202 Accepted", b'{"lease_s": 1}')
    await api.register(receiver.url(), "t")
    await timers.submit(new_timer("t", app="shop", task_id="a", delay=0))
    await firings(timers, 1, "handed_over")
    token = msgspec.json.decode(receiver.requests[0].body)["token"]
    await timers.instances.complete(KEY, "a", token)
    receiver.answer = http("202 Accepted", b'{"lease_s": 2}')
    await timers.submit(new_timer("t", app="shop", task_id="b", delay=0))
    [lost] = await firings(timers, 1, "lost")
    assert lost.task_id == "b", "whose lease ended later"
    assert len(await firings(timers, 1)) == 1
