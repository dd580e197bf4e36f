"""Schedules over HTTP: made, read, changed, fired and removed; fired by the server itself."""

from datetime import datetime
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.server.serving import RunningServer, code, problem
from tests.waiting import eventually
from towpath.embedded.process import ask

ROOT = "/api/v1/schedules"


class SchedulesApi:
    """The paths of one queue's schedules."""

    def __init__(self, client: httpx.Client, queue: str) -> None:
        self.client, self.queue = client, queue

    def path(self, name: str) -> str:
        return f"{ROOT}/{self.queue}/{quote(name, safe='')}"

    def put(self, name: str, **body: Any) -> httpx.Response:
        return self.client.put(self.path(name), json=body)

    def get(self, name: str) -> Any:
        answer = self.client.get(self.path(name))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def patch(self, name: str, **body: Any) -> httpx.Response:
        return self.client.patch(self.path(name), json=body)

    def delete(self, name: str) -> httpx.Response:
        return self.client.delete(self.path(name))

    def fire(self, name: str, **headers: str) -> httpx.Response:
        named = {header.replace("_", "-"): value for header, value in headers.items()}
        return self.client.post(f"{self.path(name)}/fire", headers=named)

    def ready(self) -> int:
        return self.client.get(f"/api/v1/queues/{self.queue}").json()["ready"]


@pytest.fixture
def schedules(running: RunningServer, queue: str) -> SchedulesApi:
    return SchedulesApi(running.client(), queue)


def declare(running: RunningServer, queue: str, name: str) -> None:
    """Declares a schedule as a worker does for its app."""
    ask(running.store, "HSET", f"{{{queue}}}:recurring", name, "1794787200000 0 3 * * * UTC")


class TestASchedule:
    def test_is_created_read_replaced_and_deleted(self, schedules: SchedulesApi) -> None:
        made = schedules.put(
            "nightly", cron="0 3 * * *", tz="Europe/Berlin", payload={"kind": "full"}, priority=9,
            lane="ann", retry="fixed:5s", headers={"handler": "rerun"}, keep=60, missed="skip",
        )  # fmt: skip
        assert made.status_code == 201, made.text
        found = schedules.get("nightly")
        assert found == made.json()
        wanted = {
            "queue": schedules.queue, "name": "nightly", "source": "stored", "paused": False,
            "cron": "0 3 * * *", "tz": "Europe/Berlin", "missed": "skip", "priority": 9,
            "lane": "ann", "retry": "fixed:5s", "headers": {"handler": "rerun"}, "keep": 60.0,
            "payload": {"kind": "full"}, "last": None, "readable": True,
            "schedule": "0 3 * * * Europe/Berlin",
        }  # fmt: skip
        assert {name: found[name] for name in wanted} == wanted
        assert datetime.fromisoformat(found["next"]).minute == 0
        again = schedules.put("nightly", every="90m")
        assert (again.status_code, again.json()["every"]) == (200, 5400.0)
        assert again.json()["priority"] == 50
        assert schedules.delete("nightly").status_code == 204
        assert code(schedules.delete("nightly"), 404) == "schedule-not-found"

    def test_may_have_a_name_that_looks_like_a_path(self, schedules: SchedulesApi) -> None:
        name = "a/fire %日本"
        assert schedules.put(name, every=3600).status_code == 201
        assert schedules.get(name)["name"] == name

    def test_is_changed_in_part(self, schedules: SchedulesApi) -> None:
        schedules.put("x", every=3600, payload=1, priority=9, lane="ann")
        changed = schedules.patch("x", payload=2, lane=None).json()
        assert (changed["payload"], changed["lane"], changed["priority"]) == (2, None, 9)
        assert changed["every"] == 3600
        changed = schedules.patch("x", cron="0 3 * * *", priority=50).json()
        assert (changed["cron"], changed["tz"], changed["every"]) == ("0 3 * * *", "UTC", None)
        assert (changed["priority"], changed["payload"]) == (50, 2)

    def test_may_keep_its_jobs_for_no_time(self, schedules: SchedulesApi) -> None:
        made = schedules.put("now", every=60, keep=0)
        assert (made.status_code, made.json()["keep"]) == (201, 0.0)
        assert schedules.put("later", every=60, keep=5).status_code == 201
        changed = schedules.patch("later", keep=0)
        assert (changed.status_code, changed.json()["keep"]) == (200, 0.0)
        assert schedules.get("now")["keep"] == 0.0

    def test_is_paused_and_resumed(self, schedules: SchedulesApi) -> None:
        schedules.put("x", every=3600)
        paused = schedules.patch("x", paused=True).json()
        assert (paused["paused"], paused["next"]) == (True, None)
        resumed = schedules.patch("x", paused=False).json()
        assert (resumed["paused"], resumed["last"]) == (False, None)
        assert resumed["next"]

    def test_is_fired_once_per_idempotency_key(self, schedules: SchedulesApi) -> None:
        schedules.put("x", every=3600, payload=1)
        before = schedules.get("x")
        fired = [schedules.fire("x", idempotency_key="k") for _ in range(2)]
        assert [answer.status_code for answer in fired] == [202, 202]
        assert fired[0].json()["id"] == fired[1].json()["id"]
        assert schedules.ready() == 1
        schedules.fire("x")
        assert schedules.ready() == 2
        assert schedules.get("x") == before


