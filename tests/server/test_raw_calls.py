"""The queues of applications over the generic paths: unpublished calls need the scope `raw`."""

from typing import Any, NamedTuple

import httpx
import pytest

from tests.server.serving import Api, RunningServer, code, problem
from towpath.apps.application import applications
from towpath.ledger.keys.raw import RAW_VERBS, WORK_VERBS

QUEUES = (
    "messages", "messages.callbacks", "timers.invoices", "timers.shop--mails", "reviews",
    "reviews.post", "uploads", "issues", "issues.project", "issues.sync",
)  # fmt: skip
"""A queue for each name and each pattern of the built-in applications."""
SCOPES = ("submit", "work", "read", "manage")
PUBLISHED = {("messages", verb) for verb in WORK_VERBS}


class Operation(NamedTuple):
    """An operation of the description that changes a queue."""

    method: str
    path: str
    name: str

    def call(self, client: httpx.Client, queue: str) -> httpx.Response:
        path = self.path.format(queue=queue, id="some", name="some", lane="some")
        return client.request(self.method, path, json=BODIES.get(self.name, {}))


BODIES: dict[str, Any] = {
    "submit": {"payload": 1, "id": "some"},
    "set_job": {"payload": 1},
    "move": {"delay": 1},
    "claim": {"worker": "w"},
    **{name: {"token": 1} for name in ("renew", "complete", "release")},
    "fail": {"token": 1, "reason": "no"},
    "put": {"every": 60, "paused": True},
    "change": {"paused": True},
}


@pytest.fixture(scope="module")
def operations(running: RunningServer) -> list[Operation]:
    page = running.client().get("/openapi.json").json()
    found = [
        Operation(method.upper(), path, operation["operationId"].partition("_api_v1_")[0])
        for path, methods in page["paths"].items()
        for method, operation in methods.items()
        if "{queue}" in path and method != "get"
    ]
    assert len(found) > 20
    return found


@pytest.fixture(scope="module")
def keys(running: RunningServer) -> dict[str, httpx.Client]:
    secrets = {"plain": SCOPES, "raw": (*SCOPES, "raw"), "admin": ("admin",)}
    return {name: running.client(running.make_key(*secrets[name])[1]) for name in secrets}


def is_for_admins(client: httpx.Client, operation: Operation) -> bool:
    """Whether an ordinary queue refuses it too, to a key with every other scope."""
    answer = operation.call(client, "ordinary")
    return answer.status_code == 403 and "admin" in problem(answer, 403)["detail"]


def test_every_queue_of_every_application_is_tried() -> None:
    for application in applications():
        for pattern in application.behaviours():
            names = [name for name in QUEUES if name.startswith(pattern.removesuffix("*"))]
            assert names, pattern


@pytest.mark.parametrize("queue", QUEUES)
def test_a_raw_call_needs_the_scope_raw_unless_the_application_publishes_it(
    keys: dict[str, httpx.Client], operations: list[Operation], queue: str
) -> None:
    asked = 0
    for operation in operations:
        if is_for_admins(keys["raw"], operation):
            continue
        asked += 1
        answer = operation.call(keys["plain"], queue)
        if (queue, operation.name) in PUBLISHED:
            assert answer.status_code != 403, (operation, answer.text)
        else:
            assert code(answer, 403) == "scope-missing", operation
            assert "raw" in answer.json()["detail"]
    assert asked == len(RAW_VERBS) + 5  # cancel by DELETE, and four of schedules


@pytest.mark.parametrize("key", ["raw", "admin"])
def test_a_raw_call_works_with_the_scopes_raw_and_admin(
    keys: dict[str, httpx.Client], operations: list[Operation], key: str
) -> None:
    for operation in operations:
        if not is_for_admins(keys["raw"], operation):
            answer = operation.call(keys[key], "issues.sync")
            assert answer.status_code != 403, (operation, answer.text)


def test_the_verbs_that_can_be_published_are_operations(operations: list[Operation]) -> None:
    assert {operation.name for operation in operations} >= RAW_VERBS >= set(WORK_VERBS)


@pytest.mark.parametrize("spelling", ["%69ssues", "issue%73", "%69%73%73%75%65%73"])
def test_a_queue_of_an_application_is_known_in_every_spelling(
    keys: dict[str, httpx.Client], spelling: str
) -> None:
    answer = keys["plain"].post(f"/api/v1/queues/{spelling}/claim", json={"worker": "w"})
    assert code(answer, 403) == "scope-missing"


@pytest.mark.parametrize(
    "queue", ["issue", "issues2", "issuesx.sync", "timers", "message", "x.uploads"]
)
def test_queues_with_similar_names_need_no_scope_raw(
    running: RunningServer, keys: dict[str, httpx.Client], queue: str
) -> None:
    api = Api(keys["plain"], queue)
    api.submit(1, id="a")
    [job] = api.claim()
    assert api.say("complete", job).status_code == 200


def test_reading_the_queues_of_applications_needs_no_raw(keys: dict[str, httpx.Client]) -> None:
    for queue in QUEUES:
        assert keys["plain"].get(f"/api/v1/queues/{queue}").status_code == 200
