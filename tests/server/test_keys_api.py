"""Who may do what: nothing but health answers without a key."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from sqlalchemy import update

from tests.cli.command import Command
from tests.server.serving import Api, RunningServer, code, problem
from tests.waiting import eventually
from towpath.ledger.database.schema import api_keys
from towpath.ledger.ledger import Ledger

JOBS = "/api/v1/queues/mails/jobs"
CLAIM = {"worker": "w"}
"""A body that fits every path that takes one, so that only the key decides."""


class TestWithoutAKey:
    @pytest.mark.parametrize("path", ["/livez", "/readyz", "/health"])
    def test_health_answers(self, running: RunningServer, path: str) -> None:
        assert running.client(key="").get(path).status_code == 200

    @pytest.mark.parametrize("path", ["/livez", "/readyz", "/health"])
    def test_health_answers_head_requests(self, running: RunningServer, path: str) -> None:
        client = running.client(key="")
        alone, whole = client.head(path), client.get(path)
        assert (alone.status_code, alone.content) == (200, b"")
        for name in ("content-type", "content-length"):
            assert alone.headers[name] == whole.headers[name]

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("GET", "/docs/"),
            ("GET", "/ui/static/towpath.css"),
            ("GET", "/ui/queues/mails"),
            ("GET", "/redoc"),
            ("GET", "/openapi.json"),
            ("GET", "/metrics"),
            ("GET", "/api/v1/queues"),
            ("GET", "/api/v1/queues/"),
            ("GET", "/api/v1/queues/mails/events"),
            ("GET", f"{JOBS}/a"),
            ("POST", JOBS),
            ("PUT", JOBS),
            ("OPTIONS", JOBS),
            ("HEAD", JOBS),
            ("DELETE", "/api/v1/queues/mails/dead"),
            ("POST", "/api/v1/message"),
            ("GET", "/api/v1/nothing"),
            ("GET", "/livez/"),
            ("GET", "/%2Flivez"),
            ("GET", "/livez/../api/v1/queues"),
        ],
    )
    def test_all_other_paths_give_the_same_answer(
        self, running: RunningServer, method: str, path: str
    ) -> None:
        """Whether there is such a path, method or job can't be learned."""
        answer = running.client(key="").request(method, path)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert method == "HEAD" or code(answer, 401) == "unauthorized"
        assert "allow" not in answer.headers

    @pytest.mark.parametrize(
        "body", [b"", b"{", b"x" * 3_000_000, b"[" * 100_000], ids=["none", "half", "large", "deep"]
    )
    def test_the_body_does_not_change_the_answer(self, running: RunningServer, body: bytes) -> None:
        assert code(running.client(key="").post(JOBS, content=body), 401) == "unauthorized"


class TestAKey:
    def test_is_sent_as_bearer_or_plain(self, running: RunningServer) -> None:
        client = running.client(key="")
        for headers in (
            {"Authorization": f"Bearer {running.key}"},
            {"Authorization": f"bearer {running.key}"},
            {"X-API-Key": running.key},
            {"Authorization": "Basic eDp5", "X-API-Key": running.key},
        ):
            assert client.get("/api/v1/queues", headers=headers).status_code == 200

    @pytest.mark.parametrize(
        "headers",
        [
            {"Authorization": "Bearer tp_wrong"},
            {"Authorization": "Bearer"},
            {"Authorization": "Basic eDp5"},
            {"X-API-Key": ""},
            {"X-API-Key": "x" * 10_000},
            {"X-API-Key": b"\xff\xfe"},
        ],
        ids=str,
    )
    def test_that_is_wrong_is_refused(
        self, running: RunningServer, headers: dict[str, str]
    ) -> None:
        answer = running.client(key="").get("/api/v1/queues", headers=headers)
        assert code(answer, 401) == "unauthorized"
        assert running.key not in answer.text

    def test_that_was_revoked_ends_within_seconds(self, running: RunningServer) -> None:
        id, secret = running.make_key("read")
        client = running.client(secret)
        assert client.get("/api/v1/queues").status_code == 200
        running.revoke(id)
        eventually(lambda: client.get("/api/v1/queues").status_code == 401)

    def test_that_has_expired_ends_by_itself(self, running: RunningServer) -> None:
        """On a busy machine a key may expire before it is used: the next one lasts longer."""
        for seconds in (1, 10, 60):
            soon = datetime.now(UTC) + timedelta(seconds=seconds)
            _, secret = running.make_key("read", expires_at=soon)
            client = running.client(secret)
            if client.get("/api/v1/queues").status_code == 200:
                break
        else:
            pytest.fail("no key was good before its end")
        eventually(lambda: client.get("/api/v1/queues").status_code == 401)
        assert datetime.now(UTC) >= soon

    def test_and_its_successor_both_work_during_a_rotation(self, running: RunningServer) -> None:
        (old_id, old), (_, new) = running.make_key("read"), running.make_key("read")
        assert running.client(old).get("/api/v1/queues").status_code == 200
        running.revoke(old_id)
        assert running.client(new).get("/api/v1/queues").status_code == 200


