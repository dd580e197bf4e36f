"""Webhooks over HTTP: genuine ones are saved at once, all others change nothing."""

import json
import secrets
import sqlite3
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.apps.reviews.deliveries import (
    GITHUB_SECRET,
    GITLAB_SIGNING_TOKEN,
    GITLAB_TOKEN,
    Delivery,
    github,
    github_form,
    gitlab,
    packed,
    payload,
    signed,
)
from tests.server.serving import RawConnection, RunningServer, code, problem, serve, up
from tests.waiting import eventually
from towpath.calls.signature import SIGNATURE
from towpath.embedded import EmbeddedServer

GITHUB, GITLAB = "/api/v1/webhooks/github", "/api/v1/webhooks/gitlab"
OLD_SECRET = secrets.token_hex(20)
SECRETS = {
    "TOWPATH_REVIEWS__GITHUB_SECRETS": f"{OLD_SECRET},{GITHUB_SECRET}",
    "TOWPATH_REVIEWS__GITLAB_SECRETS": f"{GITLAB_TOKEN},{GITLAB_SIGNING_TOKEN}",
}
_numbers = count(1)


@pytest.fixture(scope="module")
def served(home: Path, store: EmbeddedServer) -> Iterator[RunningServer]:
    """A server that accepts webhooks, and has no reviewer."""
    with serve(home, store.url, **SECRETS) as running:
        yield running


@pytest.fixture
def number() -> int:
    """A pull request that no other test uses."""
    return next(_numbers)


def deliver(served: RunningServer, path: str, sent: Delivery) -> httpx.Response:
    """Delivers as a forge does: without a key."""
    return served.client(key="").post(path, content=sent.body, headers=sent.headers)


def a_pull(number: int, delivery: str | None = None, **more: Any) -> Delivery:
    changes = {"pull_request.number": number, "number": number, **more}
    body = payload("github_pull_request", changes)
    return github("pull_request", body, delivery=delivery or f"pull-{number}")


def reviews_of(served: RunningServer, number: int) -> list[Any]:
    wish = {"repository": "octo/hello-world", "number": number}
    return served.client().get("/api/v1/reviews", params=wish).json()["reviews"]


def taken(answer: httpx.Response) -> Any:
    assert answer.status_code == 202, answer.text
    return answer.json()


