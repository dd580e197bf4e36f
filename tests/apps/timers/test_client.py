"""The Python client of service mode: its answers to the server, and how it stays registered."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI

from tests.apps.timers.service_mode import InstancesApi
from tests.server.in_process import key_of, listening
from tests.waiting import eventually_async
from towpath.apps.timers import registration
from towpath.apps.timers.blocking import DelayQueueJob, TaskSubmitService
from towpath.apps.timers.client import GiveUp, Later, ServerAnswered, TimerCall, TimerClient
from towpath.apps.timers.instances import instance_id
from towpath.apps.timers.model import TypeKey
from towpath.apps.timers.service import TimerService
from towpath.calls.signature import headers_for, new_secret
from towpath.clock import instant, minutes, seconds, wall_ms
from towpath.errors import HandlerInvalid, InvalidOption

WHERE = "http://127.0.0.1:8001/timers"
CALL = {
    "task_id": "order-17",
    "task_type": "t",
    "app": "shop",
    "params": {"order": 17},
    "attempt": 1,
    "delay_time": 1_800_000_000_000,
    "token": 1000,
}


@pytest.fixture
async def address(app: FastAPI) -> AsyncIterator[str]:
    async with listening(app) as address:
        yield address


@pytest.fixture
async def client(app: FastAPI, address: str) -> TimerClient:
    return TimerClient("shop", WHERE, server=address, key=await key_of(app, "work", owner="shop"))


class SignedCalls:
    """Makes calls signed like those of the server."""

    def __init__(self, client: TimerClient, secret: str) -> None:
        self.client, self.secret = client, secret

    def call(self, **changes: Any) -> tuple[dict[str, str], bytes]:
        body = json.dumps({**CALL, **changes}).encode()
        return headers_for([self.secret], "m", body), body

    def status(self, **changes: Any) -> int:
        return self.client.answer(*self.call(**changes)).status


@pytest.fixture
async def signed(client: TimerClient, api: InstancesApi) -> SignedCalls:
    """A client that is registered and has a handler of `t`."""
    client.on("t")(_nothing)
    await asyncio.to_thread(client.register)
    return SignedCalls(client, (await api.register(WHERE, "t"))["secret"])


class TestAClient:
    def test_runs_the_handler_of_the_type(self, signed: SignedCalls) -> None:
        seen: list[Any] = []

        @signed.client.on("u")
        def handle(params: Any, call: TimerCall) -> None:
            seen.append((params, call))

        assert signed.status(task_type="u") == 200
        [(params, call)] = seen
        assert params == {"order": 17}
        assert (call.task_id, call.attempt, call.token, call.app) == ("order-17", 1, 1000, "shop")

    def test_runs_a_coroutine_handler(self, signed: SignedCalls) -> None:
        seen: list[Any] = []

        @signed.client.on("u")
        async def handle(params: Any) -> None:
            seen.append(params)

        assert signed.status(task_type="u") == 200
        assert seen == [{"order": 17}]

    async def test_in_an_event_loop_runs_a_plain_handler_in_a_thread(
        self, signed: SignedCalls
    ) -> None:
        seen: list[Any] = []

        @signed.client.on("plain")
        def plain(_: Any) -> None:
            seen.append(threading.current_thread())

        @signed.client.on("async")
        async def handle(_: Any) -> None:
            seen.append(threading.current_thread())

        for task_type in ("plain", "async"):
            body, status = await signed.client.answer_async(*signed.call(task_type=task_type))
            assert (body, status) == (b"", 200)
        assert seen[0] is not threading.main_thread()
        assert seen[1] is threading.main_thread()

    def test_refuses_an_unsigned_call(self, signed: SignedCalls) -> None:
        headers, body = signed.call()
        assert signed.client.answer({}, body).status == 401
        assert signed.client.answer(headers, body + b" ").status == 401
        forged = SignedCalls(signed.client, new_secret())
        assert forged.status() == 401
        late = headers_for([signed.secret], "m", body, now=instant(wall_ms()) - minutes(6))
        assert signed.client.answer(late, body).status == 401
        assert signed.client.answer(headers, body).status == 200

    def test_without_a_secret_refuses_all_calls(self, address: str) -> None:
        fresh = TimerClient("shop", WHERE, server=address, key="k")
        assert fresh.answer({}, b"{}").status == 503

    def test_answers_404_for_a_type_that_it_does_not_serve(self, signed: SignedCalls) -> None:
        assert signed.status(task_type="other") == 404

    def test_refuses_a_body_that_is_no_call(self, signed: SignedCalls) -> None:
        for body in (b"", b"[]", b"{}", b"[" * 100_000, b"\xff"):
            headers = headers_for([signed.secret], "m", body)
            assert signed.client.answer(headers, body).status == 400

    def test_refuses_an_older_attempt(self, signed: SignedCalls) -> None:
        """Its lease is lost, so another attempt does the work."""
        assert signed.status(token=7) == 200
        assert signed.status(token=6) == 409
        assert signed.status(token=6, task_id="another") == 200
        assert signed.status(token=7) == 200
        assert signed.status(token=8) == 200

    def test_answers_that_an_attempt_failed_when_a_handler_raises(
        self, signed: SignedCalls, caplog: pytest.LogCaptureFixture
    ) -> None:
        @signed.client.on("u")
        def handle(_: Any) -> None:
            raise KeyError("canary")

        body, status = signed.client.answer(*signed.call(task_type="u"))
        assert (body, status) == (b"KeyError", 500)
        assert "canary" in caplog.text

    def test_answers_that_no_attempt_can_help_when_a_handler_gives_up(
        self, signed: SignedCalls
    ) -> None:
        @signed.client.on("u")
        def handle(_: Any) -> None:
            raise GiveUp("no such order")

        assert signed.client.answer(*signed.call(task_type="u")) == (b"no such order", 422)

    def test_answers_with_the_lease_of_a_handler_that_hands_over(self, signed: SignedCalls) -> None:
        signed.client.on("raises")(_later)
        signed.client.on("returns")(_much_later)
        assert signed.client.answer(*signed.call(task_type="raises")) == (b'{"lease_s": 60}', 202)
        assert signed.client.answer(*signed.call(task_type="returns")) == (b'{"lease_s": 120}', 202)

    def test_has_one_handler_per_type(self, signed: SignedCalls) -> None:
        with pytest.raises(HandlerInvalid):
            signed.client.on("t")(_later)


class TestAReplayedCall:
    """A signed call is recorded and sent again while its signature is valid."""

    @pytest.fixture
    def runs(self, signed: SignedCalls) -> list[int]:
        """The attempts that the handler of `u` ran."""
        runs: list[int] = []

        @signed.client.on("u")
        def handle(_: Any, call: TimerCall) -> None:
            runs.append(call.attempt)
            if call.params == "fails":
                raise KeyError
            if call.params == "later":
                raise Later

        return runs

    @pytest.mark.parametrize(("params", "status"), [(None, 200), ("fails", 500), ("later", 202)])
    def test_gets_the_first_answer_and_runs_nothing(
        self, signed: SignedCalls, runs: list[int], params: str | None, status: int
    ) -> None:
        call = signed.call(task_type="u", params=params)
        first = signed.client.answer(*call)
        assert first.status == status
        assert [signed.client.answer(*call) for _ in range(3)] == [first] * 3
        assert runs == [1]

    async def test_runs_nothing_in_an_event_loop(
        self, signed: SignedCalls, runs: list[int]
    ) -> None:
        call = signed.call(task_type="u")
        answers = await asyncio.gather(*(signed.client.answer_async(*call) for _ in range(5)))
        answers.append(await signed.client.answer_async(*call))
        assert runs == [1]
        assert {answer.status for answer in answers} <= {200, 409}
        assert answers[-1].status == 200

    def test_is_not_the_next_attempt_of_its_timer(
        self, signed: SignedCalls, runs: list[int]
    ) -> None:
        calls = [
            signed.call(task_type="u", attempt=attempt, token=1000 + attempt) for attempt in (1, 2)
        ]
        for call in (*calls, *calls):
            signed.client.answer(*call)
        assert runs == [1, 2]

    def test_is_refused_while_the_first_one_runs(self, signed: SignedCalls) -> None:
        statuses: list[int] = []
        call = signed.call(task_type="slow")

        @signed.client.on("slow")
        def handle(_: Any) -> None:
            statuses.append(signed.client.answer(*call).status)

        assert signed.client.answer(*call).status == 200
        assert statuses == [409]

    def test_is_refused_under_another_webhook_id(
        self, signed: SignedCalls, runs: list[int]
    ) -> None:
        headers, body = signed.call(task_type="u")
        assert signed.client.answer(headers, body).status == 200
        for id in ("other", "m.", "m%2E"):
            assert signed.client.answer({**headers, "webhook-id": id}, body).status == 401
        assert runs == [1]

    def test_runs_nothing_after_its_first_call_was_forgotten(
        self, signed: SignedCalls, runs: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A forgotten call is refused by the time of its signature. A later one runs."""
        monkeypatch.setattr("towpath.apps.timers.client._MOST_REMEMBERED", 10)
        now = instant(wall_ms())

        def signed_at(ago_s: int, **changes: Any) -> tuple[dict[str, str], bytes]:
            body = json.dumps({**CALL, "task_type": "u", **changes}).encode()
            return headers_for([signed.secret], "m", body, now=now - seconds(ago_s)), body

        calls = [signed_at(100 - n, task_id=f"order-{n}") for n in range(50)]
        for call in calls:
            assert signed.client.answer(*call).status == 200
        assert len(runs) == 50
        for call in calls:
            assert signed.client.answer(*call).status in {200, 409}
        assert len(runs) == 50
        assert signed.client.answer(*signed_at(0, task_id="order-99")).status == 200
        assert len(runs) == 51


