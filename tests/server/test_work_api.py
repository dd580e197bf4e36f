"""Work over HTTP: claim, renew, complete, fail, release. Workers in other languages need no
more.
"""

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.serving import Api, RunningServer, code, problem
from tests.waiting import HANGS, eventually


class TestClaiming:
    def test_leases_a_job_with_token_payload_attempt_and_expiry(self, api: Api) -> None:
        api.submit({"path": "cat.png"}, id="cat", lane="ann", headers={"trace": "t"})
        answer = api.post("/claim", {"worker": "w1", "lease": 30})
        assert answer.status_code == 200
        [job] = answer.json()["jobs"]
        assert job["token"] > 0
        assert job["expires_at"].endswith("Z")
        assert {name: job[name] for name in ("id", "payload", "attempt", "lane", "headers")} == {
            "id": "cat", "payload": {"path": "cat.png"}, "attempt": 1, "lane": "ann",
            "headers": {"trace": "t"},
        }  # fmt: skip

    def test_answers_204_if_there_is_no_job(self, api: Api) -> None:
        answer = api.post("/claim", {"worker": "w1"})
        assert (answer.status_code, answer.content) == (204, b"")

    def test_takes_several_highest_priority_first(self, api: Api) -> None:
        for n, priority in enumerate([50, 100, 0, 100]):
            api.submit(n, priority=priority)
        assert [job["payload"] for job in api.claim(count=3)] == [1, 3, 0]

    def test_takes_the_next_job_of_a_lane(self, api: Api) -> None:
        api.submit(1, lane="ann")
        api.submit(2, lane="bob")
        assert [job["payload"] for job in api.claim(lane="bob")] == [2]

    def test_takes_jobs_of_some_selectors_up_to_the_workers_limit(self, api: Api) -> None:
        for n, selector in enumerate(["o/n|dev", "o/n|review", "o/m|dev", "o/n|dev"]):
            api.submit(n, selector=selector)
        wish = {"selectors": ["o/n|dev", "o/m|dev"], "max_held": 2, "count": 5}
        first = api.claim(**wish)
        assert [(job["payload"], job["selector"]) for job in first] == [
            (0, "o/n|dev"),
            (2, "o/m|dev"),
        ]
        assert api.claim(**wish) == []
        assert [job["payload"] for job in api.claim(worker="w2", **wish)] == [3]

    @pytest.mark.parametrize(
        "wrong",
        [
            {"selectors": [""]},
            {"selectors": "o/n|dev"},
            {"selectors": ["x" * 257]},
            {"selectors": ["x"] * 101},
            {"selectors": ["x"], "lane": "ann"},
            {"max_held": 0},
            {"worker": ""},
            {"worker": "a\nb"},
            {"worker": 7},
            {"count": 0},
            {"count": 101},
            {"wait": -1},
            {"wait": 61},
            {"lease": 0},
            {"lease": 10**6},
            {"lane": "ann", "wait": 1},
            {"colour": "red"},
        ],
        ids=str,
    )
    def test_refuses_invalid_parameters(self, api: Api, wrong: Any) -> None:
        problem(api.post("/claim", {"worker": "w1", **wrong}), 422)

    def test_gives_a_job_to_another_once_its_lease_has_ended(self, api: Api) -> None:
        api.submit(1, id="a")
        [first] = api.claim(lease=1)
        [second] = eventually_claimed(api)
        assert (second["id"], second["attempt"]) == ("a", 2)
        assert second["token"] > first["token"]