class TestAGenuineDelivery:
    def test_of_github_is_saved_and_can_be_read(self, served: RunningServer, number: int) -> None:
        told = taken(deliver(served, GITHUB, a_pull(number)))
        id = f"github-pull-{number}"
        assert told == {"id": id, "state": "PENDING", "existed": False, "superseded": []}
        view = served.client().get(f"/api/v1/reviews/{id}").json()
        assert (view["state"], view["priority"]) == ("PENDING", 100)
        assert view["task"]["number"] == number
        assert view["task"]["repository"] == "octo/hello-world"

    def test_is_queued_in_redis(self, served: RunningServer, number: int) -> None:
        before = queued(served)
        taken(deliver(served, GITHUB, a_pull(number)))
        eventually(lambda: queued(served) == before + 1)

    def test_that_is_repeated_is_the_same_review(self, served: RunningServer, number: int) -> None:
        first = taken(deliver(served, GITHUB, a_pull(number)))
        again = taken(deliver(served, GITHUB, a_pull(number)))
        assert (again["id"], again["existed"]) == (first["id"], True)
        assert len(reviews_of(served, number)) == 1

    def test_of_a_newer_head_supersedes_the_older(self, served: RunningServer, number: int) -> None:
        first = taken(deliver(served, GITHUB, a_pull(number, f"first-{number}")))
        later = {"pull_request.updated_at": "2027-01-01T00:00:00Z"}
        newer = taken(deliver(served, GITHUB, a_pull(number, f"newer-{number}", **later)))
        assert newer["superseded"] == [first["id"]]
        states = {review["id"]: review["state"] for review in reviews_of(served, number)}
        assert states == {first["id"]: "SUPERSEDED", newer["id"]: "PENDING"}

    def test_may_be_signed_with_either_secret_of_a_rotation(
        self, served: RunningServer, number: int
    ) -> None:
        body = a_pull(number).body
        sent = github("pull_request", body, secret=OLD_SECRET, delivery=f"old-{number}")
        taken(deliver(served, GITHUB, sent))

    def test_may_be_an_html_form(self, served: RunningServer) -> None:
        taken(deliver(served, GITHUB, github_form("push", payload("github_push"))))

    def test_of_gitlab_comes_with_a_token_or_signed(self, served: RunningServer) -> None:
        body = payload("gitlab_merge_request", {"object_attributes.action": "open"})
        by_token = gitlab("Merge Request Hook", body, delivery="by-token")
        assert taken(deliver(served, GITLAB, by_token))["id"] == "gitlab-by-token"
        by_signature = signed(gitlab("Push Hook", payload("gitlab_push")), id="by-signature")
        assert taken(deliver(served, GITLAB, by_signature))["id"] == "gitlab-by-signature"

    @pytest.mark.parametrize(
        ("path", "sent", "reason"),
        [
            (GITHUB, github("ping", payload("github_ping")), "ping"),
            (GITHUB, github("issues", {"action": "opened"}), "issues"),
            (GITHUB, a_pull(7, action="closed"), "pull_request closed"),
            (GITLAB, gitlab("Job Hook", {}), "Job Hook"),
        ],
        ids=["ping", "another event", "another action", "of gitlab"],
    )
    def test_of_an_unused_event_is_accepted_and_ignored(
        self, served: RunningServer, path: str, sent: Delivery, reason: str
    ) -> None:
        assert taken(deliver(served, path, sent)) == {"ignored": reason}

    def test_is_accepted_among_many_at_once(self, served: RunningServer) -> None:
        sent = [a_pull(1_000_000 + n) for n in range(40)]
        with ThreadPoolExecutor(8) as senders:
            answers = list(senders.map(partial(deliver, served, GITHUB), sent))
        assert len({taken(answer)["id"] for answer in answers}) == len(sent)


def queued(served: RunningServer) -> int:
    counts = list[int]()

    def told() -> bool:
        """Redis may be too busy to answer in time."""
        answer = served.client().get("/api/v1/queues/reviews")
        if answer.status_code == 200:
            counts.append(answer.json()["ready"])
        return bool(counts)

    eventually(told)
    return counts[0]


def re_encoded(sent: Delivery) -> Delivery:
    return Delivery(sent.headers, json.dumps(json.loads(sent.body)).encode())


def without(sent: Delivery, header: str) -> Delivery:
    return Delivery({k: v for k, v in sent.headers.items() if k != header}, sent.body)


FORGED = {
    "unsigned": (GITHUB, without(a_pull(9), "X-Hub-Signature-256")),
    "signed with another secret": (
        GITHUB,
        github("push", payload("github_push"), secret="wrong"),  # noqa: S106 -- of no forge
    ),
    "the same JSON in other bytes": (GITHUB, re_encoded(a_pull(9))),
    "another body under a good signature": (
        GITHUB,
        Delivery(a_pull(9).headers, a_pull(10).body),
    ),
    "the old signature alone": (
        GITHUB,
        Delivery({"X-Hub-Signature": "sha1=00", "X-GitHub-Event": "push"}, b"{}"),
    ),
    "a signature of nothing like it": (
        GITHUB,
        Delivery(a_pull(9).headers | {"X-Hub-Signature-256": "sha256="}, a_pull(9).body),
    ),
    "gitlab's token at github's door": (GITHUB, gitlab("Push Hook", payload("gitlab_push"))),
    "another token": (GITLAB, gitlab("Push Hook", payload("gitlab_push"), token="wrong")),  # noqa: S106 -- of no forge
    "no token": (GITLAB, without(gitlab("Push Hook", payload("gitlab_push")), "X-Gitlab-Token")),
    "gitlab's signature of another body": (
        GITLAB,
        Delivery(signed(gitlab("Push Hook", {})).headers, packed(payload("gitlab_push"))),
    ),
}


