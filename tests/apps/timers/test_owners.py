"""Timers and instances belong to the owner of the key that made them."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from fastapi import FastAPI

from tests.apps.timers.service_mode import (
    SECRET,
    InstancesApi,
    altered,
    scheduling_on,
    started,
    with_key,
)
from tests.calls.receivers import Receiver, http
from tests.server.serving import code
from tests.waiting import eventually_async
from towpath.apps.timers.instances import MOST_OF_APP
from towpath.apps.timers.model import new_timer
from towpath.apps.timers.service import TimerService
from towpath.apps.timers.service_mode import secrets_of
from towpath.calls.errors import SignatureWrong
from towpath.calls.signature import verify
from towpath.embedded import EmbeddedServer
from towpath.ledger.ledger import Ledger

WHERE = "http://127.0.0.1:8001/timers"
ALL = ("submit", "work", "read")


@pytest.fixture
async def ann(app: FastAPI) -> AsyncIterator[InstancesApi]:
    async with with_key(app, *ALL, owner="ann") as api:
        yield api


@pytest.fixture
async def eve(app: FastAPI) -> AsyncIterator[InstancesApi]:
    """Another owner, with the same scopes."""
    async with with_key(app, *ALL, owner="eve") as api:
        yield api


def told(answer: httpx.Response, *names: str) -> tuple[int, str]:
    """Returns the text of an answer, with *names* replaced."""
    text = answer.text
    for name in names:
        text = text.replace(name, "NAME")
    return answer.status_code, text


async def submit(api: InstancesApi, id: str, **more: Any) -> httpx.Response:
    timer = {"task_type": "t", "task_id": id, "app": "shop", "delay": "1h", **more}
    return await api.say("POST", "timers", timer)


@pytest.mark.parametrize("record", [False, True])
class TestATimerOfAnOwner:
    @pytest.mark.parametrize(
        ("method", "end", "body"),
        [
            ("GET", "", None),
            ("GET", "/explain", None),
            ("PATCH", "", {"delay": 0}),
            ("POST", "/cancel", None),
            ("DELETE", "", None),
            ("POST", "/complete", {"token": 1}),
            ("POST", "/fail", {"token": 1}),
            ("POST", "/renew", {"token": 1}),
        ],
    )
    async def test_is_answered_to_other_owners_like_a_missing_one(
        self,
        ann: InstancesApi,
        eve: InstancesApi,
        *,
        record: bool,
        method: str,
        end: str,
        body: dict[str, Any] | None,
    ) -> None:
        assert (await submit(ann, "order-17", record=record)).status_code == 201
        foreign, missing = [
            told(await eve.say(method, f"timers/t/{id}{end}?app=shop", body), id)
            for id in ("order-17", "order-99")
        ]
        assert foreign == missing
        assert foreign[0] == 404
        assert (await ann.say("GET", "timers/t/order-17?app=shop")).json()["state"] == "delayed"

    async def test_of_another_owner_keeps_its_id_and_reveals_nothing(
        self, ann: InstancesApi, eve: InstancesApi, *, record: bool
    ) -> None:
        """Other owners get the same answer for equal and for other content, before and after its
        end.
        """
        await submit(ann, "order-17", record=record)
        path = "timers/t/order-17?app=shop"

        async def answers() -> set[tuple[int, str]]:
            tries = [
                await submit(eve, "order-17", record=record),
                await submit(eve, "order-17", record=record, params="other"),
                await submit(eve, "order-17", record=not record),
                await eve.say("PUT", path, {"delay": "2h", "record": record}),
                await eve.say("PUT", path, {"delay": "2h", "record": not record}),
            ]
            assert {code(answer, 409) for answer in tries} == {"timer-taken"}
            return {told(answer) for answer in tries}

        before = await answers()
        assert len(before) == 1
        assert (await ann.say("GET", path)).json()["state"] == "delayed"
        assert (await ann.say("POST", "timers/t/order-17/cancel?app=shop")).status_code == 200
        assert await answers() == before

    async def test_is_listed_for_its_owner(
        self, app: FastAPI, ann: InstancesApi, eve: InstancesApi, *, record: bool
    ) -> None:
        await submit(ann, "canary", record=record)
        await submit(eve, "mine", record=record)
        found = (await eve.say("GET", "timers?task_type=t")).json()["timers"]
        assert [timer["task_id"] for timer in found] == ["mine"]
        page = (await eve.client.get("/ui/timers")).text
        assert ("canary" in page, "mine" in page) == (False, True)
        async with with_key(app, "admin") as admin:
            found = (await admin.say("GET", "timers?task_type=t")).json()["timers"]
            assert {timer["task_id"] for timer in found} == {"canary", "mine"}

    async def test_is_shared_by_the_keys_of_one_owner(
        self, app: FastAPI, ann: InstancesApi, *, record: bool
    ) -> None:
        await submit(ann, "order-17", record=record)
        async with with_key(app, "submit", owner="ann") as other:
            moved = await other.say("PATCH", "timers/t/order-17?app=shop", {"delay": "2h"})
            assert moved.status_code == 200
            assert (await submit(other, "order-17", record=record)).status_code == 200

    async def test_that_was_made_without_a_key_belongs_to_admins(
        self, app: FastAPI, ann: InstancesApi, *, record: bool
    ) -> None:
        timers: TimerService = app.state.services["timers"]
        await timers.submit(new_timer("t", task_id="a", app="shop", delay="1h", record=record))
        assert (await ann.say("GET", "timers/t/a?app=shop")).status_code == 404
        async with with_key(app, "admin") as admin:
            assert (await admin.say("GET", "timers/t/a?app=shop")).status_code == 200


async def test_an_ended_row_of_another_owner_is_not_replaced(
    ann: InstancesApi, eve: InstancesApi, server: EmbeddedServer
) -> None:
    """Redis has forgotten it, so its id can be used for a timer without a row."""
    path = "timers/t/order-17?app=shop"
    await submit(ann, "order-17", record=True)
    await ann.say("POST", "timers/t/order-17/cancel?app=shop")
    server.ask("FLUSHALL")
    assert (await submit(eve, "order-17")).status_code == 201
    refusal = await eve.say("PUT", path, {"delay": "2h", "record": True})
    assert code(refusal, 409) == "timer-taken"


class TestAList:
    async def test_of_timers_refuses_only_the_ones_with_an_id_of_another_owner(
        self, ann: InstancesApi, eve: InstancesApi
    ) -> None:
        await submit(ann, "order-17")
        each = [{"task_type": "t", "task_id": id, "app": "shop", "delay": "1h"} for id in "ab"]
        each[0]["task_id"] = "order-17"
        refused, taken = (await eve.say("POST", "timers", each)).json()["timers"]
        assert (refused["error"], refused["status"]) == ("timer_taken", 409)
        assert taken["task_id"] == "b"


class TestTheLogOfAnOwner:
    async def test_has_the_firings_of_the_owners_timers(
        self, app: FastAPI, ann: InstancesApi, eve: InstancesApi, receiver: Receiver
    ) -> None:
        receiver.answer = http()
        await ann.register(receiver.url(), "t")
        await submit(ann, "canary", delay=0)
        await submit(eve, "mine", delay=0, record=True)

        async def logged(api: InstancesApi) -> set[str]:
            found = (await api.say("GET", "timers/log?task_type=t&app=shop")).json()
            return {firing["task_id"] for firing in found["firings"]}

        async with with_key(app, "admin") as admin:

            async def both() -> bool:
                return await logged(admin) == {"canary", "mine"}

            await eventually_async(both)
        assert await logged(ann) == {"canary"}
        assert await logged(eve) == {"mine"}


class TestAnInstance:
    async def test_of_another_owner_is_neither_shown_nor_changed(
        self, ann: InstancesApi, eve: InstancesApi
    ) -> None:
        hers = (await ann.register(WHERE, "a", "b"))["instance_id"]
        assert await eve.instances() == []
        for method, end in (("POST", "/heartbeat"), ("PUT", "/heartbeat"), ("DELETE", "")):
            foreign, missing = [
                told(await eve.say(method, f"apps/shop/instances/{id}{end}"), id)
                for id in (hers, "0" * 32)
            ]
            assert foreign == missing
            assert foreign[0] == 404
        assert [one["instance_id"] for one in await ann.instances()] == [hers]

    async def test_at_the_address_of_another_owners_replaces_nothing(
        self, app: FastAPI, ann: InstancesApi, eve: InstancesApi
    ) -> None:
        hers = await ann.register(WHERE, "a", "b")
        mine = await eve.register(WHERE, "a")
        assert mine["instance_id"] != hers["instance_id"]
        assert mine["secret"] != hers["secret"]
        assert [one["task_types"] for one in await ann.instances()] == [["a", "b"]]
        async with with_key(app, "admin") as admin:
            assert len(await admin.instances()) == 2

    async def test_is_not_replaced_by_a_key_for_some_of_its_types(
        self, app: FastAPI, ann: InstancesApi
    ) -> None:
        hers = await ann.register(WHERE, "a", "b")
        queues = ("timers.a", "timers.shop--a")
        async with with_key(app, "work", "read", queues=queues, owner="ann") as narrow:
            refusal = await narrow.try_to_register(WHERE, "a")
            assert code(refusal, 403) == "queue-forbidden"
            assert hers["secret"] not in refusal.text
        assert [one["task_types"] for one in await ann.instances()] == [["a", "b"]]

    async def test_is_called_with_the_secret_of_its_owner(
        self, ann: InstancesApi, eve: InstancesApi, receiver: Receiver
    ) -> None:
        receiver.answer = http()
        hers = await ann.register(receiver.url(), "t")
        mine = await eve.register(WHERE, "other")
        await submit(eve, "order-17", delay=0)

        async def called() -> bool:
            return bool(receiver.requests)

        await eventually_async(called)
        request = receiver.requests[0]
        assert verify([hers["secret"]], request.headers, request.body)
        with pytest.raises(SignatureWrong):
            verify([mine["secret"]], request.headers, request.body)

    async def test_of_another_owner_can_not_settle_a_timer_that_was_handed_over(
        self, app: FastAPI, ann: InstancesApi, eve: InstancesApi, receiver: Receiver
    ) -> None:
        """Tokens are numbers that can be guessed, so they are not enough."""
        receiver.answer = http("202 Accepted", body=b'{"lease_s": 600}')
        await ann.register(receiver.url(), "t")
        async with with_key(app, "submit", "read", owner="sender") as sender:
            await submit(sender, "order-17", delay=0)

            async def handed_over() -> bool:
                found = await sender.say("GET", "timers/t/order-17?app=shop")
                return found.json()["state"] == "leased" and bool(receiver.requests)

            await eventually_async(handed_over)
            token = msgspec.json.decode(receiver.requests[0].body)["token"]
            for verb in ("complete", "fail", "renew"):
                refusal = await eve.say(
                    "POST", f"timers/t/order-17/{verb}?app=shop", {"token": token}
                )
                assert code(refusal, 404) == "timer-not-found"
                assert await handed_over()
            for verb in ("renew", "complete"):
                done = await ann.say("POST", f"timers/t/order-17/{verb}?app=shop", {"token": token})
                assert done.status_code == 200
            found = await sender.say("GET", "timers/t/order-17?app=shop")
            assert found.json()["state"] == "done"


class TestTooManyInstances:
    async def test_of_an_app_leave_room_for_the_same_app_of_another_owner(
        self, ann: InstancesApi, eve: InstancesApi
    ) -> None:
        for n in range(MOST_OF_APP):
            await eve.register(f"{WHERE}{n}", "a")
        refusal = await eve.try_to_register(f"{WHERE}/more", "a")
        assert code(refusal, 429) == "too-many-instances"
        assert refusal.json()["limit"] == "app"
        await ann.register(WHERE, "a")

    async def test_of_an_owner_leave_room_for_other_owners(
        self, server: EmbeddedServer, prepared_file_url: str
    ) -> None:
        options = altered(instances=8, instances_per_owner=4)
        async with (
            started(scheduling_on(server.url, Ledger(prepared_file_url), options)) as app,
            with_key(app, *ALL, owner="eve") as eve,
            with_key(app, *ALL, owner="ann") as ann,
            with_key(app, *ALL, owner="ben") as ben,
        ):
            for n in range(4):
                await eve.register(WHERE, "a", app=f"app-{n}")
            refusal = await eve.try_to_register(WHERE, "a", app="more")
            assert code(refusal, 429) == "too-many-instances"
            assert refusal.json()["limit"] == "owner"
            await eve.register(WHERE, "b", app="app-0")
            for n in range(4):
                await ann.register(WHERE, "a", app=f"shop-{n}")
            refusal = await ben.try_to_register(WHERE, "a")
            assert (code(refusal, 429), refusal.json()["limit"]) == ("too-many-instances", "total")
            [gone] = await eve.instances("app-0")
            path = f"apps/app-0/instances/{gone['instance_id']}"
            assert (await eve.say("DELETE", path)).status_code == 204
            await ben.register(WHERE, "a")


class TestSharedTimers:
    async def test_let_all_keys_use_all_timers_and_instances(
        self, server: EmbeddedServer, prepared_file_url: str
    ) -> None:
        made = scheduling_on(server.url, Ledger(prepared_file_url), altered(shared=True))
        async with (
            started(made) as app,
            with_key(app, *ALL, owner="ann") as ann,
            with_key(app, *ALL, owner="eve") as eve,
        ):
            await submit(ann, "order-17")
            assert (await submit(eve, "order-17")).status_code == 200
            assert (await eve.say("GET", "timers/t/order-17?app=shop")).status_code == 200
            hers, mine = await ann.register(WHERE, "a"), await eve.register(WHERE, "a")
            assert hers == mine
            assert mine["secret"] == secrets_of("shop", (SECRET,))[0]
            path = f"apps/shop/instances/{hers['instance_id']}"
            assert (await eve.say("DELETE", path)).status_code == 204


def test_secrets_of_apps_and_owners_always_differ() -> None:
    of = [("shop", ""), ("shop", "ann"), ("shop ann", ""), ("shop", "eve"), ("ann", "shop")]
    assert len({secrets_of(app, (SECRET,), owner=owner)[0] for app, owner in of}) == len(of)
