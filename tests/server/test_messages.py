"""Messages over HTTP: the paths, bodies and names of the document."""

import asyncio
import json
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI

from tests.server.in_process import client_of, key_of, listening, started
from tests.server.messaging import HELLO, app_on, claim, post, settle
from tests.waiting import HANGS, eventually_async
from towpath.embedded import EmbeddedServer
from towpath.ledger.ledger import Ledger


class TestTheDocumentsEndpoints:
    async def test_sending_answers_position_and_id(self, client: httpx.AsyncClient) -> None:
        first, second = await post(client), await post(client)
        assert first == {
            "status": "queued",
            "queue_position": 1,
            "message_id": first["message_id"],
        }
        assert second["queue_position"] == 2
        assert len(first["message_id"]) == 36

    async def test_a_users_queue_shows_what_waits_and_what_is_in_process(
        self, client: httpx.AsyncClient
    ) -> None:
        first = await post(client)
        await post(client)
        await claim(client)
        assert (await client.get("/api/v1/queue/test")).json() == {
            "user_id": "test",
            "queue_length": 1,
            "is_processing": True,
            "current_message_id": first["message_id"],
        }

    @pytest.mark.parametrize("user_id", ["nobody", "a b", "a/b", "ü", "%", "a?b#c", "{user}:x"])
    async def test_an_unknown_user_has_an_empty_queue(
        self, client: httpx.AsyncClient, user_id: str
    ) -> None:
        answer = await client.get(f"/api/v1/queue/{quote(user_id, safe='')}")
        assert answer.status_code == 200
        assert answer.json() == {
            "user_id": user_id,
            "queue_length": 0,
            "is_processing": False,
            "current_message_id": None,
        }

    async def test_health_needs_no_key_and_counts(
        self, app: FastAPI, client: httpx.AsyncClient
    ) -> None:
        await post(client)
        await post(client, user_id="ben")
        await claim(client)
        await post(client)
        async with client_of(app) as nobody:
            assert (await nobody.get("/health")).json() == {
                "status": "healthy",
                "redis_connected": True,
                "active_queues": 2,
                "messages_processing": 1,
            }

    async def test_a_resend_gives_the_same_answer(self, client: httpx.AsyncClient) -> None:
        sent = await post(client, client_message_id="c1")
        assert await post(client, client_message_id="c1") == sent
        other = {**HELLO, "client_message_id": "c1", "message": "other"}
        refused = await client.post("/api/v1/message", json=other)
        assert refused.status_code == 409
        assert refused.json()["type"].endswith("/message-differs")


class TestKeys:
    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("POST", "/api/v1/message"),
            ("GET", "/api/v1/queue/test"),
            ("GET", "/api/v1/message/m"),
            ("GET", "/api/v1/message/m/events"),
            ("POST", "/api/v1/message/m/cancel"),
            ("DELETE", "/api/v1/message/m"),
        ],
    )
    async def test_nothing_but_health_answers_without_one(
        self, app: FastAPI, method: str, path: str
    ) -> None:
        async with client_of(app) as nobody, client_of(app, "tp_wrong") as stranger:
            for client in (nobody, stranger):
                answer = await client.request(method, path, json=HELLO)
                assert answer.status_code == 401
        worker, elsewhere = await key_of(app, "work"), await key_of(app, "admin", queues=("x*",))
        for key in (worker, elsewhere):
            async with client_of(app, key) as client:
                answer = await client.request(method, path, json=HELLO)
                assert answer.status_code == 403


class TestBadInput:
    @pytest.mark.parametrize(
        "change",
        [
            {"user_id": ""}, {"user_id": "x" * 513}, {"user_id": "é" * 300}, {"user_id": "a\nb"},
            {"user_id": None}, {"user_id": 7}, {"org_id": ""}, {"org_id": "a\x00"},
            {"client_id": ""}, {"client_message_id": ""}, {"client_message_id": "x" * 513},
            {"message": ""}, {"message": None}, {"message": ["a"]}, {"metadata": "text"},
            {"callback_url": ""}, {"callback_url": "ftp://example.com"}, {"unknown": 1},
            {"callback_url": "http://127.0.0.1/"}, {"callback_url": "http://10.1.2.3/"},
            {"callback_url": "http://[::1]/"}, {"callback_url": "https://x/" + "y" * 2048},
        ],
    )  # fmt: skip
    async def test_is_a_problem_that_names_the_field(
        self, client: httpx.AsyncClient, change: dict[str, Any]
    ) -> None:
        answer = await client.post("/api/v1/message", json={**HELLO, **change})
        assert answer.status_code == 422
        assert answer.headers["content-type"] == "application/problem+json"
        assert next(iter(change)) in answer.json()["detail"]
        assert (await client.get("/api/v1/queue/test")).json()["queue_length"] == 0

    @pytest.mark.parametrize("missing", list(HELLO))
    async def test_every_field_of_the_document_is_required(
        self, client: httpx.AsyncClient, missing: str
    ) -> None:
        body = {name: value for name, value in HELLO.items() if name != missing}
        assert (await client.post("/api/v1/message", json=body)).status_code == 422

    async def test_a_message_over_the_queues_limit_is_too_large(
        self, client: httpx.AsyncClient
    ) -> None:
        body = {**HELLO, "message": "x" * 1024 * 1024}
        assert (await client.post("/api/v1/message", json=body)).status_code == 413

    async def test_a_lone_surrogate_is_no_text(self, client: httpx.AsyncClient) -> None:
        for field in HELLO:
            body = json.dumps({**HELLO, field: "\ud800"}).encode()
            json_ = {"Content-Type": "application/json"}
            answer = await client.post("/api/v1/message", content=body, headers=json_)
            assert answer.status_code in {400, 422}, field

    async def test_an_invalid_user_id_is_refused(self, client: httpx.AsyncClient) -> None:
        for user_id in ("a%00b", "x" * 513):
            assert (await client.get(f"/api/v1/queue/{user_id}")).status_code == 422

    async def test_an_unknown_message_is_not_found(self, client: httpx.AsyncClient) -> None:
        for method, path in (("GET", "x"), ("GET", "x/events"), ("POST", "x/cancel")):
            answer = await client.request(method, f"/api/v1/message/{path}")
            assert answer.status_code == 404


