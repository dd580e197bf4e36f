"""Open jobs over HTTP: moved to another time, and set."""

from typing import Any

import pytest

from tests.server.serving import Api, code


class TestMoving:
    def test_gives_a_waiting_job_another_due_time(self, api: Api) -> None:
        api.submit("x", id="a", delay=3600)
        answer = api.patch("/jobs/a", {"delay": 7200})
        assert (answer.status_code, answer.json()) == (200, {"id": "a", "state": "delayed"})
        assert api.claim() == []
        answer = api.patch("/jobs/a", {"due": "2020-01-01T00:00:00Z"})
        assert answer.json() == {"id": "a", "state": "ready"}
        [job] = api.claim()
        assert job["id"] == "a"

    def test_delays_a_ready_job(self, api: Api) -> None:
        api.submit("x", id="a")
        assert api.patch("/jobs/a", {"delay": 60}).json()["state"] == "delayed"
        assert api.claim() == []

    def test_is_refused_with_the_state_of_the_job(self, api: Api) -> None:
        assert code(api.patch("/jobs/nobody", {"delay": 1}), 404) == "job-not-found"
        api.submit("x", id="a")
        [job] = api.claim()
        refused = api.patch("/jobs/a", {"delay": 1})
        assert code(refused, 409) == "job-not-waiting"
        assert refused.json()["state"] == "leased"
        api.post("/jobs/a/complete", {"token": job["token"]})
        assert api.patch("/jobs/a", {"delay": 1}).json()["state"] == "done"

    @pytest.mark.parametrize(
        "body",
        [
            {}, {"delay": -1}, {"delay": "10m"}, {"delay": 1e10}, {"due": "tomorrow"}, {"due": 5},
            {"due": "2030-01-01T00:00:00"}, {"delay": 1, "due": "2030-01-01T00:00:00Z"},
            {"delay": 1, "state": "ready"}, {"due": "9999-01-01T00:00:00Z"}, [], None,
        ],
    )  # fmt: skip
    def test_refuses_an_invalid_time(self, api: Api, body: Any) -> None:
        api.submit("x", id="a")
        assert api.patch("/jobs/a", body).status_code == 422


class TestSetting:
    def test_creates_a_job_or_replaces_it(self, api: Api) -> None:
        first = api.put("/jobs/a", {"payload": 1, "delay": 3600})
        assert first.status_code == 201
        assert first.json() == {"id": "a", "state": "delayed", "replaced": False}
        assert first.headers["location"] == f"{api.root}/jobs/a"
        second = api.put("/jobs/a", {"payload": 2, "priority": 90, "id": "a"})
        assert second.status_code == 200
        assert second.json() == {"id": "a", "state": "ready", "replaced": True}
        found = api.look("a")
        assert (found["payload"], found["priority"], found["due_at"]) == (2, 90, None)

    def test_creates_a_cancelled_job_again(self, api: Api) -> None:
        api.submit("x", id="a")
        api.post("/jobs/a/cancel")
        assert api.submit("x", id="a")["existed"]
        assert api.put("/jobs/a", {"payload": "x"}).status_code == 201
        [job] = api.claim()
        assert job["id"] == "a"
        refused = api.put("/jobs/a", {"payload": "y"})
        assert (code(refused, 409), refused.json()["state"]) == ("job-not-waiting", "leased")

    def test_under_an_idempotency_key_has_one_effect(self, api: Api) -> None:
        answers = [api.put("/jobs/a", {"payload": 1}, Idempotency_Key="k-1") for _ in range(2)]
        assert [(answer.status_code, answer.json()["replaced"]) for answer in answers] == [
            (201, False)
        ] * 2

    def test_refuses_another_id_and_invalid_fields(self, api: Api) -> None:
        assert api.put("/jobs/a", {"payload": 1, "id": "b"}).status_code == 422
        assert api.put("/jobs/a", {"payload": 1, "priority": 101}).status_code == 422
        assert api.put("/jobs/a", [{"payload": 1}]).status_code == 422