class TestTheServer:
    def test_fires_the_schedules_of_a_queue_without_workers(self, schedules: SchedulesApi) -> None:
        schedules.put("tick", every=1, payload="now")
        eventually(lambda: schedules.ready() >= 2)
        job = schedules.client.post(
            f"/api/v1/queues/{schedules.queue}/claim", json={"worker": "w"}
        ).json()["jobs"][0]
        assert job["payload"] == "now"
        assert job["id"] == f"tick@{job['headers']['scheduled']}"
        schedules.patch("tick", paused=True)
        assert schedules.get("tick")["last"]
        metric = f'towpath_schedules_fired_total{{queue="{schedules.queue}"}} '
        [line] = [
            shown
            for shown in schedules.client.get("/metrics").text.splitlines()
            if shown.startswith(metric)
        ]
        assert float(line.removeprefix(metric)) >= 2
        schedules.delete("tick")


class TestListing:
    def test_is_paged_and_filtered(self, running: RunningServer, schedules: SchedulesApi) -> None:
        for name in "cab":
            schedules.put(name, every=3600)
        declare(running, schedules.queue, "declared")
        params: dict[str, Any] = {"queue": schedules.queue, "size": 3}
        first = schedules.client.get(ROOT, params=params).json()
        rest = schedules.client.get(ROOT, params={**params, "after": first["after"]}).json()
        found = [
            (schedule["name"], schedule["source"])
            for schedule in first["schedules"] + rest["schedules"]
        ]
        assert found == [("a", "stored"), ("b", "stored"), ("c", "stored"), ("declared", "code")]
        assert rest["after"] is None
        assert all(schedule["payload"] is None for schedule in first["schedules"])

    def test_shows_only_what_the_key_covers(
        self, running: RunningServer, schedules: SchedulesApi
    ) -> None:
        schedules.put("x", every=3600)
        _, secret = running.make_key("read", queues=("elsewhere-*",))
        client = running.client(secret)
        listed = client.get(ROOT).json()["schedules"]
        assert [schedule for schedule in listed if schedule["queue"] == schedules.queue] == []
        assert code(client.get(ROOT, params={"queue": schedules.queue}), 403) == "queue-forbidden"


class TestADeclaredSchedule:
    def test_is_not_changed_over_http(
        self, running: RunningServer, schedules: SchedulesApi
    ) -> None:
        schedules.put("x", every=3600)  # so that the queue exists
        declare(running, schedules.queue, "nightly")
        found = schedules.get("nightly")
        assert (found["source"], found["cron"]) == ("code", "0 3 * * *")
        for answer in (
            schedules.put("nightly", every=3600),
            schedules.patch("nightly", paused=True),
            schedules.delete("nightly"),
            schedules.fire("nightly"),
        ):
            told = problem(answer, 409)
            assert told["type"].endswith("schedule-declared")
            assert "--declared" in told["remedy"]


class TestScopes:
    def test_are_read_for_reading_and_submit_for_changing(
        self, running: RunningServer, schedules: SchedulesApi
    ) -> None:
        schedules.put("x", every=3600)
        _, secret = running.make_key("read")
        reader = SchedulesApi(running.client(secret), schedules.queue)
        assert reader.get("x")["name"] == "x"
        for answer in (
            reader.put("y", every=3600),
            reader.patch("x", paused=True),
            reader.delete("x"),
            reader.fire("x"),
        ):
            assert code(answer, 403) == "scope-missing"

    def test_hold_only_for_the_queues_of_the_key(
        self, running: RunningServer, schedules: SchedulesApi
    ) -> None:
        _, secret = running.make_key("read", "submit", queues=("elsewhere-*",))
        other = SchedulesApi(running.client(secret), schedules.queue)
        for answer in (other.put("x", every=3600), other.delete("x"), other.fire("x")):
            assert code(answer, 403) == "queue-forbidden"