class TestWaitingForWork:
    def test_ends_after_the_requested_time(self, api: Api) -> None:
        assert api.claim(wait=0.2) == []

    def test_ends_when_a_job_is_submitted(self, running: RunningServer, api: Api) -> None:
        with in_background(lambda: api.claim(wait=50)) as claimed:
            eventually(lambda: running.asked_for(api.queue))
            api.submit(1, id="a")
            assert [job["id"] for job in claimed()] == ["a"]

    def test_for_a_selector_ends_with_such_a_job(self, running: RunningServer, api: Api) -> None:
        with in_background(lambda: api.claim(wait=50, selectors=["x"])) as claimed:
            eventually(lambda: running.asked_for(api.queue, "x"))
            api.submit(1, id="other", selector="y")
            api.submit(2, id="a", selector="x")
            assert [job["id"] for job in claimed()] == ["a"]

    def test_ends_when_a_job_falls_due(self, api: Api) -> None:
        api.submit(1, id="a", delay=0.3)
        assert [job["id"] for job in api.claim(wait=50)] == ["a"]

    def test_ends_when_a_lease_ends(self, api: Api) -> None:
        api.submit(1, id="a")
        api.claim(lease=1)
        assert [job["attempt"] for job in api.claim(wait=50)] == [2]

    def test_a_worker_that_left_gets_nothing(self, running: RunningServer, api: Api) -> None:
        """Its connection is gone: the job goes to another worker, at its first attempt."""
        with socket.create_connection(running.host_and_port) as line:
            body = b'{"worker": "gone", "wait": 50}'
            head = f"POST {api.root}/claim HTTP/1.1\r\nHost: x\r\nX-API-Key: {running.key}\r\n"
            kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            line.sendall((head + kind).encode() + body)
            eventually(lambda: running.asked_for(api.queue))
        with in_background(lambda: api.claim(worker="here", wait=50, lease=60)) as claimed:
            api.submit(1, id="a")
            [job] = claimed()
        assert (job["id"], job["attempt"]) == ("a", 1)
        assert api.look("a")["worker"] == "here"

    def test_a_worker_that_left_gets_nothing_of_a_selector(
        self, running: RunningServer, api: Api
    ) -> None:
        with socket.create_connection(running.host_and_port) as line:
            body = b'{"worker": "gone", "wait": 50, "selectors": ["x"], "max_held": 1}'
            head = f"POST {api.root}/claim HTTP/1.1\r\nHost: x\r\nX-API-Key: {running.key}\r\n"
            kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            line.sendall((head + kind).encode() + body)
            eventually(lambda: running.asked_for(api.queue, "x"))
        wish = {"worker": "here", "wait": 50, "lease": 60, "selectors": ["x"]}
        with in_background(lambda: api.claim(**wish)) as claimed:
            api.submit(1, id="a", selector="x")
            [job] = claimed()
        assert (job["id"], job["attempt"]) == ("a", 1)


class TestAnIdempotencyKeyOnAClaim:
    @pytest.mark.parametrize("wait", [0, 1])
    def test_gives_the_same_jobs_and_never_new_ones(self, api: Api, wait: int) -> None:
        for n in range(4):
            api.submit(n)
        wish = {"worker": "w1", "count": 2, "wait": wait}
        first, again = (api.post("/claim", wish, idempotency_key="k") for _ in "12")
        assert first.json() == again.json()
        assert api.get().json()["leased"] == 2

    def test_leaves_out_jobs_that_are_no_longer_leased(self, api: Api) -> None:
        api.submit(1)
        api.submit(2)
        first = api.post("/claim", {"worker": "w1", "count": 2}, idempotency_key="k").json()
        api.say("complete", first["jobs"][0])
        again = api.post("/claim", {"worker": "w1", "count": 2}, idempotency_key="k").json()
        assert [job["id"] for job in again["jobs"]] == [first["jobs"][1]["id"]]

    def test_another_key_is_another_claim(self, api: Api) -> None:
        api.submit(1)
        api.submit(2)
        one, two = (api.post("/claim", {"worker": "w1"}, idempotency_key=key) for key in "ab")
        assert one.json()["jobs"][0]["id"] != two.json()["jobs"][0]["id"]


