"""Floods: many connections, large bodies, bodies that never end. Memory stays flat, and other
clients are served.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.apps.reviews.deliveries import GITHUB_SECRET, github, payload
from tests.queue_numbers import number
from tests.server.serving import RawConnection, RunningServer, memory, processor_time, serve
from tests.spec.deployment import Deployment
from tests.waiting import eventually
from towpath.embedded import EmbeddedServer

MB = 1024 * 1024
JOBS = "/api/v1/queues/mails/jobs"
WEBHOOK = "/api/v1/webhooks/github"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def store() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, store: EmbeddedServer
) -> Iterator[RunningServer]:
    home = tmp_path_factory.mktemp("floods")
    with serve(home, store.url, TOWPATH_REVIEWS__GITHUB_SECRETS=GITHUB_SECRET) as running:
        yield running


@pytest.fixture
def lines(served: RunningServer) -> Iterator[Any]:
    """Connections, closed at the end."""
    with ExitStack() as open_ones:
        yield lambda: open_ones.enter_context(RawConnection(served))


def head(path: str, *more: str) -> str:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", *more, "", ""])


class TestBodiesOfPathsThatTakeNone:
    @pytest.mark.parametrize("path", ["/livez", "/readyz", "/health"])
    def test_are_not_read_without_a_key(self, served: RunningServer, lines: Any, path: str) -> None:
        before = memory(served)
        for _ in range(40):
            line = lines()
            line.send(head(path, "Content-Type: application/json", f"Content-Length: {2 * MB}"))
            line.send(b" " * (2 * MB - 1))
            assert line.answer()[0] == 405
        assert memory(served) - before < 20 * MB

    @pytest.mark.parametrize("path", ["/api/v1/queues/mails/pause", "/api/v1/nothing"])
    def test_are_not_read_with_a_key(self, served: RunningServer, lines: Any, path: str) -> None:
        line = lines()
        line.send(head(path, f"X-API-Key: {served.key}", f"Content-Length: {2 * MB}"))
        line.send(b" " * MB)
        assert line.answer()[0] in (204, 404)


class TestUnfinishedBodies:
    def test_do_not_block_webhooks(self, served: RunningServer, lines: Any) -> None:
        """Thirteen of 5 MiB are more than all deliveries together may take."""
        before = memory(served)
        for _ in range(13):
            line = lines()
            line.send(head(WEBHOOK, "X-GitHub-Event: push", f"Content-Length: {5 * MB}"))
            line.send(b" " * (5 * MB - 1))
        sent = github("pull_request", payload("github_pull_request", {"pull_request.number": 1}))
        answer = served.client(key="").post(WEBHOOK, content=sent.body, headers=sent.headers)
        assert answer.status_code == 202, answer.text
        assert memory(served) - before < 64 * MB

    def test_of_one_key_do_not_block_another_key(self, served: RunningServer, lines: Any) -> None:
        _, secret = served.make_key("submit")
        before = memory(served)
        for _ in range(60):
            line = lines()
            size = f"Content-Length: {2 * MB}"
            line.send(head(JOBS, f"X-API-Key: {secret}", "Content-Type: application/json", size))
            line.send(b" " * (2 * MB - 1))
        for key in (secret, served.key):
            answer = served.client(key).post(JOBS, json={"payload": "x" * 500_000})
            assert answer.status_code == 202, answer.text
        assert memory(served) - before < 90 * MB


def test_waiting_claims_on_many_queues_take_few_connections(
    served: RunningServer, lines: Any, store: EmbeddedServer
) -> None:
    """A key may use any names of queues: each would cost a connection to Redis for good."""
    seen = Deployment.of(store)
    before = seen.connections()
    body = json.dumps({"worker": "w", "wait": 30})
    for n in range(60):
        more = f"X-API-Key: {served.key}", "Content-Type: application/json"
        size = f"Content-Length: {len(body)}"
        lines().send(head(f"/api/v1/queues/made-up-{n}/claim", *more, size) + body)
    meta = "{made-up-59}:meta"
    eventually(lambda: number(store.ask, meta, "asked_at") and seen.blocked() >= 10)
    assert seen.connections() - before < 40
    assert served.client().get("/readyz").status_code == 200


HOSTILE = {
    "lists": b"[" + b",".join([b"[]"] * 690_000) + b"]",
    "payload": b'{"payload":[' + b",".join([b"[]"] * 690_000) + b"]}",
    "fields": b"{" + b",".join(b'"a%d":1' % n for n in range(180_000)) + b"}",
    "jobs": b"[" + b",".join([b"{" + b",".join([b'"a%d":1' % n for n in range(400)]) + b"}"] * 450)
    + b"]",
    "headers": b'{"headers":{' + b",".join(b'"a%d":1' % n for n in range(150_000)) + b"}}",
}  # fmt: skip


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_two_megabytes_of_small_values_do_not_block_the_server(
    served: RunningServer, body: bytes
) -> None:
    """Nobody else is answered while they are looked at."""
    client = served.client()
    client.post(JOBS, json={"payload": 1})
    before = processor_time(served)
    client.post(JOBS, content=body, headers=JSON)
    assert processor_time(served) - before < 0.5


def test_a_payload_of_small_values_is_shown_without_blocking_the_server(
    served: RunningServer,
) -> None:
    client = served.client()
    body = b'{"id":"small","payload":[' + b",".join([b"[]"] * 340_000) + b"]}"
    assert client.post(JOBS, content=body, headers=JSON).status_code == 202
    before = processor_time(served)
    assert client.get(f"{JOBS}/small").status_code == 200
    assert processor_time(served) - before < 0.5


def test_no_flood_causes_an_unexpected_error(served: RunningServer) -> None:
    assert served.client(key="").get("/livez").text == "ok"
    assert not [event for event in served.events() if event["event"] == "http.defect"]
    assert Path(served.log).exists()
