"""A fencing token is shown only to its holder: no other answer has it."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from tests.dashboard.sessions import log_in
from tests.server.serving import RunningServer, up
from towpath import Towpath

WRONG = 1_000_000_000_000_001
KEYS = {
    "foreign": ("submit", "work", "read"),
    "raw": ("submit", "work", "read", "manage", "raw"),
    "admin": ("admin",),
}


class Held(NamedTuple):
    """A held job, and its token."""

    queue: str
    id: str
    token: int


class Scene(NamedTuple):
    """A server on which jobs are held."""

    running: RunningServer
    held: list[Held]

    def check(self, answer: httpx.Response, text: str | None = None) -> None:
        """Checks that no live token is in the answer or its headers."""
        shown = (answer.text if text is None else text) + repr(answer.headers)
        for held in self.held:
            assert str(held.token) not in shown, (answer.request.method, answer.url, shown[:2000])


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with up(tmp_path_factory.mktemp("up")) as running:
        client, held = running.client(), list[Held]()
        running.api("mails").submit({"to": "ann"}, id="m-1")
        message = {"user_id": "ann", "org_id": "o", "message": "hi", "client_id": "web"}
        sent = client.post("/api/v1/message", json=message).json()["message_id"]
        app = Towpath(running.said["store"], ledger=running.database)

        @app.handler("invoices", record=True)
        async def charge(amount: int) -> None: ...

        charge.blocking.submit(12, id="i-1")
        charge.backend.leave_blocking()
        for queue, id in (("mails", "m-1"), ("messages", sent), ("invoices", "i-1")):
            [job] = running.api(queue).claim(worker="holder", lease=600, wait=20)
            assert job["id"] == id
            held.append(Held(queue, id, job["token"]))
        issue = {"repository": "octo/app", "number": 7, "title": "broken"}
        assert client.post("/api/v1/issues", json=issue).status_code == 200
        task = client.post("/api/v1/request-task", json={"agent_id": "ann"}).json()
        held.append(Held("issues", task["task_id"], task["token"]))
        yield Scene(running, held)


def bodies(name: str) -> dict[str, Any]:
    """A body that fits the operation, with a wrong token."""
    settling = {"token": WRONG, "agent_id": "mallory"}
    match name:
        case "claim":
            return {"worker": "mallory"}
        case "fail":
            return settling | {"reason": "no"}
        case "move":
            return {"delay": 3600}
        case "set_job" | "submit":
            return {"payload": "other", "id": "m-1"}
        case "request_task":
            return {"agent_id": "mallory"}
        case _:
            return settling


UNHARMED = ("purge", "delete_queue", "rotate_key", "revoke_key")
"""Operations that would take the held jobs or the keys away."""


@pytest.mark.parametrize("key", KEYS)
def test_no_operation_shows_the_token_of_another_holder(scene: Scene, key: str) -> None:
    running = scene.running
    client = running.client(running.make_key(*KEYS[key])[1])
    paths = running.client().get("/openapi.json").json()["paths"]
    asked = 0
    for held in scene.held:
        places = {
            "queue": held.queue, "id": held.id, "message_id": held.id, "user_id": "ann",
            "repository": "octo%2Fapp", "number": "7", "task_id": held.id, "lane": "ann",
        }  # fmt: skip
        for path, methods in paths.items():
            for method, operation in methods.items():
                name = operation["operationId"].partition("_api_v1_")[0]
                if name in UNHARMED:
                    continue
                filled = path
                for place, value in places.items():
                    filled = filled.replace(f"{{{place}}}", value)
                sent = bodies(name)
                kinds = (
                    sent,
                    sent | {"agent_id": None},
                    {k: v for k, v in sent.items() if k != "agent_id"},
                )
                for body in kinds if method == "post" else (sent,):
                    asked += 1
                    with client.stream(
                        method,
                        filled,
                        params={"state": "leased"} if name == "list_jobs" else None,
                        headers={"Last-Event-ID": "0-0"} if filled.endswith("events") else {},
                        json=None if method == "get" else body,
                    ) as answer:
                        if answer.headers.get("content-type", "").startswith("text/event-stream"):
                            scene.check(answer, next(answer.iter_text()))
                        else:
                            answer.read()
                            scene.check(answer)
    assert asked > 300


def test_a_refused_token_gets_the_name_of_the_holder_and_no_token(scene: Scene) -> None:
    [mail, *_] = scene.held
    api = scene.running.api("mails")
    for verb in ("renew", "complete", "release", "fail"):
        more = {"reason": "no"} if verb == "fail" else {}
        answer = api.post(f"/jobs/{mail.id}/{verb}", {"token": WRONG, **more})
        told = answer.json()
        assert (answer.status_code, told["holder"], told["state"]) == (409, "holder", "leased")
        assert "current_token" not in told
        scene.check(answer)


def test_no_tool_shows_the_token_of_another_agent(scene: Scene) -> None:
    client = scene.running.client(scene.running.make_key("work", "read")[1])
    task = scene.held[-1]
    for tool in ("heartbeat", "complete_task", "release_task", "fail_task"):
        call = {
            "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": tool, "arguments": {"task_id": task.id, "token": WRONG}},
        }  # fmt: skip
        accepts = {"Accept": "application/json, text/event-stream"}
        answer = client.post("/mcp", json=call, headers=accepts)
        assert answer.status_code == 200
        scene.check(answer)


@pytest.mark.parametrize("key", KEYS)
def test_no_page_of_the_dashboard_shows_a_token(scene: Scene, key: str) -> None:
    session = log_in(scene.running, scene.running.make_key(*KEYS[key])[1])
    pages = ["/", "/ui/workers", "/ui/dead", "/ui/search?text=m-1", "/ui/issues", "/ui/messages"]
    for held in scene.held:
        pages += [
            f"/ui/queues/{held.queue}?state=leased",
            f"/ui/queues/{held.queue}/jobs/{held.id}",
        ]
    pages += ["/ui/issues/octo%2Fapp/7", "/ui/messages/ann"]
    shown = [session.get(page) for page in pages]
    assert sum(answer.status_code == 200 for answer in shown) >= 12
    for answer in shown:
        scene.check(answer)
