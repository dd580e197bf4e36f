"""Instances over HTTP: who may register what, and what is refused."""

from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI

from tests.apps.timers.service_mode import SECRET, InstancesApi, scheduling_on, started, with_key
from tests.server.serving import code
from towpath.apps.timers.service_mode import secrets_of
from towpath.calls.signature import derive_secret
from towpath.embedded import EmbeddedServer
from towpath.ledger.ledger import Ledger

WHERE = "http://127.0.0.1:8001/timers"


@pytest.fixture
async def ledger(prepared_file_url: str) -> Ledger:
    return Ledger(prepared_file_url)


@pytest.fixture
async def app(server: EmbeddedServer, ledger: Ledger) -> AsyncIterator[FastAPI]:
    async with started(scheduling_on(server.url, ledger)) as app:
        yield app


@pytest.fixture
async def api(app: FastAPI) -> AsyncIterator[InstancesApi]:
    async with with_key(app, "submit", "work", "read") as api:
        yield api


class TestRegistering:
    async def test_returns_id_secret_and_heartbeat(self, api: InstancesApi) -> None:
        told = await api.register(WHERE, "order.timeout")
        assert told.keys() == {"instance_id", "secret", "heartbeat_s"}
        assert told["secret"] == secrets_of("shop", (SECRET,), owner="shop")[0]
        assert told["heartbeat_s"] == 10

    async def test_shows_the_instance_without_any_secret(self, api: InstancesApi) -> None:
        told = await api.register(f"{WHERE}?key=canary", "a", "取消 b/c", weight=7)
        [found] = await api.instances()
        heard = found.pop("last_heartbeat")
        assert heard
        assert found == {
            "instance_id": told["instance_id"],
            "app": "shop",
            "address": WHERE,
            "task_types": ["a", "取消 b/c"],
            "weight": 7,
            "alive": True,
            "breaker": "closed",
            "avoided_by": [],
        }

    async def test_the_same_address_again_replaces_the_instance(self, api: InstancesApi) -> None:
        first = await api.register(WHERE, "a")
        assert (await api.register(WHERE, "b"))["instance_id"] == first["instance_id"]
        assert [instance["task_types"] for instance in await api.instances()] == [["b"]]

    async def test_is_kept_by_heartbeats_and_ended_by_leaving(self, api: InstancesApi) -> None:
        told = await api.register(WHERE, "a")
        path = f"apps/shop/instances/{told['instance_id']}"
        for method in ("POST", "PUT"):
            assert (await api.say(method, f"{path}/heartbeat")).status_code == 204
        assert (await api.say("DELETE", path)).status_code == 204
        assert await api.instances() == []
        for method, which in (("POST", f"{path}/heartbeat"), ("DELETE", path)):
            assert code(await api.say(method, which), 404) == "instance-not-found"

    @pytest.mark.parametrize(
        "address",
        [
            "http://10.0.0.7/",
            "http://[::1]/",
            "http://169.254.169.254/latest",
            "not a url",
            "x" * 3000,
        ],
    )
    async def test_refuses_addresses_that_may_not_be_called(
        self, api: InstancesApi, address: str
    ) -> None:
        code(await api.try_to_register(address, "a"), 422)
        assert await api.instances() == []

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"address": WHERE},
            {"address": WHERE, "task_types": []},
            {"address": WHERE, "task_types": ["x" * 129]},
            {"address": WHERE, "task_types": ["取" * 100]},
            {"address": WHERE, "task_types": ["a\nb"]},
            {"address": WHERE, "task_types": [str(n) for n in range(101)]},
            {"address": WHERE, "task_types": ["a"], "weight": 0},
            {"address": WHERE, "task_types": ["a"], "weight": "2"},
            {"address": WHERE, "task_types": ["a"], "secret": "mine"},
        ],
    )
    async def test_refuses_invalid_fields(self, api: InstancesApi, body: object) -> None:
        code(await api.say("POST", "apps/shop/instances", body), 422)
        assert await api.instances() == []

    async def test_is_refused_beyond_the_limit_of_an_app(self, api: InstancesApi) -> None:
        for n in range(100):
            await api.register(f"{WHERE}{n}", "a")
        refusal = await api.try_to_register(f"{WHERE}100", "a")
        assert code(refusal, 429) == "too-many-instances"
        await api.register(f"{WHERE}99", "a")
        assert len(await api.instances()) == 100

    async def test_an_allowed_address_of_timers_is_not_allowed_for_callbacks(
        self, api: InstancesApi
    ) -> None:
        """`timers.allow` is for instances alone: a callback to the same place is refused."""
        await api.register(WHERE, "a")
        message = {"user_id": "u", "org_id": "o", "message": "m", "client_id": "c"}
        refusal = await api.say("POST", "message", {**message, "callback_url": WHERE})
        assert code(refusal, 422) == "invalid-option"
        assert "callback_url" in refusal.text


class TestKeysForInstances:
    async def test_need_the_scope_work_for_every_type(self, app: FastAPI) -> None:
        async with with_key(app, "submit", "read") as reader:
            assert code(await reader.try_to_register(WHERE, "a"), 403) == "scope-missing"
        async with with_key(app, "work", queues=("timers.a", "timers.shop--a")) as narrow:
            assert code(await narrow.try_to_register(WHERE, "a", "b"), 403) == "queue-forbidden"
            await narrow.register(WHERE, "a")
        async with with_key(app, "work", queues=("timers.shop--*",)) as narrow:
            refusal = await narrow.try_to_register(WHERE, "b")
            assert code(refusal, 403) == "queue-forbidden", "it would own the timers without an app"

    async def test_show_and_change_only_the_instances_that_they_cover(
        self, app: FastAPI, api: InstancesApi
    ) -> None:
        told = await api.register(WHERE, "a")
        path = f"apps/shop/instances/{told['instance_id']}"
        missing = f"apps/shop/instances/{'0' * 32}"
        async with with_key(app, "work", "read", queues=("timers.*b",)) as other:
            assert await other.instances() == []
            for method, end in (("POST", "/heartbeat"), ("DELETE", "")):
                refusals = [await other.say(method, place + end) for place in (path, missing)]
                assert {code(answer, 404) for answer in refusals} == {"instance-not-found"}
        assert len(await api.instances()) == 1

    async def test_are_required_for_every_request(self, app: FastAPI) -> None:
        async with with_key(app, "read") as api:
            api.client.headers.pop("x-api-key")
            for method in ("GET", "POST"):
                assert (await api.say(method, "apps/shop/instances", {})).status_code == 401


def test_an_app_s_secret_is_its_own() -> None:
    """It differs from those of other apps and kinds of calls, whatever the app is called."""
    kinds = {
        derive_secret(SECRET, purpose) for purpose in ("push", "callback", "outbox", "reviewer")
    }
    apps = {
        secret for name in ("push", "shop", "timers shop") for secret in secrets_of(name, (SECRET,))
    }
    assert len(kinds | apps) == 7


def test_an_app_has_two_secrets_during_a_rotation() -> None:
    old = "whsec_" + "bm93IGlzIHRoZSB0aW1lIGZvciBhbGwgZ29vZCBtZW4="
    assert len(secrets_of("shop", (SECRET, old))) == 2