class TestSettling:
    def test_renewing_holds_the_job_longer(self, api: Api) -> None:
        job = claimed_job(api)
        answer = api.say("renew", job, lease=600, progress={"done": 0.5})
        assert answer.status_code == 200
        assert answer.json()["expires_at"] > job["expires_at"]
        assert answer.json()["cancel_requested"] is False
        assert api.look(job["id"])["progress"] == {"done": 0.5}

    def test_completing_ends_it_with_a_result(self, api: Api) -> None:
        job = claimed_job(api)
        assert api.say("complete", job, result={"ok": True}).json()["state"] == "done"
        assert api.look(job["id"])["result"] == {"ok": True}

    def test_failing_schedules_another_attempt(self, api: Api) -> None:
        job = claimed_job(api)
        assert api.say("fail", job, reason="no disk", delay=3600).json()["state"] == "delayed"
        told = api.look(job["id"])
        assert told["reason"] == "no disk"
        assert [(failure["worker"], failure["reason"]) for failure in told["failures"]] == [
            ("w1", "no disk")
        ]

    @pytest.mark.parametrize("how", [{"delay": 3600}, {"dead": True}, {}])
    def test_failing_keeps_the_traceback_without_credentials(
        self, api: Api, how: dict[str, Any]
    ) -> None:
        job, text = claimed_job(api), "at send (mail.js:3)\nError: https://anna:{}@shop.example"
        api.say("fail", job, reason="no disk", traceback=text.format("canary"), **how)
        [failure] = api.look(job["id"])["failures"]
        assert failure["traceback"].startswith("at send (mail.js:3)")
        assert "canary" not in failure["traceback"]

    def test_failing_without_a_delay_follows_the_policy(self, api: Api) -> None:
        api.submit(1, id="a", max_attempts=2)
        states: list[str] = []
        for _ in range(2):
            [job] = eventually_claimed(api)
            states.append(api.say("fail", job, reason="no disk").json()["state"])
        assert states == ["delayed", "dead"]

    def test_failing_with_dead_ends_the_job_as_dead(self, api: Api) -> None:
        job = claimed_job(api)
        assert api.say("fail", job, reason="hopeless", dead=True).json()["state"] == "dead"

    def test_releasing_returns_the_job_without_counting_the_attempt(self, api: Api) -> None:
        job = claimed_job(api)
        assert api.say("release", job).json()["state"] == "ready"
        [again] = api.claim()
        assert again["attempt"] == 1
        assert api.say("release", again, delay=3600).json()["state"] == "delayed"

    @pytest.mark.parametrize("verb", ["renew", "complete", "fail", "release"])
    def test_a_stale_token_is_refused_and_names_the_holder(self, api: Api, verb: str) -> None:
        stale = claimed_job(api)
        api.say("release", stale)
        [current] = api.claim(worker="current")
        before = api.look(stale["id"])
        told = problem(api.say(verb, stale, **needed(verb)), 409)
        assert told["type"].endswith("/lease-lost")
        assert (told["holder"], told["state"]) == ("current", "leased")
        assert str(current["token"]) not in str(told)
        assert api.look(stale["id"]) == before

    @pytest.mark.parametrize("verb", ["renew", "complete", "fail", "release"])
    def test_an_unknown_job_is_not_found(self, api: Api, verb: str) -> None:
        nobody = {"id": "nobody", "token": 1}
        assert code(api.say(verb, nobody, **needed(verb)), 404) == "job-not-found"

    @pytest.mark.parametrize("verb", ["renew", "complete", "fail", "release"])
    def test_a_token_is_required(self, api: Api, verb: str) -> None:
        job = claimed_job(api)
        problem(api.post(f"/jobs/{job['id']}/{verb}", needed(verb)), 422)
        for wrong in (0, -1, 2**63, "x", None):
            problem(api.say(verb, {**job, "token": wrong}, **needed(verb)), 422)

    def test_at_most_one_completion_is_accepted(self, api: Api) -> None:
        """Under the same token it may be said again, by whoever lost the answer."""
        job = claimed_job(api)
        first, again = (api.say("complete", job, result=result) for result in (1, 2))
        assert first.json() == again.json() == {"id": "a", "state": "done"}
        assert api.look(job["id"])["result"] == 1
        assert code(api.say("complete", {**job, "token": 1}), 409) == "job-done"
        assert code(api.say("renew", job), 409) == "job-done"

    @pytest.mark.parametrize("verb", ["complete", "fail", "release"])
    def test_an_idempotency_key_makes_it_repeatable(self, api: Api, verb: str) -> None:
        job = claimed_job(api)
        path, body = f"/jobs/{job['id']}/{verb}", {"token": job["token"], **needed(verb)}
        first, again = (api.post(path, body, idempotency_key="k") for _ in "12")
        assert first.status_code == again.status_code == 200
        assert first.json() == again.json()

    def test_a_progress_note_and_a_result_are_limited(self, api: Api) -> None:
        job = claimed_job(api)
        assert code(api.say("renew", job, progress="x" * 70_000), 413) == "payload-too-large"
        assert code(api.say("complete", job, result="x" * 1_100_000), 413) == "payload-too-large"
        problem(api.say("fail", job, reason="x" * 4097), 422)
        assert api.say("complete", job).status_code == 200


# ── what these tests have in common ──────────────────────────────────────────────────────


def claimed_job(api: Api) -> Any:
    api.submit(1, id="a")
    [job] = api.claim()
    return job


def eventually_claimed(api: Api) -> list[Any]:
    found: list[Any] = []

    def claimed() -> bool:
        found.extend(api.claim(wait=50))
        return bool(found)

    eventually(claimed)
    return found


def needed(verb: str) -> dict[str, Any]:
    return {"reason": "no disk", "delay": 1} if verb == "fail" else {}


class in_background:  # noqa: N801 -- read as a verb
    """Runs a function in a thread; calling the result waits for the outcome."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._outcome: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._outcome.append(work()))

    def __enter__(self) -> Callable[[], Any]:
        self._thread.start()
        return self._result

    def _result(self) -> Any:
        self._thread.join(HANGS)
        [outcome] = self._outcome
        return outcome

    def __exit__(self, *_: object) -> None:
        self._thread.join(HANGS)
