"""Queues over HTTP: counts, pause and resume, dead jobs."""

from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest

from tests.server.serving import Api, RunningServer, code, problem
from towpath.embedded.process import ask
from towpath.engine.keys import keys_of
from towpath.ids import QueueName


class TestCounts:
    def test_have_the_number_of_jobs_in_each_state(self, api: Api) -> None:
        api.submit(1)
        api.submit(2)
        api.submit(3, delay=3600)
        api.submit(4, lane="ann")
        api.submit(5, lane="ann")
        api.claim()
        found = api.get().json()
        wanted = {"ready": 2, "delayed": 1, "waiting": 1, "leased": 1, "dead": 0, "lanes": 1}
        assert {name: found[name] for name in wanted} == wanted
        assert found["queue"] == api.queue
        assert found["totals"]["submitted"] == 5
        assert found["oldest"] >= 0

    def test_of_an_unused_queue_are_zero(self, api: Api) -> None:
        found = api.get().json()
        assert (found["ready"], found["oldest"], found["paused"]) == (0, None, False)

    def test_are_listed_for_every_queue(self, api: Api) -> None:
        api.submit(1)
        listed = api.client.get("/api/v1/queues").json()["queues"]
        assert [counts["ready"] for counts in listed if counts["queue"] == api.queue] == [1]
        assert listed == sorted(listed, key=lambda counts: counts["queue"])

    def test_of_other_queues_are_listed_beside_one_that_cannot_be_read(
        self, running: RunningServer, api: Api, queue: str
    ) -> None:
        bad = running.api(f"{queue}-spoilt")
        for one in (api, bad):
            one.submit(1)
        key = keys_of(QueueName(bad.queue)).queue
        ask(running.store, "RENAME", key, f"{key}-hidden")
        ask(running.store, "SET", key, "not a sorted set")
        try:
            listed = api.client.get("/api/v1/queues").json()
            page = api.client.get("/")
            alone = bad.get()
        finally:
            ask(running.store, "RENAME", f"{key}-hidden", key)
        assert api.queue in {counts["queue"] for counts in listed["queues"]}
        assert listed["unreadable"] == [bad.queue]
        assert page.status_code == 200
        problem(alone, 503)
        assert bad.get().json()["ready"] == 1

    def test_do_not_have_the_queue_of_the_readiness_check(self, api: Api) -> None:
        assert api.client.get("/readyz").status_code == 200
        names = [counts["queue"] for counts in api.client.get("/api/v1/queues").json()["queues"]]
        assert not [name for name in names if name.startswith("towpath")]


class TestHistory:
    def test_shows_the_queue_over_time(self, api: Api) -> None:
        for n in range(3):
            api.submit(n)
        found = api.get("/history").json()
        assert (found["step"], len(found["ready"]), sum(found["submitted"])) == (60, 60, 3)
        assert found["ready"][-1] == 3
        month = api.get("/history", last="month").json()
        assert (month["step"], len(month["dead"]), sum(month["submitted"])) == (3600, 720, 3)

    def test_of_an_unknown_period_is_refused(self, api: Api) -> None:
        problem(api.get("/history", last="year"), 422)


class TestPausing:
    def test_prevents_claims_until_the_queue_is_resumed(self, api: Api) -> None:
        api.submit(1)
        assert api.post("/pause").status_code == 204
        assert api.get().json()["paused"] is True
        assert api.claim() == []
        assert api.post("/resume").status_code == 204
        assert len(api.claim()) == 1

    def test_twice_has_the_same_effect(self, api: Api) -> None:
        assert [api.post("/pause").status_code for _ in "12"] == [204, 204]
        assert [api.post("/resume").status_code for _ in "12"] == [204, 204]