class TestAForgedDelivery:
    @pytest.mark.parametrize("way", FORGED)
    def test_is_refused_and_changes_nothing(self, served: RunningServer, way: str) -> None:
        path, sent = FORGED[way]
        before = served.client().get("/api/v1/reviews").json()
        refusal = "signature-wrong" if SIGNATURE in sent.headers else "signature-invalid"
        assert code(deliver(served, path, sent), 401) == refusal
        assert served.client().get("/api/v1/reviews").json() == before

    def test_is_refused_even_with_an_api_key(self, served: RunningServer) -> None:
        _, sent = FORGED["unsigned"]
        answer = served.client().post(GITHUB, content=sent.body, headers=sent.headers)
        problem(answer, 401)

    def test_is_refused_before_it_is_parsed(self, served: RunningServer) -> None:
        """A body that is no JSON is refused for its signature."""
        for body in (b"[" * 100_000, b"{", b"\xff", b""):
            sent = github("push", body, secret="wrong")  # noqa: S106 -- of no forge
            problem(deliver(served, GITHUB, sent), 401)


class TestABadDelivery:
    @pytest.mark.parametrize(
        "sent",
        [
            github("push", b"{"),
            github("push", b"[" * 100_000),
            github("push", b""),
            github("push", b"\xff"),
            github("push", {"ref": "refs/heads/main"}),
            github("push", payload("github_push", {"after": "../../etc"})),
            github("push", payload("github_push"), delivery="a b"),
            github("", payload("github_push")),
        ],
        ids=["half", "deep", "empty", "no utf-8", "lacking", "no commit", "delivery", "event"],
    )
    def test_with_a_good_signature_is_refused_by_field_and_rule(
        self, served: RunningServer, sent: Delivery
    ) -> None:
        assert code(deliver(served, GITHUB, sent), 422) == "webhook-invalid"

    def test_of_25_megabytes_is_too_large_and_need_not_be_sent_whole(
        self, served: RunningServer
    ) -> None:
        """The answer comes before the body."""
        with RawConnection(served) as line:
            line.send(f"POST {GITHUB} HTTP/1.1\r\nHost: x\r\nContent-Length: 25000000\r\n\r\n")
            status, _, body = line.answer()
        assert (status, json.loads(body)["type"].rpartition("/")[2]) == (413, "body-too-large")
        whole = github("push", b'"' + b"x" * 25_000_000 + b'"')
        assert code(deliver(served, GITHUB, whole), 413) == "body-too-large"

    def test_without_a_content_length_is_counted_as_it_comes(self, served: RunningServer) -> None:
        def parts() -> Iterator[bytes]:
            for _ in range(400):
                yield b"x" * 65_536

        answer = served.client(key="").post(GITHUB, content=parts(), headers=a_pull(9).headers)
        assert code(answer, 413) == "body-too-large"

    def test_of_5_megabytes_is_taken(self, served: RunningServer, number: int) -> None:
        sent = a_pull(number, **{"pull_request.body": "x" * 5_200_000})
        taken(deliver(served, GITHUB, sent))


class TestTheWebhookPaths:
    def test_allow_no_other_method(self, served: RunningServer) -> None:
        nobody = served.client(key="")
        for method, path in (
            ("GET", GITHUB),
            ("PUT", GITHUB),
            ("OPTIONS", GITHUB),
            ("POST", f"{GITHUB}/"),
            ("POST", "/api/v1/webhooks"),
            ("POST", "/api/v1/webhooks/forge"),
            ("POST", "/api/v1/webhooks/github/../../reviews"),
            ("POST", "/api/v1/reviews"),
        ):
            assert code(nobody.request(method, path), 401) == "unauthorized"

    def test_without_secrets_name_the_setting_and_read_nothing(
        self, running: RunningServer
    ) -> None:
        for path, forge in ((GITHUB, "GITHUB"), (GITLAB, "GITLAB")):
            answer = running.client(key="").post(path, content=b"x" * 10_000_000)
            told = problem(answer, 404)
            assert told["type"].endswith("/webhook-not-configured")
            assert f"TOWPATH_REVIEWS__{forge}_SECRETS" in told["remedy"]