def _nothing(_: Any) -> None:
    """Accepts every call."""


def _later(_: Any) -> None:
    raise Later


def _much_later(_: Any) -> Later:
    return Later(minutes(2))


class TestTaskWorkers:
    def test_get_the_params_as_text(self, signed: SignedCalls) -> None:
        seen: list[str] = []

        @signed.client.worker
        class CancelOrder:  # pyright: ignore[reportUnusedClass] -- it is registered
            def type(self) -> str:
                return "order.cancel"

            def clazz(self) -> Any:
                return CancelOrder

            def invoke(self, message: str) -> None:
                seen.append(message)

        for token, params in enumerate(({"order": 17}, "text", None)):
            headers, body = signed.call(task_type="order.cancel", params=params, token=token)
            assert signed.client.answer(headers, body).status == 200
        assert seen == ['{"order": 17}', "text", "null"]

    def test_need_all_three_methods(self, client: TimerClient) -> None:
        with pytest.raises(HandlerInvalid, match="clazz"):

            @client.worker
            class Nothing:  # pyright: ignore[reportUnusedClass] -- it is refused
                def type(self) -> str:
                    return "t"


class TestSubmittingFromAClient:
    async def test_stores_a_timer_of_the_app(self, app: FastAPI, address: str) -> None:
        key = await key_of(app, "submit", owner="shop", queues=("timers.shop--*",))
        client = TimerClient("shop", WHERE, server=address, key=key)
        job = DelayQueueJob("order-7", "order.timeout", 1_900_000_000_000_000, "{}")
        await asyncio.to_thread(TaskSubmitService(client).send, job)
        timers: TimerService = app.state.services["timers"]
        timer = await timers.get(TypeKey("order.timeout", "shop"), "order-7")
        assert (timer.delay_time, timer.params) == (1_900_000_000_000, "{}")
        told = await asyncio.to_thread(client.submit, "t", [1], delay="1h", task_id="x")
        assert (told["app"], told["state"], told["params"]) == ("shop", "delayed", [1])

    async def test_raises_the_problem_that_the_server_names(
        self, app: FastAPI, address: str
    ) -> None:
        client = TimerClient(
            "shop", WHERE, server=address, key=await key_of(app, "submit", owner="shop")
        )
        await asyncio.to_thread(client.submit, "t", 1, delay=60, task_id="x")
        for problem, change in (
            ("timer-differs", {"params": 2, "delay": 60}),
            ("invalid-option", {"delay": -1}),
            ("invalid-option", {"delay_time": 1_900_000_000}),
            ("invalid-option", {}),
        ):
            with pytest.raises(ServerAnswered) as refused:
                await asyncio.to_thread(client.submit, "t", task_id="x", **change)
            assert refused.value.problem == problem


