"""Jobs over HTTP: submit, read, explain, list, cancel."""

from base64 import b64encode
from typing import Any
from urllib.parse import quote

import pytest

from tests.server.serving import Api, code, problem
from tests.waiting import eventually

PAYLOADS: list[Any] = [
    None, True, 0, -1.5, 10**40, "", "é\u0000😀", [], {}, {"a": [1, {"b": None}]}, [[[]]],
]  # fmt: skip


class TestSubmitting:
    def test_answers_202_with_id_state_and_location(self, api: Api) -> None:
        answer = api.post("/jobs", {"payload": {"path": "cat.png"}, "id": "cat"})
        assert answer.status_code == 202
        assert answer.json() == {"id": "cat", "state": "ready", "existed": False}
        assert answer.headers["location"] == f"{api.root}/jobs/cat"

    def test_creates_an_id_if_none_is_given(self, api: Api) -> None:
        answer = api.post("/jobs", {"payload": 1})
        there = api.client.get(answer.headers["location"])
        assert there.json()["id"] == answer.json()["id"]

    def test_the_same_id_twice_is_one_job(self, api: Api) -> None:
        api.submit("x", id="once")
        again = api.post("/jobs", {"payload": "x", "id": "once"})
        assert again.status_code == 202
        assert again.json() == {"id": "once", "state": "ready", "existed": True}
        assert api.get().json()["ready"] == 1

    def test_other_content_under_the_same_id_is_refused(self, api: Api) -> None:
        api.submit("x", id="once")
        assert code(api.post("/jobs", {"payload": "y", "id": "once"}), 409) == "job-differs"
        assert api.look("once")["payload"] == "x"

    @pytest.mark.parametrize("payload", PAYLOADS)
    def test_any_json_value_is_a_payload(self, api: Api, payload: Any) -> None:
        id = api.submit(payload)["id"]
        assert api.look(id)["payload"] == payload
        [job] = api.claim()
        assert job["payload"] == payload

    @pytest.mark.parametrize("data", [b"\xff\x00", b"[" * 500 + b"]" * 500, b'"\\ud800"', b"NaN"])
    def test_bytes_go_in_and_come_out_as_base64(self, api: Api, data: bytes) -> None:
        text = b64encode(data).decode()
        answer = api.post("/jobs", {"payload_base64": text})
        found = api.look(answer.json()["id"])
        assert (found["payload"], found["payload_base64"]) == (None, text)
        [job] = api.claim()
        assert (job["payload"], job["payload_base64"]) == (None, text)

    def test_options_are_kept(self, api: Api) -> None:
        options = {"priority": 90, "lane": "ann", "headers": {"trace": "t"}}
        api.submit(1, id="a", delay=3600, **options)
        found = api.look("a")
        assert found["state"] == "delayed"
        assert found["due_at"] > found["submitted_at"]
        assert options == {name: found[name] for name in options}

    def test_a_due_time_needs_its_time_zone(self, api: Api) -> None:
        late = {"payload": 1, "due": "2099-01-01T00:00:00Z"}
        assert api.post("/jobs", late).json()["state"] == "delayed"
        assert code(api.post("/jobs", late | {"due": "2099-01-01T00:00:00"}), 422)

    @pytest.mark.parametrize("id", ["a/b", "a/explain", "a b", "ü", "100%", "%2F", "a?b#c", "x:y"])
    def test_an_id_may_have_any_characters_that_people_type(self, api: Api, id: str) -> None:
        answer = api.post("/jobs", {"payload": 1, "id": id})
        place = answer.headers["location"]
        assert place == f"{api.root}/jobs/{quote(id, safe='')}"
        assert api.client.get(place).json()["id"] == id
        assert api.client.get(f"{place}/explain").json()["why"] == "no_worker"
        [job] = api.claim()
        assert api.say("complete", job).json() == {"id": id, "state": "done"}

    @pytest.mark.parametrize(
        "wrong",
        [
            {"priority": 101},
            {"priority": "high"},
            {"priority": True},
            {"max_attempts": True},
            {"delay": True},
            {"delay": "1"},
            {"keep": False},
            {"lease": True},
            {"due": True},
            {"due": 1},
            {"headers": {f"h{n}": "x" for n in range(65)}},
            {f"f{n}": 1 for n in range(65)},
            {"delay": -1},
            {"delay": 1, "due": "2099-01-01T00:00:00Z"},
            {"max_attempts": 0},
            {"retry": "soon"},
            {"retry": "fixed"},
            {"retry": {"type": "never"}},
            {"retry": "listed:1s,x"},
            {"id": ""},
            {"id": "a\nb"},
            {"id": "x" * 513},
            {"lane": "\x00"},
            {"lease": 0},
            {"headers": {"Bad Name": "x"}},
            {"headers": {"a": "x" * 5000}},
            {"payload_base64": "?"},
            {"payload_base64": "QQ=="},
            {"colour": "red"},
        ],
        ids=str,
    )
    def test_an_invalid_value_is_refused(self, api: Api, wrong: Any) -> None:
        problem(api.post("/jobs", {"payload": 1, **wrong}), 422)
        assert api.get().json()["ready"] == 0

    @pytest.mark.parametrize(
        ("retry", "attempts"),
        [
            ("fixed:30s", None),
            ("never", None),
            ("exponential:2s:1m", None),
            ("exponential:2s:1m:3:0.5", None),
            ("listed:1s,5s", 3),
        ],
    )
    def test_a_jobs_own_retry_policy_is_stored_and_shown(
        self, api: Api, retry: str, attempts: int | None
    ) -> None:
        """With one that names its waits, as many attempts as they take."""
        id = api.submit("x", retry=retry)["id"]
        found = api.client.get(f"/api/v1/queues/{api.queue}/jobs/{id}").json()
        [job] = api.claim()
        for shown in (found, job):
            assert (shown["retry"], shown["max_attempts"]) == (retry, attempts)

    def test_a_jobs_own_retry_policy_decides_about_its_next_attempt(self, api: Api) -> None:
        api.submit("x", retry="never")
        [job] = api.claim()
        assert api.say("fail", job, reason="no").json()["state"] == "dead"

    @pytest.mark.parametrize(
        ("body", "place"),
        [
            ({"payload": 1, "priority": True}, "body.job.priority"),
            ({"payload": 1, "retry": "often"}, "body.job.retry"),
            ({"payload": 1, "due": 7}, "body.job.due"),
            ([], "body.list"),
        ],
        ids=["job", "retry", "due", "list"],
    )
    def test_reports_the_errors_of_the_matching_variant_only(
        self, api: Api, body: Any, place: str
    ) -> None:
        told = problem(api.post("/jobs", body), 422)
        assert told["detail"].startswith(f"{place}: ")
        assert len(told["errors"]) == 1

    def test_a_name_that_is_too_long_is_refused_with_the_limit(self, api: Api) -> None:
        told = problem(api.client.get(f"/api/v1/queues/{'-' * 2_000}"), 422)
        assert told["detail"].startswith("path.queue: ")
        assert "64" in told["detail"]

    @pytest.mark.parametrize("queue", ["UPPER", "a b", "-x", "x" * 65, "a%2Fb", "ü", "%ff"])
    def test_an_invalid_queue_name_is_refused(self, api: Api, queue: str) -> None:
        answer = api.client.post(f"/api/v1/queues/{queue}/jobs", json={"payload": 1})
        problem(answer, 422)

    def test_a_payload_over_the_queues_limit_is_too_large(self, api: Api) -> None:
        assert code(api.post("/jobs", {"payload": "x" * 1_100_000}), 413) == "payload-too-large"