class TestPreview:
    def test_shows_the_next_firings_and_the_clock_changes(self, schedules: SchedulesApi) -> None:
        body = {"cron": "30 2 * * *", "tz": "Europe/Berlin", "after": "2026-03-28T00:00:00Z"}
        told = schedules.client.post(f"{ROOT}/preview", json={**body, "count": 3}).json()
        assert told["firings"] == [
            "2026-03-28T02:30:00+01:00",
            "2026-03-29T03:00:00+02:00",
            "2026-03-30T02:30:00+02:00",
        ]
        assert [(change["at"], change["effect"]) for change in told["clock_changes"][:2]] == [
            ("2026-03-29T01:00:00Z", "moved"),
            ("2026-10-25T01:00:00Z", "once"),
        ]

    def test_of_a_schedule_that_follows_the_wall_clock_shows_its_changes(
        self, schedules: SchedulesApi
    ) -> None:
        body = {"cron": "*/30 * * * *", "tz": "Europe/Berlin", "after": "2026-03-28T00:00:00Z"}
        told = schedules.client.post(f"{ROOT}/preview", json=body).json()
        assert [change["effect"] for change in told["clock_changes"][:2]] == ["skipped", "doubled"]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "neither": ({}, "cron = None"),
    "both": ({"cron": "0 3 * * *", "every": 60}, "cron = '0 3 * * *'"),
    "never": ({"cron": "0 0 30 2 *"}, "cron = '0 0 30 2 *'"),
    "garbled": ({"cron": "often"}, "cron = 'often'"),
    "zone": ({"cron": "0 3 * * *", "tz": "Mars/Crater"}, "tz = 'Mars/Crater'"),
    "empty zone": ({"cron": "0 3 * * *", "tz": ""}, "tz = ''"),
    "zone of an interval": ({"every": 60, "tz": "UTC"}, "tz = 'UTC'"),
    "nought": ({"every": 0}, "every = 0 s"),
    "negative": ({"every": -5}, "every"),
    "too often": ({"every": "1ms"}, "every = 0.001 s"),
    "absurd": ({"every": 3155760001}, "every"),
    "no duration": ({"every": "soon"}, "every"),
    "truth": ({"every": True}, "every"),
    "missed": ({"every": 60, "missed": "never"}, "missed"),
    "id": ({"every": 60, "id": "x"}, "id"),
    "delay": ({"every": 60, "delay": 5}, "delay"),
    "priority": ({"every": 60, "priority": 101}, "priority"),
    "two payloads": ({"every": 60, "payload": 1, "payload_base64": "MQ=="}, "payload_base64"),
    "unknown": ({"every": 60, "moon": "full"}, "moon"),
}


class TestBadInput:
    @pytest.mark.parametrize("which", BAD)
    def test_of_a_schedule_is_refused(self, schedules: SchedulesApi, which: str) -> None:
        body, named = BAD[which]
        assert named in problem(schedules.put("x", **body), 422)["detail"]
        assert code(schedules.client.get(schedules.path("x")), 404) == "schedule-not-found"

    def test_of_a_payload_that_is_no_json_is_refused(self, schedules: SchedulesApi) -> None:
        text = '{"every": 60, "payload": nope}'
        headers = {"content-type": "application/json"}
        answer = schedules.client.put(schedules.path("x"), content=text, headers=headers)
        assert answer.status_code == 400

    def test_of_a_payload_that_is_too_large_is_refused(self, schedules: SchedulesApi) -> None:
        answer = schedules.put("x", every=60, payload="x" * 2_000_000)
        assert code(answer, 413) == "payload-too-large"
        assert schedules.client.get(schedules.path("x")).status_code == 404

    @pytest.mark.parametrize("name", ["%00", "a" * 257])
    def test_of_a_name_is_refused(self, schedules: SchedulesApi, name: str) -> None:
        answer = schedules.client.put(f"{ROOT}/{schedules.queue}/{name}", json={"every": 60})
        assert answer.status_code == 422

    def test_of_an_unknown_schedule_is_not_found(self, schedules: SchedulesApi) -> None:
        for answer in (schedules.patch("x", paused=True), schedules.fire("x")):
            assert code(answer, 404) == "schedule-not-found"
