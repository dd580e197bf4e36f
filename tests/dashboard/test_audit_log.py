"""The audit log: every change of the dashboard and of the API, by whom, and what was changed."""

import json
import sqlite3
import time
from contextlib import closing
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.dashboard.sessions import SessionClient, log_in
from tests.server.serving import Api, RunningServer, up
from tests.waiting import eventually


def entries(admin: SessionClient, text: str, **filters: Any) -> list[dict[str, Any]]:
    """The answered actions whose path contains *text*, newest first."""

    def found() -> list[dict[str, Any]]:
        answer = admin.get("/api/v1/audit", size=1000, **filters)
        assert answer.status_code == 200, answer.text
        return [action for action in answer.json()["actions"] if text in action["path"]]

    # The status is written after the answer was sent.
    eventually(lambda: all(action["status"] for action in found()))
    return found()


def code(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return answer.json()["type"].rpartition("/")[2]


class TestEntries:
    def test_a_change_cannot_hide_behind_a_content_type(
        self, running: RunningServer, admin: SessionClient, api: Api
    ) -> None:
        headers = {"X-Towpath-CSRF": admin.csrf, "Content-Type": "application/octet-stream"}
        assert admin.client.post(f"{api.root}/pause", headers=headers).status_code == 204
        [entry] = entries(admin, f"{api.queue}/pause")
        assert entry["via"] == "dashboard"

    def test_a_change_with_a_key_has_who_what_and_the_answer(
        self, running: RunningServer, admin: SessionClient, api: Api
    ) -> None:
        id, secret = running.make_key("admin")
        running.api(api.queue, secret).post("/pause")
        [entry] = entries(admin, f"{api.queue}/pause")
        assert entry["via"] == "api"
        assert (entry["key_id"], entry["owner"]) == (id, id)
        assert (entry["method"], entry["status"], entry["refused"]) == ("POST", 204, False)
        assert entry["target"] == {"queue": api.queue}
        assert entry["action"] == "pause"

    def test_what_was_changed_is_in_the_entry(self, admin: SessionClient, api: Api) -> None:
        api.submit(id="a/b", delay=600)
        api.patch("/jobs/a%2Fb", {"delay": 700})
        api.put("/jobs/other", {"payload": "hidden", "priority": 7, "lane": "ann"})
        api.post("/purge", {"states": ["dead"], "count_only": True})
        purged, placed, moved = entries(admin, api.queue)
        assert moved["target"] == {"queue": api.queue, "id": "a/b"}
        assert moved["changed"] == {"delay": 700}
        assert placed["changed"] == {"priority": 7, "lane": "ann", "replaced": False}
        assert purged["changed"] == {"states": ["dead"], "count_only": True, "jobs": 0}

    def test_a_new_key_is_named_by_the_id_in_the_answer(self, admin: SessionClient) -> None:
        wish = {"name": "build", "scopes": ["read"], "queues": ["x-*"], "owner": "team"}
        made = admin.send("POST", "/api/v1/keys", json=wish).json()
        entry = entries(admin, "/api/v1/keys")[0]
        assert entry["changed"] == {**wish, "id": made["id"]}
        assert made["secret"] not in json.dumps(entry)

    def test_a_change_by_a_tool_is_a_change_of_its_path(
        self, running: RunningServer, admin: SessionClient
    ) -> None:
        """What the data path does is in its own rows; an operator's verb is in the log, whatever
        way it came: here with the override of a tus client."""
        headers = {"Tus-Resumable": "1.0.0"}
        client = running.client()
        made = client.post("/files", headers=headers | {"Upload-Length": "3"})
        place = made.headers["location"].removeprefix(running.address)
        client.post(place, headers=headers | {"X-HTTP-Method-Override": "DELETE"})
        [entry] = entries(admin, place)
        assert entry["action"] == "terminate"
        assert entry["status"] == 204

    def test_a_tool_that_a_login_calls_over_mcp_is_in_it_and_one_of_a_key_is_not(
        self, running: RunningServer, admin: SessionClient
    ) -> None:
        """Tasks are the data path of agents; what a person does there is written down."""
        by_login, by_key = f"login-{uuid4().hex}", f"key-{uuid4().hex}"

        def message(agent: str) -> dict[str, Any]:
            arguments = {
                "agent_id": agent,
                "roles": ["nobody-needs-it"],
            }  # other tests leave issues
            wish = {"name": "request_task", "arguments": arguments}
            return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": wish}

        accept = {"Accept": "application/json, text/event-stream"}
        headers = accept | {"X-Towpath-CSRF": admin.csrf}
        called = admin.client.post("/mcp", json=message(by_login), headers=headers)
        assert called.status_code == 200, called.text
        called = running.client().post("/mcp", json=message(by_key), headers=accept)
        assert called.status_code == 200, called.text
        found = [
            entry
            for entry in entries(admin, "/request-task")
            if entry["changed"].get("agent_id") in (by_login, by_key)
        ]
        [entry] = found
        assert (entry["action"], entry["via"]) == ("request_task", "dashboard")
        assert entry["changed"]["agent_id"] == by_login
        assert entry["status"] == 204

    def test_a_change_whose_entry_cannot_be_written_is_not_made(
        self, running: RunningServer, admin: SessionClient, api: Api
    ) -> None:
        api.submit(id="a")
        other = sqlite3.connect(running.database.removeprefix("sqlite:///"), isolation_level=None)
        with closing(other):
            other.execute("BEGIN IMMEDIATE")  # no other process can write
            assert api.post("/pause").status_code == 503
            assert admin.send("POST", f"{api.root}/pause").status_code == 503
            assert api.submit(id="b")["existed"] is False  # the data path needs no entry
            other.execute("ROLLBACK")
        assert api.get().json()["paused"] is False
        assert entries(admin, api.queue) == []

    def test_the_data_path_writes_no_entries(self, admin: SessionClient, api: Api) -> None:
        api.bury("a")
        api.submit(id="b")
        [job] = api.claim()
        api.say("renew", job)
        api.say("complete", job)
        assert entries(admin, api.queue) == []

    def test_every_change_in_the_dashboard_has_an_entry(
        self, admin: SessionClient, api: Api
    ) -> None:
        admin.send("POST", f"{api.root}/jobs", json={"payload": "hidden", "id": "a"})
        [entry] = entries(admin, api.queue)
        assert (entry["action"], entry["changed"]) == ("submit", {"id": "a"})


class TestRefusals:
    def test_are_kept_apart_and_push_out_no_changes(
        self, running: RunningServer, admin: SessionClient, api: Api
    ) -> None:
        """One key's refusals can't push out anything but older refusals of the same key."""
        id, secret = running.make_key("admin")
        theirs = running.api(api.queue, secret)
        theirs.post("/pause")
        for number in range(250):
            assert theirs.delete(f"/dead/gone-{number}").status_code == 404
        mine = entries(admin, api.queue, key=id)
        refused = [entry for entry in mine if entry["refused"]]
        assert len(refused) <= 200
        assert refused[0]["target"]["id"] == "gone-249"
        assert [entry["action"] for entry in mine if not entry["refused"]] == ["pause"]

    def test_a_missing_scope_is_written_at_most_once_a_second_for_each_key(
        self, running: RunningServer, admin: SessionClient, api: Api
    ) -> None:
        id, secret = running.make_key("read")
        theirs = running.api(api.queue, secret)
        began = time.monotonic()
        for _ in range(20):
            assert code(theirs.post("/pause"), 403) == "scope-missing"
        written = entries(admin, api.queue, key=id)
        assert 1 <= len(written) <= time.monotonic() - began + 1
        assert {(entry["status"], entry["refused"]) for entry in written} == {(403, True)}

    def test_a_request_without_a_key_writes_nothing(
        self, running: RunningServer, admin: SessionClient, api: Api
    ) -> None:
        running.client(key="").post(f"{api.root}/pause")
        running.client(key="tp_nobody").post(f"{api.root}/pause")
        assert entries(admin, api.queue) == []


CANARY = "canary-7d1f"


class TestSecrets:
    def test_never_get_into_the_log(self, running: RunningServer, admin: SessionClient) -> None:
        client, queue = running.client(), "audit-secrets"
        root = f"/api/v1/queues/{queue}"
        _, secret = running.make_key("read")
        login = f"https://user:{CANARY}@example.com/x?token={CANARY}"
        client.put(f"{root}/jobs/a", json={"payload": CANARY, "headers": {"h": CANARY}})
        client.put(f"/api/v1/schedules/{queue}/s", json={"every": 60, "payload": CANARY})
        client.post(f"{root}/pause", params={"key": CANARY, "token": secret})
        client.post(f"{root}/dead/retry", json={"text": login})
        client.put(f"{root}/jobs/{secret}", json={"payload": 1, "lane": secret})
        client.post(f"{root}/lanes/https:%2F%2Fuser:{CANARY}@example.com/drop")
        wish = {"address": login, "task_types": ["t"]}
        client.post("/api/v1/apps/audited/instances", json=wish)
        client.post("/api/v1/keys", json={"name": login, "scopes": ["read"]})
        admin.send("POST", f"{root}/jobs", json={"payload": CANARY})
        eventually(lambda: len(admin.get("/api/v1/audit").json()["actions"]) >= 9)
        told = admin.get("/api/v1/audit", size=1000).text
        assert "example.com" in told
        assert CANARY not in told
        assert secret.split("_", 2)[2] not in told
        assert CANARY not in admin.look("/ui/audit")
        assert CANARY not in running.log.read_text()

    def test_an_entry_is_bounded(self, running: RunningServer, admin: SessionClient) -> None:
        ids = [f"{number:03}" + "x" * 500 for number in range(40)]
        answer = running.client().post("/api/v1/queues/audit-long/dead/retry", json={"ids": ids})
        assert answer.status_code == 200
        [entry] = entries(admin, "audit-long")
        assert len(json.dumps(entry)) < 5000


class TestReading:
    def test_can_be_filtered_by_key_and_time(
        self, running: RunningServer, admin: SessionClient, api: Api
    ) -> None:
        id, secret = running.make_key("admin")
        running.api(api.queue, secret).post("/pause")
        api.post("/resume")
        [theirs] = entries(admin, "", key=id)
        assert theirs["action"] == "pause"
        at = theirs["at"]
        assert [entry["action"] for entry in entries(admin, api.queue, since=at)] == [
            "resume",
            "pause",
        ]
        assert entries(admin, api.queue, until=at) == []
        assert admin.get("/api/v1/audit", since="yesterday").status_code == 422

    def test_the_page_shows_who_what_and_through_what(
        self, running: RunningServer, admin: SessionClient, api: Api
    ) -> None:
        id, secret = running.make_key("admin")
        running.api(api.queue, secret).patch("/jobs/a", {"delay": 71.5})
        entries(admin, api.queue)
        page = admin.look("/ui/audit", key=id)
        assert id in page
        assert api.queue in page
        assert "<b>move</b>" in page
        assert "delay <bdi>71.5</bdi>" in page


@pytest.mark.slow
def test_ten_thousand_refusals_displace_no_change(tmp_path_factory: pytest.TempPathFactory) -> None:
    with up(tmp_path_factory.mktemp("audit")) as running:
        admin = log_in(running, running.key)
        api = running.api("kept")
        api.post("/pause")
        _, secret = running.make_key("read")
        theirs = running.api("kept", secret)
        for _ in range(10_400):
            theirs.post("/pause")
        assert [entry["action"] for entry in entries(admin, "kept") if not entry["refused"]] == [
            "pause"
        ]
