"""Service mode: a server calls the applications' instances when timers are due."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from fastapi import FastAPI

from tests.amounts import slow
from tests.apps.timers.service_mode import SECRET, InstancesApi, altered, sample
from tests.calls.receivers import Reader, Receiver, Writer, http, receiving
from tests.waiting import eventually_async
from towpath.apps.timers.balancer import THRESHOLD
from towpath.apps.timers.model import Timer, TypeKey, new_timer
from towpath.apps.timers.options import TimersOptions
from towpath.apps.timers.service import TimerService
from towpath.apps.timers.service_mode import secrets_of
from towpath.calls.signature import verify
from towpath.clock import milliseconds, seconds
from towpath.engine.retry import Fixed
from towpath.engine.states import State

AT_ONCE = Fixed(milliseconds(1))
ENDED = (State.DONE, State.DEAD)


@pytest.fixture
def timer_options() -> TimersOptions:
    return altered(call_within=seconds(1))


@pytest.fixture
def timers(app: FastAPI) -> TimerService:
    return app.state.services["timers"]


@pytest.fixture
async def other() -> AsyncIterator[Receiver]:
    """A second instance beside `receiver`."""
    async with receiving(Receiver()) as other:
        yield other


async def submit(timers: TimerService, task_type: str = "t", **options: Any) -> str:
    options = {"app": "shop", "delay": 0, "retry": AT_ONCE, **options}
    return (await timers.submit(new_timer(task_type, {"order": 17}, **options))).task_id


async def ended(
    timers: TimerService, id: str, task_type: str = "t", app: str | None = "shop"
) -> Timer:
    key = TypeKey(task_type, app)

    async def over() -> bool:
        return (await timers.get(key, id)).state in ENDED

    await eventually_async(over)
    return await timers.get(key, id)


def told(receiver: Receiver, at: int = 0) -> Any:
    return msgspec.json.decode(receiver.requests[at].body)


class TestACall:
    async def test_is_made_when_the_timer_is_due(
        self, api: InstancesApi, timers: TimerService, receiver: Receiver
    ) -> None:
        """The server runs already when the first instance of the type registers."""
        await api.register(receiver.url(), "取消 order")
        id = await submit(timers, "取消 order", delay="50ms")
        timer = await ended(timers, id, "取消 order")
        assert (timer.state, timer.attempts) == (State.DONE, 1)
        [request] = receiver.requests
        said = told(receiver)
        assert said.pop("token") > 0
        assert said == {
            "task_id": id,
            "task_type": "取消 order",
            "app": "shop",
            "params": {"order": 17},
            "attempt": 1,
            "delay_time": timer.delay_time,
        }
        assert verify(secrets_of("shop", (SECRET,), owner="shop"), request.headers, request.body)

    async def test_is_logged_and_counted(
        self, app: FastAPI, api: InstancesApi, timers: TimerService, receiver: Receiver
    ) -> None:
        """The log has the instance, the lateness and the outcome."""
        await api.register(receiver.url(), "t")
        receiver.answer = http("500 No")
        id = await submit(timers, retry=Fixed(milliseconds(500)))
        await eventually_async(lambda: _is(len(receiver.requests) == 1))
        receiver.answer = http()
        await ended(timers, id)
        key = TypeKey("t", "shop")

        async def logged() -> bool:
            return len((await timers.log.read(key)).firings) == 2

        await eventually_async(logged)
        last, first = (await timers.log.read(key)).firings
        assert (first.outcome, last.outcome) == ("failed", "done")
        assert (first.attempt, last.attempt) == (1, 2)
        assert first.worker == last.worker == f"127.0.0.1:{receiver.port}"
        assert first.late >= 0
        assert await sample(app, "towpath_timers_calls_total", state="done") == 1
        assert await sample(app, "towpath_timers_calls_total", state="later") == 1
        assert await sample(app, "towpath_timers_instances") == 1
        assert await sample(app, "towpath_timers_breakers_open") == 0

    async def test_uses_connections_that_are_kept(
        self, api: InstancesApi, timers: TimerService, receiver: Receiver
    ) -> None:
        await api.register(receiver.url(), "t")
        for _ in range(5):
            await ended(timers, await submit(timers))
        assert len(receiver.requests) == 5
        assert receiver.connections == 1

    async def test_for_a_timer_without_an_app_goes_to_the_owner_of_its_type(
        self, api: InstancesApi, timers: TimerService, receiver: Receiver
    ) -> None:
        await api.register(receiver.url(), "t")
        id = await submit(timers, app=None)
        assert (await ended(timers, id, app=None)).state is State.DONE
        assert told(receiver)["app"] is None

    async def test_waits_while_no_instance_is_alive(
        self, api: InstancesApi, timers: TimerService, receiver: Receiver, other: Receiver
    ) -> None:
        here = await api.register(receiver.url(), "t")
        await ended(timers, await submit(timers))
        await api.say("DELETE", f"apps/shop/instances/{here['instance_id']}")
        await api.register(other.url(), "u")
        await ended(timers, await submit(timers, "u"), "u")  # so the scheduler has seen both
        id = await submit(timers)
        await ended(timers, await submit(timers, "u"), "u")
        key = TypeKey("t", "shop")
        timer = await timers.get(key, id)
        assert (timer.state, timer.attempts) == (State.READY, 0)
        assert (await timers.explain(key, id)).why == "no_instance"
        types = {view.key.task_type: view.alive for view in await timers.types.all()}
        assert types == {"t": 0, "u": 1}
        await api.register(receiver.url(), "t")
        assert (await ended(timers, id)).attempts == 1


class TestTheAnswerOfAnInstance:
    async def test_with_a_permanent_status_ends_the_timer_dead(
        self, api: InstancesApi, timers: TimerService, receiver: Receiver, other: Receiver
    ) -> None:
        await api.register(receiver.url(), "t")
        for status in (400, 410, 413, 415, 422):
            receiver.answer = http(f"{status} No")
            timer = await ended(timers, await submit(timers))
            assert (timer.state, timer.attempts) == (State.DEAD, 1)
            assert str(status) in str(timer.reason)

    @pytest.mark.parametrize(
        "status",
        ["404 No", pytest.param("429 Busy", marks=slow), pytest.param("302 Found", marks=slow)],
    )
    async def test_that_refuses_the_type_sends_the_timer_to_another_instance(
        self, app: FastAPI, api: InstancesApi, receiver: Receiver, other: Receiver, status: str
    ) -> None:
        """The instance does not serve the types that it registered, or redirects. No redirect is
        followed.
        """
        timers: TimerService = app.state.services["timers"]
        elsewhere = Receiver()
        async with receiving(elsewhere):
            receiver.answer = http(status, headers=(("Location", elsewhere.url()),))
            await api.register(receiver.url(), "t", weight=100)
            await api.register(other.url(), "t")

            async def both_are_known() -> bool:
                return await sample(app, "towpath_timers_instances") == 2

            await eventually_async(both_are_known)
            for _ in range(15):
                timer = await ended(timers, await submit(timers))
                assert (timer.state, timer.attempts) == (State.DONE, 1)
            assert len(other.requests) == 15
            # Refusals count against the instance: after some of them it is hardly called any more.
            assert THRESHOLD <= len(receiver.requests) < 13
            assert elsewhere.requests == []
        breakers = {instance["address"]: instance["breaker"] for instance in await api.instances()}
        assert breakers[other.url()] == "closed"

    async def test_that_reports_a_failure_is_tried_again(
        self, api: InstancesApi, timers: TimerService, receiver: Receiver
    ) -> None:
        await api.register(receiver.url(), "t")
        answers = iter([http("500 No"), http("502 No"), http()])

        async def behave(reader: Reader, writer: Writer) -> None:
            writer.write(next(answers))
            await writer.drain()

        receiver.behaviour = behave
        timer = await ended(timers, await submit(timers))
        assert (timer.state, timer.attempts) == (State.DONE, 3)
        calls = [told(receiver, at) for at in range(3)]
        assert [call["attempt"] for call in calls] == [1, 2, 3]
        tokens = [call["token"] for call in calls]
        assert tokens == sorted(set(tokens)), "it grows with each attempt"

    async def test_with_retry_after_sets_the_time_of_the_next_attempt(
        self, api: InstancesApi, timers: TimerService, receiver: Receiver
    ) -> None:
        await api.register(receiver.url(), "t")
        receiver.answer = http("503 Busy", headers=(("Retry-After", "3600"),))
        id = await submit(timers)
        key = TypeKey("t", "shop")

        async def failed() -> bool:
            timer = await timers.get(key, id)
            return timer.attempts == 1 and timer.state is State.DELAYED

        before = (await timers.get(key, id)).due
        await eventually_async(failed)
        timer = await timers.get(key, id)
        assert timer.due == before
        assert timer.next_try_at is not None
        assert timer.next_try_at - before > seconds(3500)
        assert (await timers.explain(key, id)).why == "next_try"

    async def test_that_is_slow_or_missing_is_tried_again(
        self, api: InstancesApi, timers: TimerService, receiver: Receiver
    ) -> None:
        """The instance is slow, or closes or resets the connection after reading."""
        await api.register(receiver.url(), "t")
        silent = asyncio.Event()

        async def behave(_: Reader, writer: Writer) -> None:
            match len(receiver.requests):
                case 1:
                    await silent.wait()
                case 2:
                    return
                case 3:
                    writer.transport.abort()
                case _:
                    writer.write(http())
                    await writer.drain()

        receiver.behaviour = behave
        timer = await ended(timers, await submit(timers))
        silent.set()
        assert (timer.state, timer.attempts) == (State.DONE, 4)

    async def test_of_50_megabytes_is_not_read_to_its_end(
        self, api: InstancesApi, timers: TimerService, receiver: Receiver
    ) -> None:
        """The status 2xx completes the timer, whatever the body is."""
        await api.register(receiver.url(), "t")
        sent = 0

        async def behave(_: Reader, writer: Writer) -> None:
            nonlocal sent
            size = 50 * 1024 * 1024
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
            while sent < size:
                writer.write(b"x" * 65536)
                sent += 65536
                await writer.drain()

        receiver.behaviour = behave
        timer = await ended(timers, await submit(timers))
        assert (timer.state, timer.attempts) == (State.DONE, 1)
        assert sent < 20 * 1024 * 1024


class TestAnUnreachableInstance:
    async def test_is_replaced_by_another_at_once(
        self, api: InstancesApi, timers: TimerService, receiver: Receiver
    ) -> None:
        async with receiving(Receiver()) as gone:
            pass
        await api.register(gone.url(), "t")
        await api.register(receiver.url(), "t")
        for _ in range(6):
            timer = await ended(timers, await submit(timers, retry=None))
            assert (timer.state, timer.attempts) == (State.DONE, 1)

    async def test_costs_the_timer_no_attempt(
        self, api: InstancesApi, timers: TimerService
    ) -> None:
        """It waits while all breakers are open, and is done when an instance is back."""
        async with receiving(Receiver()) as gone:
            pass
        await api.register(gone.url(), "t")
        ids = [await submit(timers) for _ in range(8)]

        async def avoided() -> bool:
            return [instance["breaker"] for instance in await api.instances()] == ["open"]

        await eventually_async(avoided)
        whys = {(await timers.explain(TypeKey("t", "shop"), id)).why for id in ids}
        assert whys <= {"instances_avoided", "leased"}
        for id in ids:
            timer = await timers.get(TypeKey("t", "shop"), id)
            assert timer.attempts <= 1  # while it is leased, one
        async with receiving(Receiver(), port=gone.port) as back:
            for id in ids:
                timer = await ended(timers, id)
                assert (timer.state, timer.attempts) == (State.DONE, 1)
            assert len(back.requests) == 8


async def _is(fact: bool) -> bool:  # noqa: FBT001 -- a fact
    return fact