class TestWebhooksWithoutRedis:
    def test_are_accepted_and_queued_when_it_is_back(
        self, served: RunningServer, store: EmbeddedServer
    ) -> None:
        before = queued(served)
        store.kill()
        try:
            for n in range(20):
                told = taken(deliver(served, GITHUB, a_pull(2_000_000 + n)))
                assert told["state"] == "PENDING"
            health = served.client(key="").get("/health").json()
            assert (health["status"], health["redis_connected"]) == ("degraded", False)
            ready = served.client(key="").get("/readyz")
            assert (ready.status_code, ready.json()["status"]) == (503, "degraded")
            asked = {"repository": "octo/hello-world", "head": "a1" * 20, "number": 2_000_100}
            taken(served.client().post("/api/v1/reviews", json=asked))
        finally:
            store.start()
        eventually(lambda: served.client(key="").get("/readyz").status_code == 200)
        eventually(lambda: queued(served) == before + 21)
        assert served.client(key="").get("/health").json()["status"] == "healthy"


class TestWebhooksWithoutTheDatabase:
    def test_are_refused_with_a_retry_after_header(
        self, served: RunningServer, home: Path, number: int
    ) -> None:
        other = sqlite3.connect(home / "ledger.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        try:
            told = problem(deliver(served, GITHUB, a_pull(number)), 503)
            assert "ledger" in told["type"]
            health = served.client(key="").get("/health").json()
            assert (health["status"], health["redis_connected"]) == ("degraded", True)
        finally:
            other.execute("ROLLBACK")
            other.close()
        taken(deliver(served, GITHUB, a_pull(number)))


def test_no_secret_and_no_text_of_a_stranger_is_in_the_log(
    served: RunningServer, number: int
) -> None:
    """I21: neither of accepted requests nor of refused ones."""
    canary = "canary-4e1f-in-a-title"
    deliver(served, GITHUB, a_pull(number, **{"pull_request.title": canary}))
    deliver(served, GITHUB, github("push", packed({"ref": canary})))
    _, forged = FORGED["unsigned"]
    deliver(served, GITHUB, forged)
    log = served.log.read_text()
    assert "http.started" in log
    signature = a_pull(number).headers["X-Hub-Signature-256"]
    for hidden in (
        GITHUB_SECRET,
        OLD_SECRET,
        GITLAB_TOKEN,
        GITLAB_SIGNING_TOKEN,
        signature,
        canary,
    ):
        assert hidden not in log


REVIEWER = """
import json, os, sys
task = json.load(sys.stdin)
assert os.environ["MODEL_KEY"] == "k-17" and "TOWPATH_REVIEWS__GITHUB_SECRETS" not in os.environ
print(json.dumps({"summary": "Looked at " + task["head"][:7], "verdict": "approve"}))
"""


def test_a_server_with_a_reviewer_reviews_webhooks(tmp_path: Path) -> None:
    """From the webhook to the review, in `towpath up` alone."""
    env = SECRETS | {
        "TOWPATH_REVIEWS__REVIEWER_COMMAND": json.dumps([sys.executable, "-c", REVIEWER]),
        "TOWPATH_REVIEWS__REVIEWER_VARIABLES": "MODEL_KEY",
        "MODEL_KEY": "k-17",
    }
    with up(tmp_path, **env) as served:
        sent = a_pull(7)
        id = taken(deliver(served, GITHUB, sent))["id"]
        client = served.client()

        def view() -> Any:
            return client.get(f"/api/v1/reviews/{id}").json()

        eventually(lambda: view()["state"] in ("COMPLETED", "FAILED", "DEAD"))
        assert view()["last_error"] is None
        head = json.loads(sent.body)["pull_request"]["head"]["sha"]
        assert view()["review"] == {
            "summary": f"Looked at {head[:7]}",
            "verdict": "approve",
            "comments": [],
        }
        counts = client.get("/api/v1/queues/reviews").json()
        assert counts["totals"]["completed"] == 1