class TestTheRegistrationOfAnInstance:
    async def test_lasts_as_long_as_the_lifespan(
        self, client: TimerClient, api: InstancesApi
    ) -> None:
        client.on("t")(_later)
        async with client.lifespan():
            await eventually_async(api.instances)
            [found] = await api.instances()
            assert (found["address"], found["task_types"]) == (WHERE, ["t"])
            await eventually_async(lambda: _is(client.registered))
        assert await api.instances() == []
        assert not client.registered

    async def test_is_repeated_when_redis_has_lost_it(
        self, client: TimerClient, api: InstancesApi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client.on("t")(_later)
        register = client.register
        monkeypatch.setattr(client, "register", lambda: (register()[0], 0.05))
        async with client.lifespan():
            await eventually_async(api.instances)
            path = f"apps/shop/instances/{instance_id('shop', WHERE, 'shop')}"
            assert (await api.say("DELETE", path)).status_code == 204
            await eventually_async(api.instances)

    async def test_includes_a_type_that_is_added_later(
        self, client: TimerClient, api: InstancesApi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """This holds also on a machine that has just started, whose steady clock begins at zero."""
        started = time.monotonic()
        monkeypatch.setattr(registration, "steady", lambda: time.monotonic() - started)
        client.on("t")(_later)
        async with client.lifespan():
            await eventually_async(api.instances)
            client.on("u")(_later)

            async def both() -> bool:
                return [instance["task_types"] for instance in await api.instances()] == [
                    ["t", "u"]
                ]

            await eventually_async(both)

    async def test_waits_for_an_unreachable_server(
        self, app: FastAPI, api: InstancesApi, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with listening(app) as address:
            pass
        client = TimerClient(
            "shop", WHERE, server=address, key=await key_of(app, "work", owner="shop")
        )
        client.on("t")(_later)
        async with client.lifespan():
            await eventually_async(lambda: _is("Connection refused" in caplog.text))
            assert not client.registered

    async def test_raises_the_problem_that_the_server_names(
        self, app: FastAPI, address: str
    ) -> None:
        client = TimerClient(
            "shop", WHERE, server=address, key=await key_of(app, "read", owner="shop")
        )
        client.on("t")(_later)
        with pytest.raises(ServerAnswered) as refusal:
            await asyncio.to_thread(client.register)
        assert (refusal.value.status, refusal.value.problem) == (403, "scope-missing")

    def test_needs_a_valid_server_address(self) -> None:
        with pytest.raises(InvalidOption, match="server"):
            TimerClient("shop", WHERE, server="localhost:8080", key="k")


async def _is(fact: bool) -> bool:  # noqa: FBT001 -- a fact
    return fact
