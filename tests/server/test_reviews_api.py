"""Reviews over HTTP: requested, read, listed, cancelled, retried."""

import asyncio
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.postgres import PostgresServer
from tests.server.serving import RunningServer, begin, code, problem, serving
from tests.waiting import HANGS, eventually
from towpath.apps.reviews.model import REVIEWS, Forge
from towpath.embedded import EmbeddedServer
from towpath.engine.model import Bury, Lease, job_ref
from towpath.ids import Token
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.attempts import Ending

HEAD = "a1" * 20
ROOT = "/api/v1/reviews"
_numbers = count(1)


@pytest.fixture
def repository() -> str:
    """A repository that no other test uses."""
    return f"octo/repo-{next(_numbers)}"


@pytest.fixture
def client(running: RunningServer) -> httpx.Client:
    """A client with every scope; every answer is checked against the description."""
    return running.client()


def ask(client: httpx.Client, repository: str, **more: Any) -> Any:
    body = {"repository": repository, "head": HEAD, "number": 7, **more}
    answer = client.post(ROOT, json=body)
    assert answer.status_code == 202, answer.text
    return answer.json()


def look(client: httpx.Client, id: str) -> Any:
    answer = client.get(f"{ROOT}/{quote(id, safe='')}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def bury(served: RunningServer, id: str) -> None:
    """Makes the review's last attempt fail."""

    async def bury() -> None:
        async with Ledger(served.database) as ledger:
            job = (await ledger.jobs.get(REVIEWS, id)).job
            lease = Lease(job_ref(REVIEWS, job), b"", Token(1), 1, "w", 0, 0)
            await ledger.jobs.begin(lease)
            await ledger.jobs.end(Ending(lease, Bury(lease, "no luck"), cancelled=False))

    asyncio.run(bury())


class TestAskingForAReview:
    def test_answers_with_the_location_of_the_review(
        self, client: httpx.Client, repository: str
    ) -> None:
        body = {"repository": repository, "head": HEAD, "number": 7, "id": f"{repository} ü"}
        answer = client.post(ROOT, json=body)
        assert answer.status_code == 202
        told = answer.json()
        assert told == {
            "id": f"api-{repository} ü",
            "state": "PENDING",
            "existed": False,
            "superseded": [],
        }
        view = client.get(answer.headers["location"]).json()
        assert view["task"] == {
            "forge": "api",
            "kind": "pull",
            "repository": repository,
            "head": HEAD,
            "number": 7,
            "ref": "",
            "target": None,
            "base": None,
            "before": None,
            "title": "",
            "author": "",
            "url": "",
            "clone_url": "",
            "action": "requested",
            "host": "",
        }
        assert (view["state"], view["priority"], view["attempts"]) == ("PENDING", 100, 0)
        assert view["review"] is None

    def test_of_a_branch_is_of_normal_priority_unless_it_says_so(
        self, client: httpx.Client, repository: str
    ) -> None:
        branch = ask(client, repository, number=None, ref="main")
        assert look(client, branch["id"])["priority"] == 50
        urgent = ask(client, repository, number=None, ref="main", priority=90)
        assert look(client, urgent["id"])["priority"] == 90
        assert urgent["superseded"] == [branch["id"]]

    def test_again_under_the_same_id_has_no_effect(
        self, client: httpx.Client, repository: str
    ) -> None:
        first = ask(client, repository, id=repository)
        again = ask(client, repository, id=repository)
        assert again == {**first, "existed": True}
        other = client.post(
            ROOT, json={"repository": repository, "head": HEAD, "number": 8, "id": repository}
        )
        assert code(other, 409) == "review-differs"

    @pytest.mark.parametrize(
        "wrong",
        [
            {"repository": "octo"}, {"repository": "octo/../etc"}, {"repository": None},
            {"head": "main"}, {"head": "0" * 40}, {"head": ""}, {"head": None},
            {"number": 0}, {"number": 2**31}, {"number": None}, {"number": "seven"},
            {"ref": "a..b"}, {"base": "x"}, {"url": "ftp://x/"},
            {"clone_url": "https://me:secret@example.com/"}, {"clone_url": "x" * 2001},
            {"id": ""}, {"id": "a\nb"}, {"id": "x" * 401}, {"priority": 101}, {"priority": True},
            {"number": True}, {"unknown": 1},
        ],
        ids=str,
    )  # fmt: skip
    def test_with_an_invalid_field_is_refused(
        self, client: httpx.Client, repository: str, wrong: dict[str, Any]
    ) -> None:
        body = {"repository": repository, "head": HEAD, "number": 7, **wrong}
        answer = client.post(ROOT, json=body)
        told = problem(answer, 422)
        assert "secret" not in answer.text
        assert told["detail"]
        assert client.get(ROOT, params={"repository": repository}).json()["reviews"] == []


class TestLooking:
    def test_an_unknown_review_is_not_found(self, client: httpx.Client) -> None:
        for method, path in (("GET", ""), ("POST", "/cancel"), ("POST", "/retry")):
            answer = client.request(method, f"{ROOT}/nobody{path}")
            assert code(answer, 404) == "record-not-found"
            assert all(f"{forge}-" in answer.json()["remedy"] for forge in Forge)

    def test_an_unknown_method_is_refused_and_names_the_description_of_the_api(
        self, client: httpx.Client
    ) -> None:
        told = problem(client.request("DELETE", f"{ROOT}/nobody"), 405)
        assert "/openapi.json" in told["remedy"]

    def test_lists_are_filtered_and_paged(self, client: httpx.Client, repository: str) -> None:
        ids = [ask(client, repository, number=n)["id"] for n in range(1, 6)]
        client.post(f"{ROOT}/{ids[0]}/cancel")

        def page(**wish: Any) -> Any:
            answer = client.get(ROOT, params={"repository": repository, **wish})
            assert answer.status_code == 200, answer.text
            return answer.json()

        first = page(size=2)
        assert [review["id"] for review in first["reviews"]] == [ids[4], ids[3]]
        rest = page(size=10, after=first["after"])
        assert [review["id"] for review in rest["reviews"]] == [ids[2], ids[1], ids[0]]
        assert rest["after"] is None
        for state in ("CANCELLED", "cancelled"):
            assert [review["id"] for review in page(state=state)["reviews"]] == [ids[0]]
        assert [review["id"] for review in page(number=3)["reviews"]] == [ids[2]]
        assert page(forge="github")["reviews"] == []

    @pytest.mark.parametrize(
        "wish",
        [
            "state=ready", "forge=other", "repositry=a/b", "state=DEAD&limit=5", "number=0",
            "size=0", "size=201", "after=!", "number=1", "repository=x", "repository=a/b%00",
        ],
    )  # fmt: skip
    def test_an_invalid_filter_is_refused(self, client: httpx.Client, wish: str) -> None:
        problem(client.get(f"{ROOT}?{wish}"), 422)


class TestCancellingAndRetrying:
    def test_ends_a_review_and_gives_it_new_attempts(
        self, client: httpx.Client, repository: str
    ) -> None:
        id = ask(client, repository)["id"]
        for _ in range(2):
            answer = client.post(f"{ROOT}/{id}/cancel")
            assert (answer.status_code, answer.json()["state"]) == (200, "CANCELLED")
        assert client.post(f"{ROOT}/{id}/retry").json()["state"] == "PENDING"
        told = problem(client.post(f"{ROOT}/{id}/retry"), 409)
        assert told["state"] == "PENDING"

    def test_a_dead_review_is_shown_with_its_reason(
        self, running: RunningServer, client: httpx.Client, repository: str
    ) -> None:
        id = ask(client, repository)["id"]
        bury(running, id)
        view = look(client, id)
        assert (view["state"], view["attempts"], view["last_error"]) == ("DEAD", 1, "no luck")
        assert view["finished_at"]
        assert code(client.post(f"{ROOT}/{id}/cancel"), 409) == "record-ended"
        assert client.post(f"{ROOT}/{id}/retry").json()["attempts"] == 0


class TestKeys:
    NEEDS = (
        ("submit", "POST", ""),
        ("submit", "POST", "/there/cancel"),
        ("read", "GET", ""),
        ("read", "GET", "/there"),
        ("admin", "POST", "/there/retry"),
    )

    @pytest.mark.parametrize(("scope", "method", "path"), NEEDS)
    def test_a_scope_allows_its_own_paths_and_no_others(
        self, running: RunningServer, scope: str, method: str, path: str
    ) -> None:
        body: Any = {} if not path and method == "POST" else None
        for given in ("submit", "read", "work", "admin"):
            _, secret = running.make_key(given, queues=("reviews",))
            answer = running.client(secret).request(method, ROOT + path, json=body)
            status = answer.status_code
            allowed = given in (scope, "admin")
            assert (status != 403) is allowed, given

    def test_of_another_queue_cannot_find_out_whether_a_review_exists(
        self, running: RunningServer, repository: str
    ) -> None:
        """I20: whether there is such a review is told to nobody who may not see it."""
        there = ask(running.client(), repository)["id"]
        _, secret = running.make_key("admin", queues=("mails*",))
        stranger = running.client(secret)
        for method, path in (("GET", ""), ("POST", "/cancel"), ("POST", "/retry")):
            answers = [
                stranger.request(method, f"{ROOT}/{id}{path}") for id in (there, "api-nobody")
            ]
            assert [code(answer, 403) for answer in answers] == ["queue-forbidden"] * 2
            assert answers[0].json() == answers[1].json()
        assert code(stranger.get(ROOT), 403) == "queue-forbidden"

    def test_no_path_answers_without_a_key(self, running: RunningServer) -> None:
        for _, method, path in self.NEEDS:
            assert code(running.client(key="").request(method, ROOT + path), 401) == "unauthorized"


@pytest.fixture
def on_postgres(tmp_path: Path, server: EmbeddedServer) -> Iterator[RunningServer]:
    """A server with a PostgreSQL, and a reviewer in its working directory."""
    (tmp_path / "mine.py").write_text("def review(task):\n    return 'Fine: ' + task.title\n")
    reviewer = {"TOWPATH_REVIEWS__REVIEWER_FUNCTION": "mine:review"}
    with PostgresServer() as postgres:
        database = postgres.url()
        words = ("serve", "--url", server.url, "--database", database)
        with serving(*words, database=database, log=tmp_path / "log", env=reviewer) as served:
            _, served.own_key = served.make_key("admin")
            yield served


def test_a_function_reviews_on_postgresql(on_postgres: RunningServer) -> None:
    client = on_postgres.client()
    id = ask(client, "octo/repo", title="Say hello")["id"]
    eventually(lambda: look(client, id)["state"] == "COMPLETED")
    assert look(client, id)["review"]["summary"] == "Fine: Say hello"
    [listed] = client.get(ROOT, params={"state": "COMPLETED"}).json()["reviews"]
    assert (listed["id"], listed["review"]) == (id, None)


@pytest.mark.parametrize(
    ("reviewer", "named"),
    [
        ({"function": "nowhere:review"}, "nowhere"),
        ({"command": "no-such-program x"}, "no-such-program"),
        ({"command": "python reviewer.py"}, "'reviewer.py'"),
        ({"url": "canary"}, "http://"),
        ({"command": "true", "url": "https://canary.example/"}, "reviewer_command = '…'"),
    ],
    ids=str,
)
def test_an_invalid_reviewer_is_refused_at_the_start_by_its_setting(
    tmp_path: Path, server: EmbeddedServer, reviewer: dict[str, str], named: str
) -> None:
    words = ("serve", "--url", server.url, "--database", f"sqlite:///{tmp_path}/ledger.db")
    env = {f"TOWPATH_REVIEWS__REVIEWER_{name.upper()}": value for name, value in reviewer.items()}
    with begin(*words, log=tmp_path / "log", env=env) as process:
        process.communicate(timeout=HANGS)
    log = (tmp_path / "log").read_text()
    assert process.returncode == 2, log
    refusal = json.loads(log.splitlines()[-1])
    assert refusal["refused"] == "invalid_option"
    assert refusal["message"].startswith(f"reviews.reviewer_{next(iter(reviewer))} = ")
    assert named in refusal["message"]
    assert "canary" not in log