class TestSubmittingAList:
    def test_answers_for_each_job_in_order(self, api: Api) -> None:
        answer = api.post("/jobs", [{"payload": n, "id": f"j{n}"} for n in range(3)])
        assert answer.status_code == 202
        assert [job["id"] for job in answer.json()["jobs"]] == ["j0", "j1", "j2"]
        assert api.get().json()["ready"] == 3

    def test_a_refused_job_does_not_stop_the_others(self, api: Api) -> None:
        api.submit("old", id="there")
        jobs = [
            {"payload": 1, "id": "first"},
            {"payload": "new", "id": "there"},
            {"payload": 1, "id": "a\nb"},
            {"payload": "x" * 1_100_000, "id": "large"},
            {"payload": 1, "id": "last"},
        ]
        found = api.post("/jobs", jobs).json()["jobs"]
        assert [answer.get("error") or answer["state"] for answer in found] == [
            "ready", "job_differs", "invalid_name", "payload_too_large", "ready",
        ]  # fmt: skip
        assert all(answer["remedy"] for answer in found if "error" in answer)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"priority": 101},
            {"priority": True},
            {"colour": "red"},
            {"id": ""},
            {"due": "soon"},
            {"retry": "soon"},
        ],
        ids=str,
    )
    def test_an_invalid_job_does_not_stop_the_others(self, api: Api, wrong: Any) -> None:
        jobs = [{"payload": 1, "id": "first"}, {"payload": 1, **wrong}, {"payload": 2, "id": "b"}]
        answer = api.post("/jobs", jobs)
        assert answer.status_code == 202, answer.text
        first, refused, last = answer.json()["jobs"]
        assert (first["id"], last["id"]) == ("first", "b")
        assert refused["error"] == "invalid_input"
        assert next(iter(wrong)) in refused["detail"]
        assert refused["remedy"]
        assert api.get().json()["ready"] == 2

    @pytest.mark.parametrize("wrong", [1, [], None, "x"], ids=str)
    def test_a_value_that_is_no_job_does_not_stop_the_others(self, api: Api, wrong: Any) -> None:
        refused, taken = api.post("/jobs", [wrong, {"payload": 1}]).json()["jobs"]
        assert refused["error"] == "invalid_input"
        assert taken["state"] == "ready"

    def test_is_refused_if_the_list_is_empty_or_too_long(self, api: Api) -> None:
        problem(api.post("/jobs", []), 422)
        problem(api.post("/jobs", [{"payload": 1}] * 1001), 422)