class TestDeadJobs:
    def test_are_listed_with_their_reasons_page_by_page(self, api: Api) -> None:
        for n in range(3):
            api.bury(f"j{n}", reason=f"reason {n}")
        first = api.get("/dead", size=2).json()
        rest = api.get("/dead", size=2, after=first["after"]).json()
        found = [(job["id"], job["reason"]) for job in first["jobs"] + rest["jobs"]]
        assert found == [(f"j{n}", f"reason {n}") for n in range(3)]
        assert rest["after"] is None

    def test_get_new_attempts_by_a_retry(self, api: Api) -> None:
        api.bury("a/b")
        assert api.post("/dead/a%2Fb/retry").json() == {"id": "a/b", "state": "ready"}
        [job] = api.claim()
        assert (job["id"], job["attempt"]) == ("a/b", 1)

    def test_are_searched_by_their_reasons(self, api: Api) -> None:
        for id, reason in (("a", "no disk"), ("b", "timeout"), ("c", "DISK is full")):
            api.submit(1, id=id)
            [job] = api.claim()
            api.say("fail", job, reason=reason, dead=True)
        found = api.get("/dead/search", text="disk").json()
        assert ([dead["id"] for dead in found["jobs"]], found["looked"]) == (["c", "a"], 3)
        rest = api.get("/dead/search", text="disk", looked=3).json()
        assert rest == {"jobs": [], "looked": 3, "is_over": True}
        problem(api.get("/dead/search", text=""), 422)

    def test_are_counted_by_error_and_a_group_is_listed_retried_and_deleted(self, api: Api) -> None:
        for n in range(3):
            api.bury(f"late-{n}", reason=f"late by {n}s")
        for n in range(2):
            api.bury(f"rare-{n}", reason="rare")
        found = api.get("/dead/groups").json()
        late, rare = found["groups"]
        assert (late["error"], late["count"], rare["count"]) == ("late by #", 3, 2)
        assert (found["ungrouped"], late["first"] <= late["last"]) == (0, True)
        listed = api.get("/dead", group=late["group"]).json()["jobs"]
        assert [job["id"] for job in listed] == ["late-0", "late-1", "late-2"]
        told = api.post("/dead/retry", {"group": late["group"], "most": 2}).json()
        assert told == {"retried": 2, "left": 3}
        assert api.delete("/dead", group=rare["group"]).json() == {"deleted": 2, "left": 1}
        [left] = api.get("/dead/groups").json()["groups"]
        assert (left["group"], left["count"]) == (late["group"], 1)
        problem(api.get("/dead", group="x" * 41), 422)
        problem(api.get("/dead", group="a\nb"), 422)

    def test_only_dead_jobs_are_retried(self, api: Api) -> None:
        api.submit(1, id="a")
        told = problem(api.post("/dead/a/retry"), 409)
        assert told["type"].endswith("/job-not-dead")
        assert told["state"] == "ready"
        assert code(api.post("/dead/nobody/retry"), 404) == "job-not-found"

    def test_are_removed_oldest_first_up_to_a_number(self, api: Api) -> None:
        for n in range(5):
            api.bury(f"j{n}")
        assert api.delete("/dead", most=2).json() == {"deleted": 2, "left": 3}
        assert [job["id"] for job in api.get("/dead").json()["jobs"]] == ["j2", "j3", "j4"]
        api.bury("j5", reason="Disk FULL on b")
        assert api.delete("/dead", text="disk full").json() == {"deleted": 1, "left": 3}
        assert api.delete("/dead").json() == {"deleted": 3, "left": 0}
        assert api.delete("/dead").json() == {"deleted": 0, "left": 0}

    @pytest.mark.parametrize("most", [0, 10_001, "x"])
    def test_are_deleted_up_to_a_number_within_bounds(self, api: Api, most: object) -> None:
        problem(api.delete("/dead", most=most), 422)


def test_a_key_sees_only_its_queues(running: RunningServer, api: Api) -> None:
    api.submit(1)
    _, other = running.make_key("read", queues=(f"{api.queue}-*",))
    seen = running.client(other).get("/api/v1/queues").json()["queues"]
    assert seen == []


@pytest.mark.parametrize(
    "path", ["", "/jobs?state=ready", "/jobs/nobody", "/jobs/nobody/explain", "/dead", "/events"]
)
def test_reading_an_unused_queue_does_not_create_it(
    running: RunningServer, queue: str, path: str
) -> None:
    _, secret = running.make_key("read")
    client = running.client(secret)
    with client.stream("GET", f"/api/v1/queues/{queue}{path}") as answer:
        assert answer.status_code in (200, 404)
    known = client.get("/api/v1/queues").json()["queues"]
    assert queue not in [counts["queue"] for counts in known]