class TestAnsweringAMessage:
    async def test_works_through_the_api_of_the_queue(self, client: httpx.AsyncClient) -> None:
        sent = await post(client, metadata={"thread": 7})
        job = await claim(client)
        assert job["id"] == sent["message_id"]
        assert job["lane"] == "test"
        assert job["payload"] == {**HELLO, "metadata": {"thread": 7}}
        await settle(client, "complete", job, result={"text": "hi"})
        found = (await client.get(f"/api/v1/message/{sent['message_id']}")).json()
        assert (found["state"], found["answer"]) == ("answered", {"text": "hi"})
        assert found["queue_position"] == 0

    async def test_a_cancelled_message_is_never_claimed(self, client: httpx.AsyncClient) -> None:
        for method, end in (("POST", "/cancel"), ("DELETE", "")):  # older clients use this path
            sent = await post(client)
            answer = await client.request(method, f"/api/v1/message/{sent['message_id']}{end}")
            assert answer.json() == {"message_id": sent["message_id"], "state": "cancelled"}
        answer = await client.post("/api/v1/queues/messages/claim", json={"worker": "w"})
        assert answer.status_code == 204

    async def test_the_order_per_user_holds_although_a_consumer_falls_silent(
        self, client: httpx.AsyncClient
    ) -> None:
        """Its lease ends, and the message is handed out again before the user's next one."""
        for i in range(3):
            await post(client, message=str(i))
        silent = await claim(client, lease=1)
        handed_out = [silent["payload"]["message"]]
        answered: list[str] = []
        for _ in range(3):
            job = await claim(client, wait=30)
            handed_out.append(job["payload"]["message"])
            await settle(client, "complete", job, result="ok")
            answered.append(job["payload"]["message"])
        assert handed_out == ["0", "0", "1", "2"]
        assert answered == ["0", "1", "2"]
        stale = await client.post(
            f"/api/v1/queues/messages/jobs/{silent['id']}/complete",
            json={"token": silent["token"]},
        )
        assert stale.status_code == 409


class TestRequestsWithoutRedis:
    async def test_are_refused_from_the_start(self, tmp_path: Path, ledger: Ledger) -> None:
        async with started(app_on(f"unix://{tmp_path}/nobody.sock", ledger)) as app:
            await away(app, "degraded")

    async def test_are_refused_until_redis_is_back(self, ledger: Ledger) -> None:
        with EmbeddedServer() as server:
            app = app_on(server.url, ledger)
            async with started(app), client_of(app, await key_of(app, "admin")) as client:
                await post(client)
                server.stop()
                await away(app, "degraded")
                server.start()

                async def posted() -> bool:
                    answer = await client.post("/api/v1/message", json=HELLO)
                    return answer.status_code == 200

                await eventually_async(posted)


async def away(app: FastAPI, status: str) -> None:
    async with client_of(app, await key_of(app, "admin")) as client:
        for method, path in (
            ("POST", "/api/v1/message"),
            ("GET", "/api/v1/queue/test"),
            ("GET", "/api/v1/message/m"),
            ("GET", "/api/v1/message/m/events"),
        ):
            async with asyncio.timeout(HANGS):
                answer = await client.request(method, path, json=HELLO)
            assert answer.status_code == 503
            assert answer.json()["detail"] == "Queue service unavailable"
            assert int(answer.headers["retry-after"]) >= 1
        health = await client.get("/health")
        assert health.status_code == 200
        assert health.json() == {
            "status": status,
            "redis_connected": False,
            "active_queues": 0,
            "messages_processing": 0,
        }


async def curl(arguments: str) -> Any:
    process = await asyncio.create_subprocess_exec(
        "curl", "-sS", *shlex.split(arguments), stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(told)


async def test_the_manual_checks_of_the_document_pass(app: FastAPI) -> None:
    """Its curl lines, with port and key adapted."""
    key = await key_of(app, "submit", "read")
    async with listening(app) as url:
        assert (await curl(f"{url}/health"))["redis_connected"] is True
        sent = await curl(
            f"-X POST {url}/api/v1/message -H 'X-API-Key: {key}'"
            " -H 'Content-Type: application/json'"
            """ -d '{"user_id":"test","org_id":"org","message":"hello","client_id":"web"}'"""
        )
        assert sent["queue_position"] == 1
        assert sent["message_id"]
        found = await curl(f"{url}/api/v1/queue/test -H 'Authorization: Bearer {key}'")
        assert found["queue_length"] == 1