NEEDS = {
    "submit": [("POST", "/jobs"), ("POST", "/jobs/a/cancel"), ("DELETE", "/jobs/a")],
    "work": [
        ("POST", "/claim"),
        ("POST", "/jobs/a/renew"),
        ("POST", "/jobs/a/complete"),
        ("POST", "/jobs/a/fail"),
        ("POST", "/jobs/a/release"),
    ],
    "read": [
        ("GET", ""),
        ("GET", "/jobs?state=ready"),
        ("GET", "/jobs/a"),
        ("GET", "/jobs/a/explain"),
        ("GET", "/dead"),
        ("GET", "/events"),
    ],
    "admin": [
        ("POST", "/dead/a/retry"),
        ("DELETE", "/dead"),
        ("POST", "/pause"),
        ("POST", "/resume"),
    ],
}


def asked(client: httpx.Client, method: str, path: str) -> httpx.Response:
    with client.stream(method, path, json=CLAIM if method == "POST" else None) as answer:
        if answer.status_code != 200:
            answer.read()
        return answer


@pytest.mark.parametrize("scope", NEEDS)
def test_a_scope_allows_its_own_paths_and_no_others(
    running: RunningServer, queue: str, scope: str
) -> None:
    _, secret = running.make_key(scope)
    api = running.api(queue, secret)
    for needed, paths in NEEDS.items():
        for method, path in paths:
            answer = asked(api.client, method, api.root + path)
            if scope in (needed, "admin"):
                assert answer.status_code not in (401, 403), (method, path)
            else:
                assert code(answer, 403) == "scope-missing", (method, path)


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/queues"])
def test_every_path_that_reads_needs_the_scope_read(running: RunningServer, path: str) -> None:
    _, work = running.make_key("work")
    assert code(running.client(work).get(path), 403) == "scope-missing"
    _, read = running.make_key("read")
    assert running.client(read).get(path).status_code == 200


def test_any_key_may_read_the_description_of_the_api(running: RunningServer) -> None:
    _, secret = running.make_key("submit", queues=("nothing",))
    client = running.client(secret)
    assert client.get("/openapi.json").json()["openapi"].startswith("3.1")
    assert code(client.get("/redoc"), 404) == "not-found"
    assert code(client.put("/metrics"), 405) == "method-not-allowed"


class TestQueuePatterns:
    def test_a_key_is_for_the_queues_that_it_names(self, running: RunningServer) -> None:
        _, secret = running.make_key("admin", queues=("mails-*", "news"))
        client = running.client(secret)
        for queue in ("mails-a", "news", "%6eews"):
            assert client.get(f"/api/v1/queues/{queue}").status_code == 200
        for queue in ("mails", "newspaper", "a%2Fnews", "news%00", "%ff"):
            answer = client.get(f"/api/v1/queues/{queue}")
            assert code(answer, 403) == "queue-forbidden", queue
        for method, path in [request for paths in NEEDS.values() for request in paths]:
            answer = asked(client, method, f"/api/v1/queues/other{path}")
            assert code(answer, 403) == "queue-forbidden", (method, path)

    def test_with_many_wildcards_do_not_block_the_server(self, running: RunningServer) -> None:
        """Matched by a search that goes back, one request would hold the server for minutes."""
        _, secret = running.make_key("read", queues=("*-*-*-*-*-*-*-*x",))
        client = running.client(secret)
        for queue in ("-" * 63, "a" + "-" * 63, "-" * 2_000):
            answer = client.get(f"/api/v1/queues/{queue}")
            assert code(answer, 403) == "queue-forbidden", queue

    def test_a_key_learns_nothing_about_other_queues(
        self, running: RunningServer, api: Api
    ) -> None:
        """There or not there: the same answer."""
        api.submit(1, id="there")
        _, secret = running.make_key("admin", queues=("mine",))
        other = running.api(api.queue, secret)
        answers = [other.get(f"/jobs/{id}") for id in ("there", "nobody")]
        assert problem(answers[0], 403) == problem(answers[1], 403)

    def test_messages_are_a_queue_like_others(self, running: RunningServer) -> None:
        _, secret = running.make_key("admin", queues=("mine",))
        answer = running.client(secret).get("/api/v1/queue/ann")
        assert code(answer, 403) == "queue-forbidden"


