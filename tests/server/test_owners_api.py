"""A key with `submit` changes only what its own owner made; `manage` changes everything."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.cli.command import Command
from tests.server.serving import Api, RunningServer, code
from towpath import Towpath
from towpath.clock import hours

Change = Callable[[Api, str], httpx.Response]
CHANGES: dict[str, Change] = {
    "replace": lambda api, id: api.put(f"/jobs/{id}", {"payload": "new"}),
    "move": lambda api, id: api.patch(f"/jobs/{id}", {"delay": 3600}),
    "cancel": lambda api, id: api.post(f"/jobs/{id}/cancel"),
    "cancel by DELETE": lambda api, id: api.delete(f"/jobs/{id}"),
}
each_change = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)


class Callers:
    """Keys for one queue."""

    def __init__(self, running: RunningServer, queue: str) -> None:
        self._running, self.queue = running, queue

    def __call__(self, *scopes: str, owner: str | None = None) -> Api:
        _, secret = self._running.make_key(*scopes, queues=(self.queue,), owner=owner)
        return self._running.api(self.queue, secret)


@pytest.fixture
def callers(running: RunningServer, queue: str) -> Callers:
    return Callers(running, queue)


@pytest.fixture
def command(running: RunningServer, tmp_path: Path) -> Command:
    return Command(running.said["store"], tmp_path)


def facts(api: Api, id: str) -> tuple[str, str]:
    found = api.look(id)
    return found["state"], found["payload"]


class TestAJobOverHttp:
    def test_belongs_to_the_owner_of_its_key(
        self, running: RunningServer, callers: Callers, api: Api
    ) -> None:
        id, secret = running.make_key("submit", queues=(api.queue,))
        running.api(api.queue, secret).submit("x", id="own")
        callers("submit", owner="shop").submit("x", id="shared")
        listed = callers("submit", owner="shop").post("/jobs", [{"id": "listed"}, {"id": "two"}])
        assert listed.status_code == 202
        callers("submit", owner="shop").post("/jobs", {"id": "named"}, Idempotency_Key="k")
        owners = [api.look(name)["owner"] for name in ("own", "shared", "listed", "named")]
        assert owners == [id, "shop", "shop", "shop"]

    @pytest.mark.parametrize("body", [{"owner": "victim"}, [{"owner": "victim"}]])
    def test_cannot_be_given_to_another_owner(self, api: Api, body: object) -> None:
        answer = api.post("/jobs", body)
        told = answer.json()
        assert answer.status_code == 422 or told["jobs"][0]["error"] == "invalid_input"

    @each_change
    def test_is_changed_by_every_key_of_its_owner(
        self, callers: Callers, api: Api, change: Change
    ) -> None:
        callers("submit", owner="shop").submit("old", id="a")
        assert change(callers("submit", owner="shop"), "a").status_code == 200
        assert facts(api, "a") != ("ready", "old")

    @each_change
    def test_is_changed_by_a_new_key_after_a_rotation(
        self, running: RunningServer, api: Api, change: Change
    ) -> None:
        id, secret = running.make_key("submit", queues=(api.queue,))
        running.api(api.queue, secret).submit("old", id="a")
        new = running.client().post(f"/api/v1/keys/{id}/rotate", json={}).json()["secret"]
        assert change(running.api(api.queue, new), "a").status_code == 200

    @each_change
    def test_is_not_changed_by_a_key_of_another_owner(
        self, callers: Callers, api: Api, change: Change
    ) -> None:
        callers("submit").submit("old", id="a")
        assert code(change(callers("submit", "read"), "a"), 403) == "not-owner"
        assert facts(api, "a") == ("ready", "old")

    @each_change
    def test_is_changed_by_a_key_with_the_scope_manage(
        self, callers: Callers, api: Api, change: Change
    ) -> None:
        callers("submit").submit("old", id="a")
        assert change(callers("submit", "manage"), "a").status_code == 200
        assert facts(api, "a") != ("ready", "old")

    def test_belongs_to_the_owner_who_replaced_it(self, callers: Callers, api: Api) -> None:
        callers("submit", owner="shop").submit("old", id="a")
        callers("submit", "manage", owner="desk").put("/jobs/a", {"payload": "new"})
        assert api.look("a")["owner"] == "desk"

    @each_change
    def test_needs_manage_if_it_was_submitted_without_a_key(
        self, running: RunningServer, callers: Callers, command: Command, change: Change
    ) -> None:
        command("submit", callers.queue, '"old"', "--id", "a")
        assert code(change(callers("submit", "read"), "a"), 403) == "not-owner"
        assert change(callers("submit", "manage"), "a").status_code == 200

    @each_change
    def test_can_be_given_an_owner_on_the_command_line(
        self, running: RunningServer, callers: Callers, command: Command, change: Change
    ) -> None:
        command("submit", callers.queue, '"old"', "--id", "a", "--owner", "shop")
        assert change(callers("submit", owner="shop"), "a").status_code == 200

    @each_change
    def test_with_a_record_obeys_the_same_rule(
        self, running: RunningServer, callers: Callers, api: Api, change: Change
    ) -> None:
        app = Towpath(running.said["store"], ledger=running.database)

        @app.handler(callers.queue, record=True)
        async def handle(text: str) -> None: ...

        handle.blocking.submit("old", id="a", delay=hours(1))
        handle.blocking.submit("old", id="b", delay=hours(1), owner="shop")
        assert code(change(callers("submit", "read"), "a"), 403) == "not-owner"
        assert code(change(callers("submit", "read"), "b"), 403) == "not-owner"
        assert [facts(api, id) for id in "ab"] == [("delayed", "old")] * 2
        assert change(callers("submit", owner="shop"), "b").status_code == 200
        assert change(callers("submit", "manage"), "a").status_code == 200
        handle.backend.leave_blocking()


@pytest.mark.parametrize("name", ["move", "cancel", "cancel by DELETE"])
def test_a_key_that_cannot_read_cannot_tell_a_foreign_job_from_a_missing_one(
    callers: Callers, api: Api, name: str
) -> None:
    callers("submit").submit("old", id="a")
    blind = callers("submit")
    foreign, missing = CHANGES[name](blind, "a"), CHANGES[name](blind, "b")
    assert code(foreign, 404) == code(missing, 404) == "job-not-found"
    assert foreign.text.replace("/a", "/b") == missing.text
    assert facts(api, "a") == ("ready", "old")


SCHEDULE_CHANGES: dict[str, Callable[[httpx.Client, str], httpx.Response]] = {
    "replace": lambda client, path: client.put(path, json={"every": 60}),
    "change": lambda client, path: client.patch(path, json={"paused": True}),
    "delete": lambda client, path: client.delete(path),
    "fire": lambda client, path: client.post(f"{path}/fire"),
}


class TestAScheduleOverHttp:
    @pytest.fixture
    def path(self, callers: Callers) -> str:
        path = f"/api/v1/schedules/{callers.queue}/nightly"
        made = callers("submit", owner="shop").client.put(path, json={"every": 3600})
        assert made.status_code == 201
        return path

    @pytest.mark.parametrize("name", SCHEDULE_CHANGES)
    def test_is_changed_by_its_owner_and_by_keys_that_manage(
        self, callers: Callers, api: Api, path: str, name: str
    ) -> None:
        change = SCHEDULE_CHANGES[name]
        assert code(change(callers("submit", "read").client, path), 403) == "not-owner"
        seen = api.client.get(path).json()
        assert (seen["every"], seen["paused"], seen["owner"]) == (3600, False, "shop")
        assert change(callers("submit", owner="shop").client, path).is_success
        callers("submit", owner="shop").client.put(path, json={"every": 3600})
        assert change(callers("submit", "manage").client, path).is_success

    @pytest.mark.parametrize("name", ["change", "delete", "fire"])
    def test_of_another_owner_is_missing_to_a_key_that_cannot_read(
        self, callers: Callers, path: str, name: str
    ) -> None:
        blind, change = callers("submit").client, SCHEDULE_CHANGES[name]
        foreign, missing = change(blind, path), change(blind, f"{path}-2")
        assert code(foreign, 404) == code(missing, 404) == "schedule-not-found"

    def test_gives_its_owner_to_its_jobs(self, callers: Callers, api: Api, path: str) -> None:
        fired = callers("submit", "manage").client.post(f"{path}/fire").json()["id"]
        assert api.look(fired)["owner"] == "shop"
        assert callers("submit", owner="shop").post(f"/jobs/{fired}/cancel").status_code == 200