class TestManyJobs:
    def test_are_counted_and_cancelled_in_steps(self, api: Api) -> None:
        for n in range(3):
            api.submit(n, lane="ann", headers={"handler": "mail"})
        api.submit(4, headers={"handler": "print"})
        body = {"handler": "mail"}
        counted = api.post("/cancel", body | {"count_only": True}).json()
        assert counted["jobs"] == 0 or counted["after"]  # the first step covers one state
        assert self._all(api, "/cancel", body | {"count_only": True}) == {"waiting": 2, "ready": 1}
        assert self._all(api, "/cancel", body | {"size": 1}) == {"waiting": 2, "ready": 1}
        assert api.get().json()["ready"] == 1

    def test_are_deleted_but_not_while_they_run(self, api: Api) -> None:
        api.bury("dead")
        api.submit(id="runs")
        api.claim(lease=600)
        api.submit(id="waits")
        refused = problem(api.post("/purge", {"before_delete": True}), 409)
        assert (refused["held"]["ready"], refused["held"]["leased"]) == (1, 1)
        assert self._all(api, "/purge", {}) == {"ready": 1, "dead": 1}
        problem(api.post("/purge", {"states": ["leased"]}), 422)
        held = problem(api.delete(""), 409)
        assert (held["type"].rpartition("/")[2], held["held"]["leased"]) == ("queue-not-empty", 1)

    def test_are_selected_by_age(self, api: Api) -> None:
        api.submit(1)
        for before, count in (("2020-01-01T00:00:00Z", 0), ("2120-01-01T00:00:00", 1)):
            body = {"submitted_before": before, "count_only": True}
            assert sum(self._all(api, "/cancel", body).values()) == count

    @pytest.mark.parametrize(
        "body", [{"states": []}, {"states": ["dead"]}, {"size": 0}, {"after": "x:1"}, {"lane": ""}]
    )
    def test_need_valid_values(self, api: Api, body: dict[str, object]) -> None:
        api.submit(1)
        problem(api.post("/cancel", body), 422)

    def _all(self, api: Api, path: str, body: Mapping[str, Any]) -> dict[str, int]:
        found: dict[str, int] = {}
        after: dict[str, Any] = {}
        while True:
            answer = api.post(path, {**body, **after})
            assert answer.status_code == 200, answer.text
            for state, count in answer.json()["states"].items():
                found[state] = found.get(state, 0) + count
            if answer.json()["after"] is None:
                return found
            after = {"after": answer.json()["after"]}


class TestDeletingAQueue:
    def test_removes_it_from_the_list(self, api: Api) -> None:
        api.submit(1, id="a")
        [job] = api.claim()
        api.say("complete", job)
        assert code(api.delete(""), 409) == "queue-not-empty"  # the job's result is kept
        after: str | None = ""
        while after is not None:
            after = api.post("/purge", {"after": after} if after else {}).json()["after"]
        assert api.delete("").status_code == 204
        listed = api.client.get("/api/v1/queues").json()["queues"]
        assert api.queue not in [counts["queue"] for counts in listed]
        assert code(api.delete(""), 404) == "queue-not-found"

    def test_needs_the_scope_admin(self, running: RunningServer, api: Api) -> None:
        api.submit(1)
        _, secret = running.make_key("read", "submit", "work")
        other = running.api(api.queue, secret)
        for answer in (other.delete(""), other.post("/purge", {}), other.post("/cancel", {})):
            assert code(answer, 403) == "scope-missing"


class TestAMistypedQueue:
    def test_is_corrected_only_to_queues_that_the_key_covers(
        self, running: RunningServer, api: Api
    ) -> None:
        api.submit(1, id="a")
        near = f"{api.queue}x"
        _, secret = running.make_key("read", "admin", queues=(near,))
        seen, hidden = running.api(near), running.api(near, secret)
        asks: list[Callable[[Api], httpx.Response]] = [
            lambda one: one.post("/cancel", {}),
            lambda one: one.delete(""),
            lambda one: one.get("/jobs/a"),
            lambda one: one.post("/dead/a/retry"),
        ]
        for ask_for in asks:
            assert problem(ask_for(seen), 404)["did_you_mean"].startswith("queue-")
            assert "did_you_mean" not in problem(ask_for(hidden), 404)
        page = running.client().get(f"/ui/queues/{near}")
        assert page.status_code == 404
        listed = running.client().get("/api/v1/queues").json()["queues"]
        assert near not in [counts["queue"] for counts in listed]
