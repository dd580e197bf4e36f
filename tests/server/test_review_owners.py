"""A key with `submit` cancels only the reviews that its own owner requested."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any

import httpx
import pytest

from tests.apps.reviews.deliveries import GITHUB_SECRET, github, payload
from tests.postgres import PostgresServer
from tests.server.description import Description
from tests.server.serving import PATIENT, RunningServer, code, serving
from towpath.apps.reviews.http import ReviewIn
from towpath.apps.reviews.service import Reviews
from towpath.embedded import EmbeddedServer
from towpath.ledger.ledger import Ledger

REPOSITORY = "octo/hello-world"
"""The one of the webhooks."""
HEAD, NEWER = "a1" * 20, "b2" * 20
ROOT = "/api/v1/reviews"
_numbers = count(1)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """A server that takes webhooks of GitHub and has no reviewer, on each kind of database."""
    home = tmp_path_factory.mktemp("served")
    env = {"TOWPATH_REVIEWS__GITHUB_SECRETS": GITHUB_SECRET}
    with ExitStack() as stack:
        store = stack.enter_context(EmbeddedServer())
        database = f"sqlite:///{home}/ledger.db"
        if request.param == "postgresql":
            database = stack.enter_context(PostgresServer()).url()
        words = ("serve", "--url", store.url, "--database", database)
        served = stack.enter_context(
            serving(*words, database=database, log=home / "log", env=env, command=PATIENT)
        )
        _, served.own_key = served.make_key("admin")
        served.description = Description(served.client().get("/openapi.json").json())
        yield served


@pytest.fixture
def number() -> int:
    """A pull request that no other test uses."""
    return next(_numbers)


def caller(served: RunningServer, *scopes: str, owner: str | None = None) -> httpx.Client:
    _, secret = served.make_key(*scopes, queues=("reviews",), owner=owner)
    return served.client(secret)


def ask(client: httpx.Client, number: int, **more: Any) -> Any:
    body = {"repository": "octo/repo", "head": HEAD, "number": number, **more}
    answer = client.post(ROOT, json=body)
    assert answer.status_code == 202, answer.text
    return answer.json()


def deliver(served: RunningServer, number: int) -> str:
    """The id of a review that a webhook of GitHub requests."""
    body = payload("github_pull_request", {"pull_request.number": number, "number": number})
    sent = github("pull_request", body, delivery=f"pull-{number}")
    forge = served.client(key="")
    answer = forge.post("/api/v1/webhooks/github", content=sent.body, headers=sent.headers)
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


def cancel(client: httpx.Client, id: str) -> httpx.Response:
    return client.post(f"{ROOT}/{id}/cancel")


def look(served: RunningServer, id: str) -> Any:
    answer = served.client().get(f"{ROOT}/{id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def state(served: RunningServer, id: str) -> str:
    return look(served, id)["state"]


class TestAReview:
    def test_belongs_to_the_owner_of_the_key_that_requested_it(
        self, served: RunningServer, number: int
    ) -> None:
        key, secret = served.make_key("submit", queues=("reviews",))
        own = ask(served.client(secret), number)["id"]
        shared = ask(caller(served, "submit", owner="shop"), number)["id"]
        assert [look(served, id)["owner"] for id in (own, shared)] == [key, "shop"]

    def test_of_a_webhook_has_no_owner(self, served: RunningServer, number: int) -> None:
        assert look(served, deliver(served, number))["owner"] is None

    def test_cannot_be_given_to_another_owner(self, served: RunningServer, number: int) -> None:
        body = {"repository": "octo/repo", "head": HEAD, "number": number, "owner": "victim"}
        assert caller(served, "submit").post(ROOT, json=body).status_code == 422

    def test_stays_its_owners_if_another_key_requests_it_again(
        self, served: RunningServer, number: int
    ) -> None:
        id = ask(caller(served, "submit", owner="shop"), number, id=f"same-{number}")["id"]
        stranger = caller(served, "submit", "read")
        assert ask(stranger, number, id=f"same-{number}")["existed"]
        assert code(cancel(stranger, id), 403) == "not-owner"
        assert look(served, id)["owner"] == "shop"

    def test_of_another_owner_is_listed_and_read_with_the_scope_read(
        self, served: RunningServer, number: int
    ) -> None:
        ids = [ask(caller(served, "submit"), number, repository=REPOSITORY)["id"]]
        ids.append(deliver(served, number))
        reader = caller(served, "read")
        assert [reader.get(f"{ROOT}/{id}").json()["id"] for id in ids] == ids
        found = reader.get(ROOT, params={"repository": REPOSITORY, "number": number})
        assert [review["id"] for review in found.json()["reviews"]] == ids[::-1]


class TestCancelling:
    @pytest.mark.parametrize("by", ["owner", "manage", "admin"])
    def test_is_for_the_owner_and_for_keys_that_manage(
        self, served: RunningServer, number: int, by: str
    ) -> None:
        id = ask(caller(served, "submit", owner="shop"), number)["id"]
        callers = {
            "owner": caller(served, "submit", owner="shop"),
            "manage": caller(served, "submit", "manage"),
            "admin": caller(served, "admin"),
        }
        for _ in range(2):
            answer = cancel(callers[by], id)
            assert (answer.status_code, answer.json()["state"]) == (200, "CANCELLED")

    def test_of_another_owners_review_is_refused(self, served: RunningServer, number: int) -> None:
        id = ask(caller(served, "submit"), number)["id"]
        assert code(cancel(caller(served, "submit", "read"), id), 403) == "not-owner"
        assert state(served, id) == "PENDING"

    def test_of_a_webhooks_review_needs_manage(self, served: RunningServer, number: int) -> None:
        id = deliver(served, number)
        assert code(cancel(caller(served, "submit", "read"), id), 403) == "not-owner"
        assert state(served, id) == "PENDING"
        assert cancel(caller(served, "submit", "manage"), id).json()["state"] == "CANCELLED"

    def test_of_a_review_that_was_saved_without_a_key_needs_manage(
        self, served: RunningServer, number: int
    ) -> None:
        """`towpath reviews submit` does so, and releases without owners did."""
        task = ReviewIn(repository="octo/repo", head=HEAD, number=number).task()

        async def save() -> str:
            async with Ledger(served.database) as ledger:
                return (await Reviews(ledger.jobs).submit(task)).id

        id = asyncio.run(save())
        assert code(cancel(caller(served, "submit", "read"), id), 403) == "not-owner"
        assert look(served, id)["owner"] is None
        assert cancel(caller(served, "submit", "manage"), id).json()["state"] == "CANCELLED"

    def test_does_not_tell_a_key_that_cannot_read_what_there_is(
        self, served: RunningServer, number: int
    ) -> None:
        writer = caller(served, "submit")
        waiting = ask(caller(served, "submit"), number)["id"]
        ended = ask(caller(served, "submit"), number)["id"]
        cancel(served.client(), ended)
        ids = ("api-nobody", waiting, ended, deliver(served, number))
        answers = [cancel(writer, id) for id in ids]
        assert {code(answer, 404) for answer in answers} == {"record-not-found"}
        texts = {answer.text.replace(id, "") for answer, id in zip(answers, ids, strict=True)}
        assert len(texts) == 1
        assert state(served, waiting) == "PENDING"

    def test_with_manage_alone_is_refused(self, served: RunningServer, number: int) -> None:
        id = ask(caller(served, "submit"), number)["id"]
        assert code(cancel(caller(served, "manage", "read"), id), 403) == "scope-missing"


class TestANewerRequest:
    def test_supersedes_the_owners_own(self, served: RunningServer, number: int) -> None:
        older = ask(caller(served, "submit", owner="shop"), number)["id"]
        newer = ask(caller(served, "submit", owner="shop"), number, head=NEWER)
        assert newer["superseded"] == [older]
        assert state(served, older) == "SUPERSEDED"

    @pytest.mark.parametrize("scopes", [("submit",), ("submit", "manage"), ("admin",)], ids=str)
    def test_of_another_owner_leaves_it_alone(
        self, served: RunningServer, number: int, scopes: tuple[str, ...]
    ) -> None:
        older = ask(caller(served, "submit", owner="shop"), number)["id"]
        newer = ask(caller(served, *scopes), number, head=NEWER)
        assert newer["superseded"] == []
        assert [state(served, id) for id in (older, newer["id"])] == ["PENDING", "PENDING"]
        last = ask(caller(served, "submit", owner="shop"), number, head=NEWER)
        assert last["superseded"] == [older]
        assert state(served, newer["id"]) == "PENDING"

    def test_leaves_the_reviews_of_webhooks_alone(self, served: RunningServer, number: int) -> None:
        id = deliver(served, number)
        newer = ask(caller(served, "submit"), number, repository=REPOSITORY)
        assert newer["superseded"] == []
        assert state(served, id) == "PENDING"