class TestAnIdempotencyKeyOnASubmit:
    def test_gives_the_same_answer_and_adds_nothing(self, api: Api) -> None:
        first, again = (api.post("/jobs", {"payload": 1}, idempotency_key="k") for _ in "12")
        assert first.status_code == again.status_code == 202
        assert first.json() == again.json()
        assert first.headers["location"] == again.headers["location"]
        assert api.get().json()["ready"] == 1

    def test_works_for_a_list_of_jobs(self, api: Api) -> None:
        jobs = [{"payload": 1}, {"payload": 2, "id": "two"}, {"payload": 3, "id": "\n"}]
        first, again = (api.post("/jobs", jobs, idempotency_key="k") for _ in "12")
        assert first.json() == again.json()
        assert api.get().json()["ready"] == 2

    def test_gives_the_same_answer_after_the_job_has_changed(self, api: Api) -> None:
        first = api.post("/jobs", {"payload": 1}, idempotency_key="k")
        [job] = api.claim()
        api.say("complete", job)
        assert api.post("/jobs", {"payload": 1}, idempotency_key="k").json() == first.json()
        assert api.claim() == []

    def test_with_other_content_is_refused(self, api: Api) -> None:
        api.post("/jobs", {"payload": 1}, idempotency_key="k")
        again = api.post("/jobs", {"payload": 2}, idempotency_key="k")
        assert code(again, 409) == "job-differs"

    def test_may_have_255_characters(self, api: Api) -> None:
        assert api.post("/jobs", {"payload": 1}, idempotency_key="k" * 255).status_code == 202
        problem(api.post("/jobs", {"payload": 1}, idempotency_key="k" * 256), 422)

    def test_counts_for_one_api_key_only(self, running: Any, api: Api) -> None:
        api.post("/jobs", {"payload": 1}, idempotency_key="k")
        _, other = running.make_key("submit")
        running.api(api.queue, other).post("/jobs", {"payload": 1}, idempotency_key="k")
        assert api.get().json()["ready"] == 2


