"""The public paths of the dashboard, login sessions, and their protection (S1, S8)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.dashboard.sessions import COOKIE, SessionClient, log_in
from tests.server.serving import Api, RunningServer, code, up
from tests.waiting import eventually
from towpath.clock import hours, minutes, seconds
from towpath.ledger.ledger import Ledger


class TestTheEntryPages:
    @pytest.mark.parametrize("path", ["/", "/docs"])
    @pytest.mark.parametrize("accept", ["*/*", "text/html", "application/json", "nonsense"])
    def test_answer_everybody_with_a_page(
        self, running: RunningServer, api: Api, path: str, accept: str
    ) -> None:
        api.submit("hello", id="secret-job")
        answer = running.client(key="").get(path, headers={"Accept": accept})
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert "API key" in answer.text
        assert api.queue not in answer.text

    def test_have_a_strict_content_security_policy(
        self, running: RunningServer, admin: SessionClient
    ) -> None:
        for client in (running.client(key=""), admin.client):
            for path in ("/", "/docs"):
                headers = client.get(path).headers
                policy = headers["content-security-policy"]
                assert policy.startswith("default-src 'none'")
                assert "unsafe" not in policy
                assert "http" not in policy
                assert headers["x-content-type-options"] == "nosniff"
                assert headers["x-frame-options"] == "DENY"
                assert headers["cache-control"] == "no-store"

    def test_show_people_where_to_log_in_and_programs_a_problem(
        self, running: RunningServer
    ) -> None:
        client, path = running.client(key=""), "/ui/queues/mails?state=dead"
        assert code(client.get(path, headers={"Accept": "text/html"}), 401) == "unauthorized"
        shown = client.get(path, headers={"Sec-Fetch-Dest": "document"})
        assert shown.status_code == 401
        assert 'value="/ui/queues/mails?state=dead"' in shown.text


class TestLoggingIn:
    def test_sets_a_cookie_that_scripts_and_other_sites_do_not_get(
        self, running: RunningServer
    ) -> None:
        answer = running.client(key="").post("/", data={"key": running.key})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"]
        for mark in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=43200"):
            assert mark in cookie
        assert "Secure" not in cookie
        assert running.key not in cookie

    def test_marks_it_secure_where_the_browser_came_by_https(self, running: RunningServer) -> None:
        headers = {"X-Forwarded-Proto": "https"}
        answer = running.client(key="").post("/", data={"key": running.key}, headers=headers)
        assert "; Secure" in answer.headers["set-cookie"]

    @pytest.mark.parametrize("key", ["", "wrong", "tp_" + "x" * 50, "x" * 600, "ключ"])
    def test_needs_a_valid_key(self, running: RunningServer, key: str) -> None:
        answer = running.client(key="").post("/", data={"key": key})
        assert answer.status_code == 401
        assert "This key is not valid" in answer.text
        assert "set-cookie" not in answer.headers

    def test_needs_a_key_with_the_scope_read(self, running: RunningServer) -> None:
        _, submit = running.make_key("submit", "work")
        answer = running.client(key="").post("/", data={"key": submit})
        assert answer.status_code == 401
        assert "no scope `read`" in answer.text

    def test_goes_to_the_page_that_was_asked_for_and_nowhere_else(
        self, running: RunningServer
    ) -> None:
        for to, place in {
            "/ui/dead?queue=a": "/ui/dead?queue=a",
            "/docs": "/docs",
            "//evil.example/": "/",
            "https://evil.example/": "/",
            "/\\evil.example": "/",
        }.items():
            answer = running.client(key="").post("/", data={"key": running.key, "to": to})
            assert answer.headers["location"] == place

    def test_from_another_site_is_refused(self, running: RunningServer) -> None:
        for headers in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ):
            answer = running.client(key="").post("/", data={"key": running.key}, headers=headers)
            assert answer.status_code == 403
            assert "set-cookie" not in answer.headers

    def test_a_large_form_is_refused(self, running: RunningServer) -> None:
        answer = running.client(key="").post("/", content=b"key=" + b"x" * 100_000)
        assert answer.status_code == 413


class TestTheLink:
    @pytest.fixture
    def just_started(self, tmp_path: Path) -> Iterator[RunningServer]:
        """`towpath up` for this test alone: its link is valid for ten minutes only."""
        with up(tmp_path) as served:
            yield served

    def test_of_towpath_up_logs_in_once_by_post(self, just_started: RunningServer) -> None:
        """A request that only reads the link, such as a preview, does not use it up."""
        running = just_started
        link = httpx.URL(Path(running.said["login_file"]).read_text().strip())
        client = running.client(key="")
        for _ in range(2):
            page = client.get(str(link))
            assert page.status_code == 200
            assert link.params["login"] in page.text
            assert COOKIE not in client.cookies
        used = client.post("/", data={"link": link.params["login"]})
        assert used.status_code == 303
        assert "Overview" in client.get("/").text
        again = running.client(key="").post("/", data={"link": link.params["login"]})
        assert again.status_code == 401
        assert "has been used" in again.text

    async def test_is_valid_for_ten_minutes(self, prepared_file_url: str) -> None:
        now = [10**12]
        async with Ledger(prepared_file_url, wall=lambda: now[0]) as ledger:
            key = (await ledger.keys.create("me", scopes=["admin"])).info
            early, late = [await ledger.logins.link(key) for _ in range(2)]
            now[0] += int((minutes(10) - seconds(1)).total_seconds() * 1000)
            assert await ledger.logins.redeem(early) == key
            now[0] += 1000
            assert await ledger.logins.redeem(late) is None

    async def test_is_no_session_and_a_session_is_no_link(self, prepared_file_url: str) -> None:
        async with Ledger(prepared_file_url) as ledger:
            key = (await ledger.keys.create("me", scopes=["admin"])).info
            link, session = await ledger.logins.link(key), await ledger.logins.open(key)
            assert await ledger.logins.find(link) is None
            assert await ledger.logins.redeem(session) is None
            assert await ledger.logins.find(session) is not None


class TestASession:
    def test_ends_when_its_holder_leaves(
        self, running: RunningServer, admin: SessionClient
    ) -> None:
        cookie = admin.client.cookies[COOKIE]
        left = admin.client.post("/", data={"leave": "1", "csrf": admin.csrf})
        assert (left.status_code, left.headers["location"]) == (303, "/")
        late = running.client(key="")
        late.cookies[COOKIE] = cookie
        assert late.get("/ui/dead").status_code == 401
        assert "Your session has ended" in late.get("/").text

    def test_ends_with_its_key(self, running: RunningServer) -> None:
        id, secret = running.make_key("read")
        visitor = log_in(running, secret)
        assert visitor.get("/ui/dead").status_code == 200
        running.revoke(id)
        eventually(lambda: visitor.get("/ui/dead").status_code == 401)

    async def test_lasts_twelve_hours(self, prepared_file_url: str) -> None:
        now = [10**12]
        async with Ledger(prepared_file_url, wall=lambda: now[0]) as ledger:
            key = (await ledger.keys.create("me", scopes=["read"])).info
            cookie = await ledger.logins.open(key)
            now[0] += int((hours(12) - seconds(1)).total_seconds() * 1000)
            assert await ledger.logins.find(cookie) is not None
            now[0] += 1000
            assert await ledger.logins.find(cookie) is None

    async def test_is_kept_as_a_digest(self, prepared_file_url: str) -> None:
        """A reader of the database cannot take over a session."""
        async with Ledger(prepared_file_url) as ledger:
            key = (await ledger.keys.create("me", scopes=["read"])).info
            cookie = await ledger.logins.open(key)
            stored = await ledger.read(
                lambda connection: str(
                    connection.exec_driver_sql("SELECT * FROM towpath_logins").all()
                )
            )
            assert cookie not in stored

    @pytest.mark.parametrize("cookie", ["", "x", "x" * 5000, "=;,", '"'])
    def test_with_an_invented_cookie_is_refused(self, running: RunningServer, cookie: str) -> None:
        client = running.client(key="")
        answer = client.get("/ui/dead", headers={"Cookie": f"{COOKIE}={cookie}"})
        assert code(answer, 401) == "unauthorized"


class TestChanges:
    """A request that a page of another site makes the browser send changes nothing."""

    @pytest.fixture
    def pausing(self, admin: SessionClient, api: Api) -> Callable[..., httpx.Response]:
        api.submit()

        def pause(**headers: str) -> httpx.Response:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return admin.client.post(f"/api/v1/queues/{api.queue}/pause", headers=named)

        return pause

    def test_need_the_token_of_the_session(
        self, pausing: Callable[..., httpx.Response], admin: SessionClient, api: Api
    ) -> None:
        assert code(pausing(), 403) == "cross-site"
        assert code(pausing(X_Towpath_CSRF="0" * 64), 403) == "cross-site"
        assert api.get().json()["paused"] is False
        assert pausing(X_Towpath_CSRF=admin.csrf).status_code == 204
        assert api.get().json()["paused"] is True

    @pytest.mark.parametrize(
        "foreign", [{"Origin": "https://evil.example"}, {"Sec_Fetch_Site": "cross-site"}]
    )
    def test_must_come_from_pages_of_the_server(
        self,
        pausing: Callable[..., httpx.Response],
        admin: SessionClient,
        api: Api,
        foreign: dict[str, str],
    ) -> None:
        assert code(pausing(X_Towpath_CSRF=admin.csrf, **foreign), 403) == "cross-site"
        assert api.get().json()["paused"] is False

    def test_need_the_token_for_a_logout_too(self, admin: SessionClient) -> None:
        assert admin.client.post("/", data={"leave": "1"}).status_code == 403
        assert admin.get("/ui/dead").status_code == 200

    def test_need_the_scope_of_the_key(self, reader: SessionClient, api: Api) -> None:
        api.submit()
        answer = reader.send("POST", f"/api/v1/queues/{api.queue}/pause")
        assert code(answer, 403) == "scope-missing"


class TestTheAuditLog:
    def test_has_every_change_with_who_what_when_and_the_answer(
        self, running: RunningServer, admin: SessionClient, reader: SessionClient, api: Api
    ) -> None:
        api.submit(id="a")
        path = f"/api/v1/queues/{api.queue}"
        admin.send("POST", f"{path}/pause")
        admin.send("DELETE", f"{path}/dead/a%2Fb")
        reader.send("POST", f"{path}/resume")

        def mine() -> list[dict[str, Any]]:
            found = admin.get("/api/v1/audit").json()["actions"]
            return [action for action in found if api.queue in action["path"]]

        eventually(
            lambda: all(action["status"] for action in mine())
        )  # written once they are answered
        assert [(action["method"], action["path"], action["status"]) for action in mine()] == [
            ("POST", f"{path}/resume", 403),
            ("DELETE", f"{path}/dead/a%2Fb", 404),
            ("POST", f"{path}/pause", 204),
        ]
        assert [action["key_name"] for action in mine()] == ["test", "first", "first"]
        logged = [line for line in running.events() if line["event"] == "dashboard.action"]
        assert f"POST {path}/pause" in [line["request"] for line in logged]
        assert api.queue in admin.look("/ui/audit")

    def test_is_for_admins(self, reader: SessionClient) -> None:
        assert code(reader.get("/api/v1/audit"), 403) == "scope-missing"
        assert "Scope missing" in reader.look("/ui/audit", 403)


class TestKeysOverHttp:
    def test_are_made_used_and_revoked(self, running: RunningServer, admin: SessionClient) -> None:
        made = admin.send("POST", "/api/v1/keys", json={"name": "new", "scopes": ["read"]})
        assert made.status_code == 201
        secret, id = made.json()["secret"], made.json()["id"]
        assert running.client(secret).get("/api/v1/queues").status_code == 200
        listed = admin.get("/api/v1/keys")
        assert id in [key["id"] for key in listed.json()["keys"]]
        assert secret not in listed.text
        assert secret not in admin.look("/ui/keys")
        assert admin.send("DELETE", f"/api/v1/keys/{id}").json()["revoked_at"]
        assert running.client(secret).get("/api/v1/queues").status_code == 401
        assert code(admin.send("DELETE", "/api/v1/keys/nobody"), 404) == "key-not-found"

    def test_are_not_for_keys_of_some_queues(self, running: RunningServer) -> None:
        """A key for some queues cannot create a key for all."""
        _, some = running.make_key("admin", queues=("mine-*",))
        visitor = log_in(running, some)
        for answer in (
            visitor.get("/api/v1/keys"),
            visitor.send("POST", "/api/v1/keys", json={"name": "x", "scopes": ["admin"]}),
            visitor.send("DELETE", "/api/v1/keys/x"),
            visitor.get("/api/v1/audit"),
            visitor.get("/api/v1/doctor"),
        ):
            assert code(answer, 403) == "queue-forbidden"


class TestPagesOfApplications:
    def test_are_in_the_menu(self, admin: SessionClient) -> None:
        page = admin.look("/")
        for name in ("messages", "reviews", "timers", "uploads", "issues"):
            assert f'href="/ui/{name}"' in page

    def test_need_the_scope_and_the_queue(self, running: RunningServer) -> None:
        _, other = running.make_key("read", queues=("mine",))
        for name in ("messages", "reviews", "uploads", "issues"):
            assert running.client(other).get(f"/ui/{name}").status_code == 403

    def test_list_only_the_uploads_of_the_keys_owner(
        self, running: RunningServer, admin: SessionClient
    ) -> None:
        keys = [running.make_key("read", "submit")[1] for _ in range(2)]
        names = ["of-the-first.bin", "of-the-second.bin"]
        for key, name in zip(keys, names, strict=True):
            body = {"name": name, "size": 9}
            assert running.client(key).post("/api/v1/uploads", json=body).status_code == 201
        for key, own in zip(keys, names, strict=True):
            page = log_in(running, key).look("/ui/uploads")
            assert [name for name in names if name in page] == [own]
        assert [name for name in names if name in admin.look("/ui/uploads")] == names
