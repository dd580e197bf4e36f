"""Timers over HTTP: the answers, and each refusal with its status and code."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI

from tests.server.in_process import client_of, key_of, started
from tests.server.messaging import app_on
from towpath.apps.timers.model import PREFIX
from towpath.clock import ServerClock, instant, seconds, wall_ms
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger

ROOT = "/api/v1/timers"
ODD = ["取消 订单", "a/b%2F", "Order.Timeout?x=1#y", "types", "log", "../..", "x" * 128]

WRONG: list[dict[str, Any]] = [
    {},
    {"delay": -1},
    {"delay": "soon"},
    {"delay": "NaN"},
    {"delay": True},
    {"delay": 1e30},
    {"delay": "100000d"},
    {"delay": 1, "due": "2030-01-01T00:00:00Z"},
    {"delay_time": 1794787200},
    {"delay_time": 1794787200123456789},
    {"delay_time": -1794787200123},
    {"delay_time": "1794787200123"},
    {"delay_time": 1794787200123.5},
    {"delay_time": 9999999999999},
    {"due": "2030-01-01T00:00:00"},
    {"due": "1794787200"},
    {"due": 1794787200123},
    {"due": "9999-12-31T00:00:00Z"},
    {"delay": 1, "task_id": ""},
    {"delay": 1, "task_id": "a\nb"},
    {"delay": 1, "task_id": "x" * 513},
    {"delay": 1, "task_type": "取" * 43},
    {"delay": 1, "task_type": "a\u2028b"},
    {"delay": 1, "app": ""},
    {"delay": 1, "retry": "sometimes"},
    {"delay": 1, "record": "yes"},
    {"delay": 1, "taskId": "a", "task_id": "b"},
    {"delay": 1, "other": 1},
]
"""Bodies of timers that are refused."""


@pytest.fixture
def clock() -> ServerClock:
    """The clock of Redis, which the server uses."""
    return ServerClock()


@pytest.fixture
async def app(server: EmbeddedServer, prepared_file_url: str) -> AsyncIterator[FastAPI]:
    async with started(app_on(server.url, Ledger(prepared_file_url))) as app:
        yield app


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app, await key_of(app, "submit", "read", owner="shop")) as client:
        yield client


def at(task_type: str, task_id: str, app: str | None = None, more: str = "") -> str:
    query = "" if app is None else f"?app={quote(app, safe='')}"
    return f"{ROOT}/{quote(task_type, safe='')}/{quote(task_id, safe='')}{more}{query}"


async def post(client: httpx.AsyncClient, status: int = 201, **body: Any) -> Any:
    answer = await client.post(ROOT, json={"task_type": "order.timeout", **body})
    assert answer.status_code == status, answer.text
    return answer.json()


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].rpartition("/")[2]


class TestSubmittingATimer:
    async def test_answers_201_with_the_timer(self, client: httpx.AsyncClient) -> None:
        made = await post(client, task_id="order-7", delay="30m", params={"order": 7})
        assert (made["task_id"], made["task_type"]) == ("order-7", "order.timeout")
        assert (made["state"], made["existed"], made["app"]) == ("delayed", False, None)
        due = datetime.fromisoformat(made["due"])
        assert instant(made["delay_time"]) == due
        assert abs(due - instant(wall_ms()) - timedelta(minutes=30)) < seconds(60)
        seen = (await client.get(at("order.timeout", "order-7"))).json()
        assert (seen["params"], seen["due"]) == ({"order": 7}, made["due"])

    async def test_answers_with_the_location_of_the_timer(self, client: httpx.AsyncClient) -> None:
        body = {"task_type": "取消/订单", "task_id": "a b", "app": "shop", "delay": 60}
        answer = await client.post(ROOT, json=body)
        assert answer.headers["location"] == at("取消/订单", "a b", "shop")
        assert (await client.get(answer.headers["location"])).json()["task_id"] == "a b"

    async def test_accepts_the_field_names_of_the_delay_queue(
        self, client: httpx.AsyncClient
    ) -> None:
        ms = wall_ms() + 60_000
        body = {"taskId": "1", "taskType": "t", "delayTime": ms * 1000, "params": '{"a": 1}'}
        made = (await client.post(ROOT, json=body)).json()
        assert (made["task_id"], made["task_type"], made["delay_time"]) == ("1", "t", ms)
        assert (await client.get(at("t", "1"))).json()["params"] == '{"a": 1}'

    async def test_answers_200_with_its_state_if_the_same_timer_exists(
        self, client: httpx.AsyncClient
    ) -> None:
        made = await post(client, task_id="x", delay=60, params=[1])
        again = await post(client, 200, task_id="x", delay=60, params=[1])
        assert (again["existed"], again["state"], again["due"]) == (True, "delayed", made["due"])

    async def test_answers_409_timer_differs_for_other_content_under_its_id(
        self, client: httpx.AsyncClient
    ) -> None:
        await post(client, task_id="x", delay=60, params=[1])
        for other in ({"delay": 61, "params": [1]}, {"delay": 60, "params": [2]}):
            body = {"task_type": "order.timeout", "task_id": "x", **other}
            assert code(await client.post(ROOT, json=body)) == (409, "timer-differs")

    async def test_answers_409_timer_ended_if_the_timer_has_ended(
        self, client: httpx.AsyncClient, engine: Engine
    ) -> None:
        await post(client, task_id="x", delay=0)
        [lease] = await engine.claim("timers.order.timeout", worker="w", lease=seconds(30))
        await engine.complete(lease)
        answer = await client.post(
            ROOT, json={"task_type": "order.timeout", "task_id": "x", "delay": 0}
        )
        assert code(answer) == (409, "timer-ended")

    async def test_accepts_any_text_as_a_type(self, client: httpx.AsyncClient) -> None:
        for task_type, app in [(name, app) for name in ODD for app in (None, name)]:
            body = {"task_type": task_type, "task_id": "a/b %", "app": app, "delay": 60}
            assert (await client.post(ROOT, json=body)).status_code == 201, task_type
            path = at(task_type, "a/b %", app)
            assert (await client.get(path)).json()["task_type"] == task_type
            assert (await client.patch(path, json={"delay": 90})).status_code == 200
            cancelled = await client.post(at(task_type, "a/b %", app, "/cancel"))
            assert cancelled.json()["state"] == "cancelled"

    async def test_delete_cancels_a_timer_like_cancel(self, client: httpx.AsyncClient) -> None:
        """DELETE was published first; `cancel` is documented now."""
        await post(client, task_type="t", task_id="x", delay=60)
        assert (await client.delete(at("t", "x"))).json()["state"] == "cancelled"

    async def test_answers_422_for_invalid_fields_and_stores_nothing(
        self, client: httpx.AsyncClient, engine: Engine
    ) -> None:
        for body in WRONG:
            answer = await client.post(ROOT, json={"task_type": "t", **body})
            assert answer.status_code == 422, (body, answer.text)
        assert [name for name in await engine.queues.list() if name.startswith(PREFIX)] == []

    async def test_refuses_nan_as_it_is_not_json(self, client: httpx.AsyncClient) -> None:
        text = b'{"task_type": "t", "delay": NaN}'
        answer = await client.post(ROOT, content=text, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422)

    async def test_answers_413_for_params_that_are_too_large(
        self, client: httpx.AsyncClient
    ) -> None:
        answer = await client.post(
            ROOT, json={"task_type": "t", "delay": 1, "params": "x" * 1_100_000}
        )
        assert code(answer) == (413, "payload-too-large")

    async def test_takes_a_past_time_as_now(self, client: httpx.AsyncClient) -> None:
        pasts: list[dict[str, Any]] = [{"due": "2001-09-10T00:00:00Z"}, {"delay_time": 10**12}]
        for past in pasts:
            assert (await post(client, **past))["state"] == "ready"


class TestSubmittingManyTimers:
    async def test_answers_each_timer_by_itself(
        self, client: httpx.AsyncClient, engine: Engine
    ) -> None:
        await post(client, task_id="there", delay=60)
        bodies: list[Any] = [
            {"task_type": "order.timeout", "task_id": "new", "delay": 60},
            {"task_type": "order.timeout", "task_id": "there", "delay": 60},
            {"task_type": "order.timeout", "task_id": "there", "delay": 61},
            {"task_type": "order.timeout", "task_id": "unfit", "delay": -1},
            {"task_id": "untyped", "delay": 1},
            "nonsense",
            {"task_type": "other", "task_id": "large", "delay": 1, "params": "x" * 1_100_000},
            {"task_type": "other", "task_id": "second type", "delay": 60},
        ]
        answer = await client.post(ROOT, json=bodies)
        assert answer.status_code == 200, answer.text
        told = answer.json()["timers"]
        assert [row.get("error") for row in told] == [
            None, None, "timer_differs", "invalid_option", "invalid_input", "invalid_input",
            "payload_too_large", None,
        ]  # fmt: skip
        assert [row.get("status") for row in told] == [None, None, 409, 422, 422, 422, 413, None]
        assert [row.get("existed") for row in told[:2]] == [False, True]
        assert [told[2]["task_id"], told[3]["task_id"]] == ["there", "unfit"]
        assert (await engine.inspect.counts("timers.order.timeout")).delayed == 2
        assert (await engine.inspect.counts("timers.other")).delayed == 1

    async def test_answers_422_for_an_empty_list_and_for_too_many(
        self, client: httpx.AsyncClient
    ) -> None:
        for many in (0, 501):
            bodies = [{"task_type": "t", "delay": 1}] * many
            assert (await client.post(ROOT, json=bodies)).status_code == 422


class TestRepeating:
    async def test_with_the_same_idempotency_key_gives_the_same_timer(
        self, client: httpx.AsyncClient, engine: Engine
    ) -> None:
        named = {"Idempotency-Key": "k1"}
        one = {"task_type": "t", "delay": 60}
        first = await client.post(ROOT, json=one, headers=named)
        again = await client.post(ROOT, json=one, headers=named)
        assert first.json()["task_id"] == again.json()["task_id"]
        many = [one, one]
        for _ in range(2):
            told = (await client.post(ROOT, json=many, headers={"Idempotency-Key": "k2"})).json()
            assert len({timer["task_id"] for timer in told["timers"]}) == 2
        assert (await engine.inspect.counts("timers.t")).delayed == 3


class TestSettingATimer:
    async def test_answers_201_for_a_new_timer_and_200_for_a_replaced_one(
        self, client: httpx.AsyncClient
    ) -> None:
        path = at("t", "x")
        assert (await client.put(path, json={"delay": 60, "params": 1})).status_code == 201
        replaced = await client.put(path, json={"delay": 90, "params": 2})
        assert (replaced.status_code, replaced.json()["existed"]) == (200, True)
        assert (await client.get(path)).json()["params"] == 2

    async def test_creates_a_cancelled_timer_again(self, client: httpx.AsyncClient) -> None:
        await post(client, task_type="t", task_id="x", delay=60)
        await client.post(at("t", "x", more="/cancel"))
        assert (await client.put(at("t", "x"), json={"delay": 60})).status_code == 201
        assert (await client.get(at("t", "x"))).json()["state"] == "delayed"

    async def test_answers_409_timer_running_while_it_runs(
        self, client: httpx.AsyncClient, engine: Engine
    ) -> None:
        await post(client, task_type="t", task_id="x", delay=0)
        await engine.claim("timers.t", worker="w", lease=seconds(30))
        for answer in (
            await client.put(at("t", "x"), json={"delay": 60}),
            await client.patch(at("t", "x"), json={"delay": 60}),
        ):
            assert code(answer) == (409, "timer-running")

    async def test_answers_422_if_the_body_contradicts_the_path(
        self, client: httpx.AsyncClient
    ) -> None:
        same = {"taskType": "t", "taskId": "x", "delay": 60}
        assert (await client.put(at("t", "x"), json=same)).status_code == 201
        for other in ({"task_id": "y"}, {"task_type": "u"}, {"app": "other"}):
            answer = await client.put(at("t", "x", "shop"), json={"delay": 60, **other})
            assert answer.status_code == 422


class TestMovingOrCancellingATimer:
    async def test_by_patch_changes_its_time(self, client: httpx.AsyncClient) -> None:
        await post(client, task_type="t", task_id="x", delay=60)
        moved = await client.patch(at("t", "x"), json={"due": "2040-01-01T00:00:00Z"})
        assert (moved.status_code, moved.json()["due"]) == (200, "2040-01-01T00:00:00Z")
        ms = 2_000_000_000_000
        moved = await client.patch(at("t", "x"), json={"delayTime": ms})
        assert moved.json()["delay_time"] == ms
        now = await client.patch(at("t", "x"), json={"delay_time": 1_000_000_000_000})
        assert now.json()["state"] == "ready"

    async def test_refuses_an_invalid_time(self, client: httpx.AsyncClient) -> None:
        await post(client, task_type="t", task_id="x", delay=60)
        for body in ({}, {"delay": -1}, {"delay_time": 17}, {"params": 1}):
            assert (await client.patch(at("t", "x"), json=body)).status_code == 422, body

    async def test_answers_404_for_an_unknown_timer(self, client: httpx.AsyncClient) -> None:
        await post(client, task_type="t", task_id="x", delay=60)
        for who in (("t", "y"), ("u", "x"), ("t", "x", "shop")):
            path = at(*who)
            assert code(await client.get(path)) == (404, "timer-not-found")
            assert code(await client.patch(path, json={"delay": 1})) == (404, "timer-not-found")
            cancelled = await client.post(at(*who, more="/cancel"))
            assert code(cancelled) == (404, "timer-not-found")

    async def test_answers_409_for_an_ended_timer(
        self, client: httpx.AsyncClient, engine: Engine
    ) -> None:
        await post(client, task_type="t", task_id="x", delay=0)
        [lease] = await engine.claim("timers.t", worker="w", lease=seconds(30))
        await engine.complete(lease)
        assert code(await client.post(at("t", "x", more="/cancel"))) == (409, "timer-ended")
        answer = await client.patch(at("t", "x"), json={"delay": 1})
        assert code(answer) == (409, "timer-ended")


class TestReading:
    async def test_lists_timers_in_pages(self, client: httpx.AsyncClient) -> None:
        for number in range(5):
            await post(client, task_type="t", task_id=str(number), delay=60 + number)
        await post(client, task_type="u", task_id="u", delay=60)
        found: list[str] = []
        after: str | None = None
        while True:
            query = {"task_type": "t", "size": 2} | ({"after": after} if after else {})
            page = (await client.get(ROOT, params=query)).json()
            found += [timer["task_id"] for timer in page["timers"]]
            after = page["after"]
            if after is None:
                break
        assert found == ["0", "1", "2", "3", "4"]

    async def test_lists_timers_by_state_and_time(self, client: httpx.AsyncClient) -> None:
        await post(client, task_type="t", task_id="a", due="2040-01-01T00:00:00Z")
        await post(client, task_type="t", task_id="b", due="2040-01-02T00:00:00Z", app="shop")
        await post(client, task_type="t", task_id="c", delay=0, app="shop")

        async def ids(**query: str) -> list[str]:
            answer = await client.get(ROOT, params=query)
            assert answer.status_code == 200, answer.text
            return [timer["task_id"] for timer in answer.json()["timers"]]

        assert await ids(state="delayed") == ["a", "b"]
        assert await ids(app="shop") == ["b", "c"]
        assert await ids(app="") == ["a"]
        assert await ids(since="2040-01-01T12:00:00Z") == ["b"]
        assert await ids(since="2039-01-01T00:00:00Z", until="2040-01-02T00:00:00Z") == ["a"]

    async def test_refuses_invalid_filters_and_pages(self, client: httpx.AsyncClient) -> None:
        for query in ("state=gone", "state=x", "after=x", "size=0", "since=2030-01-01T00:00:00"):
            assert (await client.get(f"{ROOT}?{query}")).status_code == 422, query

    async def test_lists_types_without_a_worker_as_no_worker(
        self, client: httpx.AsyncClient
    ) -> None:
        await post(client, task_type="取消", delay=60)
        [found] = (await client.get(f"{ROOT}/types")).json()["types"]
        assert (found["task_type"], found["status"], found["waiting"]) == ("取消", "no_worker", 1)

    async def test_explains_that_no_worker_serves_the_timer(
        self, client: httpx.AsyncClient
    ) -> None:
        await post(client, task_type="t", task_id="x", delay=0)
        told = (await client.get(at("t", "x", more="/explain"))).json()
        assert told["why"] == "no_worker"
        assert code(await client.get(at("t", "y", more="/explain"))) == (404, "timer-not-found")

    async def test_shows_an_empty_log_before_a_timer_of_the_type_ran(
        self, client: httpx.AsyncClient
    ) -> None:
        answer = await client.get(f"{ROOT}/log", params={"task_type": "t"})
        assert answer.json() == {"firings": [], "after": None}
        assert (await client.get(f"{ROOT}/log")).status_code == 422
        bad = await client.get(f"{ROOT}/log", params={"task_type": "t", "after": "x"})
        assert bad.status_code == 422

    @pytest.mark.parametrize(
        "query", [{"until": "1970-01-01T00:00:00Z"}, {"until": "0"}, {"after": "0-0"}]
    )
    async def test_shows_an_empty_log_for_times_before_1970(
        self, client: httpx.AsyncClient, query: dict[str, str]
    ) -> None:
        """Redis refuses a range that ends before its first possible id."""
        answer = await client.get(f"{ROOT}/log", params={"task_type": "t", **query})
        assert (answer.status_code, answer.json()) == (200, {"firings": [], "after": None})


class TestKeys:
    async def test_need_the_scope_of_the_request(self, app: FastAPI) -> None:
        async with client_of(app, await key_of(app, "read", owner="shop")) as reader:
            assert code(await reader.post(ROOT, json={})) == (403, "scope-missing")
            assert code(await reader.post(at("t", "x", more="/cancel"))) == (403, "scope-missing")
            assert (await reader.get(ROOT)).status_code == 200
        async with client_of(app, await key_of(app, "submit", owner="shop")) as submitter:
            assert code(await submitter.get(ROOT)) == (403, "scope-missing")
            assert code(await submitter.get(at("t", "x"))) == (403, "scope-missing")
        async with client_of(app) as nobody:
            assert (await nobody.get(ROOT)).status_code == 401

    async def test_cover_types_by_the_names_of_their_queues(
        self, app: FastAPI, client: httpx.AsyncClient
    ) -> None:
        await post(client, task_type="mails", task_id="x", delay=60)
        await post(client, task_type="orders", task_id="x", delay=60)
        secret = await key_of(
            app, "submit", "read", owner="shop", queues=("timers.orders", "timers.shop--*")
        )
        async with client_of(app, secret) as narrow:
            forbidden = (403, "queue-forbidden")
            body = {"task_type": "mails", "delay": 60}
            assert code(await narrow.post(ROOT, json=body)) == forbidden
            for who in (("mails", "x"), ("mails", "x", "other")):
                path = at(*who)
                assert code(await narrow.get(path)) == forbidden
                assert code(await narrow.put(path, json={"delay": 1})) == forbidden
                assert code(await narrow.patch(path, json={"delay": 1})) == forbidden
                assert code(await narrow.post(at(*who, more="/cancel"))) == forbidden
            assert (await narrow.get(at("orders", "x"))).status_code == 200
            log = await narrow.get(f"{ROOT}/log", params={"task_type": "mails"})
            assert code(log) == forbidden
            many = [body, {"task_type": "orders", "delay": 60},
                    {"task_type": "mails", "app": "shop", "delay": 60}]  # fmt: skip
            told = (await narrow.post(ROOT, json=many)).json()["timers"]
            assert [entry.get("error") for entry in told] == ["queue_forbidden", None, None]
            listed = (await narrow.get(ROOT)).json()["timers"]
            assert {(timer["task_type"], timer["app"]) for timer in listed} == {
                ("orders", None), ("mails", "shop"),
            }  # fmt: skip
            types = (await narrow.get(f"{ROOT}/types")).json()["types"]
            assert {kind["queue"] for kind in types} == {"timers.orders", "timers.shop--mails"}
