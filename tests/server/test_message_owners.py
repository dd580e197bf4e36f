"""Messages belong to the owner of the key that sent them; keys of other owners see nothing of
them.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.apps.messages.sending import SECRET, a_message
from tests.server.in_process import build_server, client_of, key_of, started
from tests.server.messaging import HELLO, claim, post, settle
from towpath.apps.messages.options import MessagesOptions
from towpath.apps.messages.service import Messages
from towpath.embedded import EmbeddedServer
from towpath.ledger.ledger import Ledger

UNKNOWN = "00000000-0000-4000-8000-000000000000"


@asynccontextmanager
async def caller(app: FastAPI, *scopes: str, **more: Any) -> AsyncGenerator[httpx.AsyncClient]:
    async with client_of(app, await key_of(app, *scopes, **more)) as client:
        yield client


@pytest.fixture
async def ann(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with caller(app, "submit", "read", owner="ann") as client:
        yield client


@pytest.fixture
async def eve(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Another owner, with the same scopes."""
    async with caller(app, "submit", "read", owner="eve") as client:
        yield client


@pytest.fixture
async def worker(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A consumer of all messages."""
    async with caller(app, "work", "read") as client:
        yield client


def told(answer: httpx.Response, id: str) -> tuple[int, str, dict[str, str]]:
    """Everything in an answer, with *id* replaced by a neutral one."""
    changing = {"x-request-id", "date"}
    headers = {name: value for name, value in answer.headers.items() if name not in changing}
    return answer.status_code, answer.text.replace(id, "ID"), headers


PATHS = [
    ("GET", "/api/v1/message/{}"),
    ("GET", "/api/v1/message/{}/events"),
    ("POST", "/api/v1/message/{}/cancel"),
    ("DELETE", "/api/v1/message/{}"),
]


class TestAnotherOwner:
    @pytest.mark.parametrize(("method", "path"), PATHS)
    @pytest.mark.parametrize("state", ["queued", "processing", "answered", "cancelled"])
    async def test_gets_the_answer_of_an_unknown_message(
        self,
        ann: httpx.AsyncClient,
        eve: httpx.AsyncClient,
        worker: httpx.AsyncClient,
        *,
        method: str,
        path: str,
        state: str,
    ) -> None:
        id = (await post(ann, message="canary"))["message_id"]
        if state == "cancelled":
            await ann.post(f"/api/v1/message/{id}/cancel")
        elif state != "queued":
            job = await claim(worker)
            if state == "answered":
                await settle(worker, "complete", job, result="hi")
        foreign, missing = [
            told(await eve.request(method, path.format(one)), one) for one in (id, UNKNOWN)
        ]
        assert foreign == missing
        assert foreign[0] == 404
        assert (await ann.get(f"/api/v1/message/{id}")).json()["state"] == state

    async def test_learns_nothing_by_a_client_message_id(
        self, ann: httpx.AsyncClient, eve: httpx.AsyncClient, worker: httpx.AsyncClient
    ) -> None:
        """The same id, with the same or other content, is a message of its own."""
        hers = await post(ann, client_message_id="c1")
        await settle(worker, "complete", await claim(worker), result="hi")
        mine = await post(eve, client_message_id="c1", message="other")
        assert mine["queue_position"] == 1
        assert mine["message_id"] != hers["message_id"]
        assert await post(eve, client_message_id="c1", message="other") == mine
        again = await eve.post("/api/v1/message", json={**HELLO, "client_message_id": "c1"})
        assert again.status_code == 409, "it differs from her own"
        assert (await post(ann, client_message_id="c1"))["message_id"] == hers["message_id"]

    async def test_sees_the_counts_of_a_user_and_not_whose_message_it_is(
        self, ann: httpx.AsyncClient, eve: httpx.AsyncClient, worker: httpx.AsyncClient
    ) -> None:
        first = await post(ann)
        await post(ann)
        await claim(worker)
        whole = {
            "user_id": "test",
            "queue_length": 1,
            "is_processing": True,
            "current_message_id": first["message_id"],
        }
        for client in (ann, worker):
            assert (await client.get("/api/v1/queue/test")).json() == whole
        seen = (await eve.get("/api/v1/queue/test")).json()
        assert seen == {**whole, "current_message_id": None}

    async def test_sees_no_foreign_message_in_the_dashboard(
        self, ann: httpx.AsyncClient, eve: httpx.AsyncClient, worker: httpx.AsyncClient
    ) -> None:
        ids = [(await post(ann, user_id="canary"))["message_id"] for _ in range(3)]
        await claim(worker)
        for path in ("/ui/messages", "/ui/messages?user=canary"):
            hers, mine = (await ann.get(path)).text, (await eve.get(path)).text
            assert [id for id in ids if id in mine] == []
            assert [id for id in ids if id in hers] != []
        assert "canary" not in (await eve.get("/ui/messages")).text


class TestTheOwner:
    async def test_is_shared_by_keys_of_one_name(self, app: FastAPI) -> None:
        async with (
            caller(app, "submit", owner="acme") as sender,
            caller(app, "submit", "read", owner="acme") as reader,
        ):
            sent = await post(sender, client_message_id="c1")
            assert await post(reader, client_message_id="c1") == sent
            assert (await reader.get(f"/api/v1/message/{sent['message_id']}")).status_code == 200
            gone = await reader.post(f"/api/v1/message/{sent['message_id']}/cancel")
            assert gone.json()["state"] == "cancelled"

    async def test_keeps_it_when_the_key_is_rotated(self, app: FastAPI) -> None:
        ledger: Ledger = app.state.ledger
        old = await ledger.keys.create("ann", scopes=("submit", "read"))
        async with client_of(app, old.secret.get_secret_value()) as client:
            sent = await post(client)
        new = await ledger.keys.rotate(old.info.id)
        async with client_of(app, new.secret.get_secret_value()) as client:
            assert (await client.get(f"/api/v1/message/{sent['message_id']}")).status_code == 200

    async def test_is_no_matter_to_an_admin(self, app: FastAPI, ann: httpx.AsyncClient) -> None:
        sent = await post(ann)
        async with caller(app, "admin") as admin:
            assert (await admin.get(f"/api/v1/message/{sent['message_id']}")).status_code == 200
            path = f"/api/v1/message/{sent['message_id']}/cancel"
            assert (await admin.post(path)).json()["state"] == "cancelled"

    async def test_of_a_message_sent_without_a_key_is_the_admin(
        self, app: FastAPI, ann: httpx.AsyncClient
    ) -> None:
        messages: Messages = app.state.services["messages"]
        sent = await messages.send(a_message())
        assert (await ann.get(f"/api/v1/message/{sent.message_id}")).status_code == 404
        async with caller(app, "admin") as admin:
            assert (await admin.get(f"/api/v1/message/{sent.message_id}")).status_code == 200

    async def test_is_nobody_where_messages_are_shared(
        self, server: EmbeddedServer, ledger: Ledger
    ) -> None:
        options = {"messages": MessagesOptions(secrets=(SECRET,), shared=True)}
        async with (
            started(build_server(server.url, ledger, options)) as app,
            caller(app, "submit", "read") as ann,
            caller(app, "submit", "read") as eve,
            caller(app, "work") as worker,
        ):
            sent = await post(ann, client_message_id="c1")
            assert await post(eve, client_message_id="c1") == sent
            await claim(worker)
            seen = (await eve.get("/api/v1/queue/test")).json()
            assert seen["current_message_id"] == sent["message_id"]
            assert (await eve.get(f"/api/v1/message/{sent['message_id']}")).status_code == 200


class TestTheGenericPaths:
    """A key with `read` sees which jobs an application has, and not what other owners sent."""

    async def test_show_content_to_its_owner_and_to_workers_only(
        self,
        app: FastAPI,
        ann: httpx.AsyncClient,
        eve: httpx.AsyncClient,
        worker: httpx.AsyncClient,
    ) -> None:
        id = (await post(ann, message="canary"))["message_id"]
        path = f"/api/v1/queues/messages/jobs/{id}"
        foreign = await eve.get(path)
        assert foreign.status_code == 200
        assert foreign.json()["content_hidden"] is True
        assert "canary" not in foreign.text
        async with caller(app, "read", "raw", owner="eve") as raw, caller(app, "admin") as admin:
            for reader in (ann, worker, raw, admin):
                shown = (await reader.get(path)).json()
                assert shown["content_hidden"] is False
                assert shown["payload"]["message"] == "canary"

    async def test_hide_results_and_pages_too(
        self, ann: httpx.AsyncClient, eve: httpx.AsyncClient, worker: httpx.AsyncClient
    ) -> None:
        id = (await post(ann, message="canary"))["message_id"]
        job = await claim(worker)
        await settle(worker, "renew", job, lease=300, progress="canary")
        listed = await eve.get("/api/v1/queues/messages/jobs?state=leased")
        assert [each["content_hidden"] for each in listed.json()["jobs"]] == [True]
        assert "canary" not in listed.text
        await settle(worker, "complete", job, result="canary")
        for path in (
            f"/api/v1/queues/messages/jobs/{id}",
            "/api/v1/queues/messages/jobs?state=done",
            "/api/v1/queues/messages/dead",
            "/api/v1/queues/messages/dead/search?text=a",
            f"/ui/queues/messages/jobs/{id}",
        ):
            answer = await eve.get(path)
            assert answer.status_code == 200
            assert "canary" not in answer.text
        for part in ("payload", "result"):
            assert (await eve.get(f"/ui/queues/messages/jobs/{id}/{part}")).status_code == 403
            assert b"canary" in (await ann.get(f"/ui/queues/messages/jobs/{id}/{part}")).content