class TestRotating:
    def test_gives_a_new_secret_once_and_keeps_all_other_fields(
        self, running: RunningServer
    ) -> None:
        admin = running.client()
        id, old = running.make_key("read", queues=("mails*",), owner="the shop")
        made = admin.post(f"/api/v1/keys/{id}/rotate", json={"overlap": 600})
        assert made.status_code == 201
        told = made.json()
        assert (told["scopes"], told["queues"], told["owner"]) == (["read"], ["mails*"], "the shop")
        assert told["id"] != id
        for secret in (old, told["secret"]):
            assert running.client(secret).get("/api/v1/queues").status_code == 200
        listed = admin.get("/api/v1/keys").text
        assert told["id"] in listed
        assert told["secret"] not in listed

    def test_without_an_overlap_ends_the_old_key(self, running: RunningServer) -> None:
        id, old = running.make_key("read")
        made = running.client().post(f"/api/v1/keys/{id}/rotate", json={"overlap": 0})
        assert made.json()["owner"] == id
        assert running.client(old).get("/api/v1/queues").status_code == 401

    def test_of_an_unknown_or_ended_key_is_refused(self, running: RunningServer) -> None:
        admin = running.client()
        missing = admin.post("/api/v1/keys/nobody/rotate", json={})
        assert code(missing, 404) == "key-not-found"
        id, _ = running.make_key("read")
        running.revoke(id)
        assert code(admin.post(f"/api/v1/keys/{id}/rotate", json={}), 409) == "key-ended"
        for overlap in (-1, 1e12, "1h"):
            wrong = admin.post(f"/api/v1/keys/{id}/rotate", json={"overlap": overlap})
            assert wrong.status_code == 422

    def test_needs_an_admin_key_for_all_queues(self, running: RunningServer) -> None:
        id, _ = running.make_key("read")
        for scopes, queues in ((("manage", "raw", "submit"), ("*",)), (("admin",), ("mails",))):
            _, secret = running.make_key(*scopes, queues=queues)
            answer = running.client(secret).post(f"/api/v1/keys/{id}/rotate", json={})
            assert answer.status_code == 403


def test_a_key_with_an_owner_is_made_over_http(running: RunningServer) -> None:
    wanted = {"name": "shop", "scopes": ["submit", "manage", "raw"], "owner": "the shop"}
    made = running.client().post("/api/v1/keys", json=wanted).json()
    assert (made["owner"], made["scopes"]) == ("the shop", ["manage", "raw", "submit"])
    assert running.client().post("/api/v1/keys", json=wanted | {"owner": ""}).status_code == 422


class TestDoctorAboutKeysOfEarlierReleases:
    @staticmethod
    def age(running: RunningServer, *ids: str) -> None:
        """Makes keys look as if a release without owners had made them."""

        async def age() -> None:
            async with Ledger(running.database) as ledger:
                change = update(api_keys).where(api_keys.c.id.in_(ids)).values(owner=None)
                await ledger.write(lambda connection: connection.execute(change))

        asyncio.run(age())

    @staticmethod
    def found(running: RunningServer) -> list[str]:
        told = running.client().get("/api/v1/doctor").json()["findings"]
        return [one["found"] + one["do"] for one in told if one["check"] == "keys"]

    def test_names_keys_that_lose_abilities_until_they_are_rotated(
        self, running: RunningServer, tmp_path: Path
    ) -> None:
        made = {
            "agents": running.make_key("work", queues=("issues",))[0],
            "shop": running.make_key("submit", queues=("mails",))[0],
            "timers": running.make_key("work", queues=("timers.shop--*",))[0],
            "chat worker": running.make_key("work", queues=("messages",))[0],
            "reader": running.make_key("read")[0],
            "worker": running.make_key("work", queues=("mails",))[0],
            "operator": running.make_key("submit", "work", "manage", "raw")[0],
            "admin": running.make_key("admin")[0],
        }
        assert self.found(running) == []
        self.age(running, *made.values())
        losing = ("agents", "shop", "timers")
        for named in (self.found(running), self._on_the_command_line(running, tmp_path)):
            lines = {name: [one for one in named if id in one] for name, id in made.items()}
            assert {name for name, some in lines.items() if some} == set(losing)
            assert len(named) == len(losing)
            [agents], [shop] = lines["agents"], lines["shop"]
            assert ("raw" in agents, "manage" in agents) == (True, False)
            assert ("raw" in shop, "manage" in shop) == (False, True)
        for name in losing:
            running.client().post(f"/api/v1/keys/{made[name]}/rotate", json={"overlap": 0})
        assert self.found(running) == []

    @staticmethod
    def _on_the_command_line(running: RunningServer, home: Path) -> list[str]:
        towpath = Command(running.said["store"], home)
        ran = towpath("doctor", "--json", TOWPATH_DATABASE=running.database)
        found = [one for one in ran.objects if one["check"] == "keys"]
        assert {one["verdict"] for one in found} == {"warn"}
        return [one["found"] + one["do"] for one in found]