class TestLooking:
    def test_shows_the_job_in_each_of_its_states(self, api: Api) -> None:
        api.submit({"n": 1}, id="a")
        assert api.look("a")["state"] == "ready"
        [job] = api.claim(worker="ann")
        leased = api.look("a")
        assert (leased["state"], leased["worker"], leased["attempts"]) == ("leased", "ann", 1)
        assert leased["expires_at"] == job["expires_at"]
        api.say("complete", job, result=[1])
        done = api.look("a")
        assert (done["state"], done["result"], done["worker"]) == ("done", [1], None)

    def test_an_unknown_job_is_not_found(self, api: Api) -> None:
        assert code(api.get("/jobs/nobody"), 404) == "job-not-found"
        assert code(api.get("/jobs/nobody/explain"), 404) == "job-not-found"
        assert code(api.post("/jobs/nobody/cancel"), 404) == "job-not-found"

    def test_a_job_is_explained(self, api: Api) -> None:
        api.submit(1, id="a")
        told = api.get("/jobs/a/explain").json()
        assert told["why"] == "no_worker"
        assert told["ahead"] == 0
        api.post("/pause")
        assert api.get("/jobs/a/explain").json()["why"] == "paused"
        api.submit(1, id="b", delay=3600)
        assert api.get("/jobs/b/explain").json() == {
            "why": "not_due", "text": api.get("/jobs/b/explain").json()["text"],
            "ahead": None, "wait": None,
        }  # fmt: skip


class TestListing:
    def test_pages_by_cursor(self, api: Api) -> None:
        api.post("/jobs", [{"payload": n, "id": f"j{n}"} for n in range(7)])
        seen: list[str] = []
        after: dict[str, Any] = {}
        for _ in range(4):
            page = api.get("/jobs", state="ready", size=2, **after).json()
            seen += [job["id"] for job in page["jobs"]]
            after = {"after": page["after"]}
        assert seen == [f"j{n}" for n in range(7)]
        assert after == {"after": None}

    def test_leaves_payloads_out(self, api: Api) -> None:
        api.submit("secret", id="a")
        [job] = api.get("/jobs", state="ready").json()["jobs"]
        assert (job["id"], job["payload"]) == ("a", None)

    def test_can_be_filtered_by_state_and_lane(self, api: Api) -> None:
        for n in range(3):
            api.submit(n, id=f"j{n}", lane="ann")
        api.submit(9, id="other", lane="bob")
        waiting = api.get("/jobs", state="waiting", lane="ann").json()["jobs"]
        assert [job["id"] for job in waiting] == ["j1", "j2"]
        assert len(api.get("/jobs", state="ready").json()["jobs"]) == 2

    @pytest.mark.parametrize(
        "asked",
        [
            {},
            {"state": "asleep"},
            {"state": "gone"},
            {"state": "ready", "size": 0},
            {"state": "ready", "size": 1001},
            {"state": "ready", "after": "?"},
            {"state": "ready", "lane": "ann"},
        ],
        ids=str,
    )
    def test_refuses_invalid_filters(self, api: Api, asked: dict[str, Any]) -> None:
        problem(api.get("/jobs", **asked), 422)


CANCELLED = {"id": "a", "state": "cancelled", "cancel_requested": False}


class TestCancelling:
    def test_ends_a_waiting_job(self, api: Api) -> None:
        api.submit(1, id="a")
        assert api.post("/jobs/a/cancel").json() == CANCELLED
        assert api.claim() == []
        assert api.look("a")["state"] == "cancelled"

    def test_asks_the_worker_of_a_running_job_to_stop(self, api: Api) -> None:
        api.submit(1, id="a")
        [job] = api.claim()
        assert api.post("/jobs/a/cancel").json() == {
            "id": "a", "state": "leased", "cancel_requested": True,
        }  # fmt: skip
        assert api.say("renew", job).json()["cancel_requested"] is True

    def test_of_an_ended_job_is_refused(self, api: Api) -> None:
        api.submit(1, id="a")
        [job] = api.claim()
        api.say("complete", job)
        assert code(api.post("/jobs/a/cancel"), 409) == "job-done"

    def test_works_with_delete_for_older_clients(self, api: Api) -> None:
        api.submit(1, id="a")
        assert api.delete("/jobs/a").json() == CANCELLED


def test_a_delayed_job_runs_when_it_is_due(api: Api) -> None:
    api.submit(1, id="a", delay=0.2)
    assert api.claim() == []
    eventually(api.claim)
