"""The dashboard as people use it: in Debian's Chromium, checked by axe-core."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import Browser, expect

from tests.dashboard.browsing import AXE, Tab
from tests.server.serving import Api, RunningServer
from tests.waiting import eventually
from towpath import Engine
from towpath.clock import minutes
from towpath.engine.model import job_ref
from towpath.engine.options import QueueOptions
from towpath.engine.worker_registry import BlockedLoop, HandlerReport, WorkerReport

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>\"'><svg onload=alert(3)>{{7*7}}"
QUOTED = """a "b" 'c' onfocus=alert(4) </p>"""
RIGHT_TO_LEFT = "\u202e\u05e9\u05dc\u05d5\u05dd\u202c \u0645\u0631\u062d\u0628\u0627"
PAGES = (
    "/", "/ui/queues/{queue}", "/ui/queues/{queue}?state=waiting", "/ui/queues/{queue}?state=dead",
    "/ui/queues/{queue}/jobs/dead-1", "/ui/dead?queue={queue}", "/ui/schedules", "/ui/keys",
    "/ui/audit", "/ui/workers", "/ui/search?q=ann", "/ui/search?q=away&by=error",
    "/ui/queues/nothing",
)  # fmt: skip


@pytest.fixture
def filled(api: Api) -> Api:
    """A queue with jobs in every state."""
    for n in range(3):
        api.bury(f"dead-{n}", reason=f"ConnectionError: mail{n}.example is away")
    for n in range(4):
        api.submit({"to": f"ann{n}@example.com"}, id=f"ann-{n}", lane="ann")
    api.submit("later", id="later", delay=3600)
    api.claim(count=1, lease=600)
    body = {"cron": "0 3 * * *", "payload": {"kind": "full"}}
    api.client.put(f"/api/v1/schedules/{api.queue}/nightly", json=body).raise_for_status()
    return api


def made_key(
    running: RunningServer, *scopes: str, queues: tuple[str, ...] = ("*",)
) -> tuple[str, str]:
    """The id and the secret of a new key, made over HTTP, because Playwright has a loop in this
    thread.
    """
    wanted = {"name": "test", "scopes": scopes, "queues": queues}
    answer = running.client().post("/api/v1/keys", json=wanted)
    return answer.json()["id"], answer.json()["secret"]


class TestLoggingIn:
    def test_works_with_a_key_and_logging_out_ends_it(
        self, running: RunningServer, browser: Browser
    ) -> None:
        context = browser.new_context()
        tab = Tab(running, context)
        page = tab.go("/")
        page.fill("#key", "tp_wrong")
        page.press("#key", "Enter")
        expect(page.get_by_role("alert")).to_contain_text("not valid")
        tab.log_in(running.key)
        page.click("text=Log out")
        expect(page.locator("h1")).to_have_text("Log in to Towpath")
        tab.go("/ui/dead")
        expect(page.locator("h1")).to_have_text("Log in to Towpath")
        page.fill("#key", running.key)
        page.press("#key", "Enter")
        expect(page.locator("h1")).to_have_text("Dead jobs")
        context.close()

    def test_a_revoked_key_ends_it(
        self, running: RunningServer, browser: Browser, api: Api
    ) -> None:
        api.submit()
        id, secret = made_key(running, "read", "admin")
        context = browser.new_context()
        tab = Tab(running, context)
        tab.log_in(secret)
        page = tab.go(f"/ui/queues/{api.queue}")
        running.client().delete(f"/api/v1/keys/{id}").raise_for_status()
        eventually(lambda: running.client(secret).get("/api/v1/queues").status_code == 401)
        tab.do("Pause")
        expect(page.locator("h1")).to_have_text("Log in to Towpath")
        context.close()


class TestEveryPage:
    def test_has_no_serious_fault_and_fits_a_phone(self, tab: Tab, filled: Api) -> None:
        """In both colour themes; and the browser reports no violation of the policy."""
        assert AXE.exists(), "npm could not bring axe-core"
        for place, path in enumerate(PAGES):
            page = tab.go(path.format(queue=filled.queue))
            name = path.strip("/").replace("ui/", "").replace("/", "-").split("?")[0] or "overview"
            faults: list[str] = []
            for theme, width in (("light", 1280), ("dark", 390)):
                page.set_viewport_size({"width": width, "height": 800})
                page.evaluate("(it) => { document.documentElement.dataset.theme = it }", theme)
                faults += [f"{theme} {fault}" for fault in tab.faults()]
                assert tab.fits(), f"{path} sticks out at {width}"
                tab.picture(f"{place:02}-{name}-{theme}".replace("{queue}", "queue"))
            page.set_viewport_size({"width": 1280, "height": 800})
            assert faults == [], path
        assert [complaint for complaint in tab.complaints if "404" not in complaint] == []

    def test_can_call_the_described_api_with_the_login_session(self, tab: Tab) -> None:
        page = tab.go("/docs")
        expect(page.locator("#api .opblock-tag").first).to_be_visible()
        tab.picture("docs")
        assert tab.complaints == []

    def test_lists_what_workers_serve(self, tab: Tab) -> None:
        """The server's own worker, which stores uploads."""
        page = tab.go("/ui/workers")
        expect(page.locator("tbody tr")).not_to_have_count(0)
        expect(page.locator("tbody")).to_contain_text("uploads")

    def test_marks_a_worker_whose_loop_is_blocked(self, tab: Tab, running: RunningServer) -> None:
        job = job_ref("mails", "m-7")
        report = WorkerReport(
            host="build-3", pid=7, queues=["mails"], serving=1, slots=4, running=0, jobs=[],
            blocked=BlockedLoop(41.7, "send-mail", job), release="9.8",
            handlers=[HandlerReport("mails", "send-mail")], handling=1,
        )  # fmt: skip

        async def tell() -> None:
            async with Engine(f"unix://{running.store}") as engine:
                await engine.workers.report("stuck", report, lasts=minutes(10))

        with ThreadPoolExecutor(1) as apart:  # Playwright has a loop in this thread
            apart.submit(asyncio.run, tell()).result()
        row = tab.go("/ui/workers").locator("tr", has_text="stuck")
        expect(row.locator(".release")).to_have_text("9.8")
        expect(row.locator(".handlers")).to_have_text("send-mail")
        expect(row.locator(".blocked")).to_contain_text("send-mail")
        expect(row.locator(".blocked a")).to_have_attribute("href", "/ui/queues/mails/jobs/m-7")
        assert tab.faults() == []

    def test_follows_the_theme_of_the_system_until_it_is_switched(self, tab: Tab) -> None:
        def ground() -> str:
            return tab.page.evaluate("getComputedStyle(document.body).backgroundColor")

        # Without its style sheet the page has no background yet.
        eventually(lambda: ground() != "rgba(0, 0, 0, 0)")
        tab.page.emulate_media(color_scheme="light")
        light = ground()
        tab.page.emulate_media(color_scheme="dark")
        dark = ground()
        assert light != dark
        tab.page.click("#theme")
        assert ground() == light
        tab.page.reload()
        assert ground() == light


class TestActions:
    def test_ask_for_confirmation_and_change_the_page(self, tab: Tab, filled: Api) -> None:
        page = tab.go(f"/ui/queues/{filled.queue}")
        page.click("button:text-is('Pause')")
        expect(page.locator("#confirm .question")).to_contain_text("no more jobs")
        page.keyboard.press("Escape")
        assert filled.get().json()["paused"] is False
        tab.do("Pause")
        expect(page.locator("h1 + .state")).to_have_text("paused")
        assert filled.get().json()["paused"] is True
        tab.do("Resume")
        expect(page.locator("h1 + .state")).to_have_count(0)
        assert filled.get().json()["paused"] is False

    def test_of_a_job_change_the_job(self, tab: Tab, filled: Api) -> None:
        root = f"/ui/queues/{filled.queue}/jobs"
        page = tab.go(f"{root}/later")
        expect(page.locator(".note").first).to_contain_text("Why it isn't running")
        expect(page.locator(".note").first).to_contain_text(
            re.compile("due at .* \\d\\d:\\d\\d:\\d\\d UTC")
        )
        page.click("button:text-is('Move')")
        page.fill("#confirm .field input", "7200")
        page.click("#confirm .yes")
        expect(page.locator(".timeline")).to_contain_text("in 1 h 59 min")
        tab.do("Cancel")
        expect(page.locator("h1 + .state")).to_have_text("cancelled")
        tab.go(f"{root}/dead-0")
        tab.do("Retry")
        expect(page.locator("h1 + .state")).to_have_text("ready")
        assert filled.look("dead-0")["state"] == "ready"
        tab.go(f"{root}/dead-1")
        tab.do("Delete")
        page.wait_for_url("**state=dead")
        assert filled.get("/jobs/dead-1").status_code == 404

    def test_of_many_jobs_count_them_before_they_ask(self, tab: Tab, filled: Api) -> None:
        page = tab.go(f"/ui/queues/{filled.queue}?state=waiting&lane=ann")
        page.click("button[data-method]:text-is('Cancel all matches')")
        expect(page.locator("#confirm .question")).to_contain_text("3 jobs.")
        assert tab.faults() == []
        page.click("#confirm .yes")
        expect(page.locator(".empty")).to_be_visible()
        assert filled.get().json()["waiting"] == 0
        page = tab.go(f"/ui/queues/{filled.queue}?state=dead&older=1h")
        expect(page.locator("button[data-method]:text-is('Delete all matches')")).to_have_count(0)
        page = tab.go(f"/ui/queues/{filled.queue}?state=dead")
        tab.do("Delete all dead")
        eventually(lambda: filled.get().json()["dead"] == 0)

    def test_of_a_queue_delete_it_with_its_jobs(self, tab: Tab, api: Api) -> None:
        for n in range(3):
            api.submit(n)
        [job] = api.claim(lease=600)
        tab.go(f"/ui/queues/{api.queue}")
        tab.page.click("button[data-method]:text-is('Delete queue')")
        expect(tab.page.locator("#confirm .question")).to_contain_text("1 leased")
        expect(tab.page.locator("#confirm .yes")).to_be_disabled()
        assert (api.get().json()["ready"], api.get().json()["leased"]) == (2, 1)
        api.say("complete", job)
        tab.complaints.clear()  # the browser's own line about the refusal
        tab.go(f"/ui/queues/{api.queue}")
        tab.do("Delete queue")
        expect(tab.page.locator("h1")).to_have_text("Overview")
        listed = api.client.get("/api/v1/queues").json()["queues"]
        assert api.queue not in [counts["queue"] for counts in listed]
        assert tab.complaints == []

    def test_of_dead_jobs_change_them(self, tab: Tab, filled: Api) -> None:
        page = tab.go(f"/ui/dead?queue={filled.queue}")
        rows = page.locator("#dead-jobs tbody tr")
        page.fill("input[name=text]", "mail1.example")
        page.press("input[name=text]", "Enter")
        expect(rows).to_have_count(1)
        filled.bury("quoted", reason=QUOTED)
        page.fill("input[name=text]", QUOTED)
        page.press("input[name=text]", "Enter")
        tab.do("Retry all matches")
        expect(page.locator("#told")).to_contain_text("1 retried, 3 dead jobs left")
        page.click("text=Show all")
        page.check("input.pick >> nth=0")
        tab.do("Retry selected")
        expect(rows).to_have_count(2)
        tab.do("Delete all")
        expect(page.locator("#live")).to_contain_text("No dead job")
        assert filled.get().json()["dead"] == 0

    def test_of_all_dead_jobs_of_one_error_change_them(self, tab: Tab, filled: Api) -> None:
        for n in range(2):
            filled.bury(f"disk-{n}", reason=f"OSError: disk {n} is full\nline 7")
        page = tab.go(f"/ui/dead?queue={filled.queue}")
        groups, rows = page.locator("#groups tbody tr"), page.locator("#dead-jobs tbody tr")
        expect(groups).to_have_count(2)
        expect(groups.first).to_contain_text("ConnectionError: mail#.example is away")
        page.click("#groups a:has-text('disk # is full')")
        expect(rows).to_have_count(2)
        disk = page.locator("#groups tr", has_text="disk # is full")
        disk.locator("button:text-is('Retry group')").click()
        expect(page.locator("#confirm .question")).to_contain_text("OSError: disk # is full")
        page.click("#confirm .yes")
        expect(page.locator("#told")).to_contain_text("2 retried, 3 dead jobs left")
        expect(groups).to_have_count(1)
        assert filled.look("disk-0")["state"] == "ready"
        page.click("text=Show all")
        tab.do("Delete group")
        expect(page.locator("#told")).to_contain_text("3 deleted, 0 dead jobs left")
        assert filled.get().json()["dead"] == 0
        assert tab.complaints == []
        page = tab.go("/ui/audit")
        expect(page.locator("tbody")).to_contain_text("deleted 3")

    def test_of_schedules_and_keys_change_them(self, tab: Tab, filled: Api) -> None:
        page = tab.go("/ui/schedules")
        row = page.locator("tr", has=page.locator(f"a:text-is('{filled.queue}')"))
        row.locator("button:text-is('Fire now')").click()
        page.click("#confirm .yes")
        expect(page.locator("#told")).to_contain_text("Fired")
        row.locator("button:text-is('Pause')").click()
        page.click("#confirm .yes")
        expect(row.locator(".state")).to_have_text("paused")
        tab.go("/ui/keys")
        page.fill("#new-key [name=name]", "made here")
        page.click("#new-key button")
        expect(page.locator("#secret pre")).to_contain_text("tp_")
        secret = page.locator("#secret pre").inner_text()
        assert tab.running.client(secret).get("/api/v1/queues").status_code == 200
        tab.page.locator("tr", has_text="made here").locator("button:text-is('Rotate')").click()
        page.click("#confirm .yes")
        expect(page.locator("tr", has_text="made here")).to_have_count(2)
        expect(page.locator("#secret pre")).not_to_have_text(secret)
        rotated = page.locator("#secret pre").inner_text()
        assert tab.running.client(rotated).get("/api/v1/queues").status_code == 200
        new = tab.page.locator("tr", has_text=rotated.split("_")[1])
        new.locator("button:text-is('Revoke')").click()
        page.click("#confirm .yes")
        expect(new).to_contain_text("revoked")
        assert tab.complaints == []

    def test_can_be_copied_as_a_command_that_runs(self, tab: Tab, filled: Api) -> None:
        tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = tab.go(f"/ui/queues/{filled.queue}")
        page.click("[aria-label='Copy “Pause” as curl']")
        expect(page.locator("#told")).to_contain_text("Copied")
        command = page.evaluate("navigator.clipboard.readText()")
        assert command.startswith(f"curl -X POST {tab.running.address}/api/v1/queues/")

    def test_are_not_shown_to_those_who_may_only_look(
        self, running: RunningServer, browser: Browser, filled: Api
    ) -> None:
        context = browser.new_context()
        tab = Tab(running, context)
        tab.log_in(made_key(running, "read")[1])
        for path in PAGES:
            page = tab.go(path.format(queue=filled.queue))
            expect(page.locator("button[data-method], input.pick, #new-key")).to_have_count(0)
        context.close()


class TestLive:
    def test_an_open_page_follows_what_happens(self, tab: Tab, api: Api) -> None:
        api.submit(id="first")
        page = tab.go(f"/ui/queues/{api.queue}")
        tab.live()
        api.submit(id="second")
        expect(page.locator("tbody")).to_contain_text("second")
        tab.go("/")
        tab.live()
        api.submit(id="third")
        expect(page.locator(f"#queue-{api.queue} td >> nth=1")).to_have_text("3")

    def test_a_job_that_is_cancelled_while_its_page_is_open_is_shown_as_such(
        self, tab: Tab, api: Api
    ) -> None:
        api.submit(id="first")
        page = tab.go(f"/ui/queues/{api.queue}/jobs/first")
        tab.live()
        api.post("/jobs/first/cancel")
        expect(page.locator("h1 + .state")).to_have_text("cancelled")

    def test_a_schedule_that_another_client_pauses_is_shown_as_paused(
        self, tab: Tab, api: Api
    ) -> None:
        path = f"/api/v1/schedules/{api.queue}/monthly"
        body = {"cron": "0 3 1 * *", "payload": 1}
        api.client.put(path, json=body).raise_for_status()
        page = tab.go("/ui/schedules")
        row = page.locator("tr", has=page.locator(f"a:text-is('{api.queue}')"))
        expect(row).to_contain_text("0 3 1 * *")
        tab.live()
        api.client.patch(path, json={"paused": True}).raise_for_status()
        expect(row.locator(".state")).to_have_text("paused")
        api.client.delete(path).raise_for_status()
        expect(row).to_have_count(0)


class TestByKeyboardAlone:
    def test_a_job_is_found_and_cancelled(self, tab: Tab, filled: Api) -> None:
        page = tab.go("/")
        for _ in range(12):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.id") == "q":
                break
        page.keyboard.type(f"{filled.queue}/later")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("later")
        for _ in range(30):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent") == "Cancel":
                break
        page.keyboard.press("Enter")
        expect(page.locator("#confirm .yes")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("h1 + .state")).to_have_text("cancelled")


def submit_large(running: RunningServer, queue: str, id: str, payload: bytes) -> None:
    """Submits a payload that is too large for a body over HTTP."""

    async def submit() -> None:
        async with Engine(running.said["store"]) as engine:
            await engine.queues.configure(queue, QueueOptions(max_payload=8 * 2**20))
            await engine.submit(queue, payload, id=id)

    with ThreadPoolExecutor(1) as apart:  # Playwright has a loop in this thread
        apart.submit(asyncio.run, submit()).result()


class TestHostileContent:
    def test_is_shown_as_text_wherever_users_write(self, tab: Tab, api: Api) -> None:
        id = MARKUP + RIGHT_TO_LEFT
        options = {"lane": MARKUP, "headers": {"handler": MARKUP, "x-note": MARKUP}}
        api.submit({"text": MARKUP, MARKUP: 1}, id=id, **options)
        api.submit(MARKUP, id="behind", lane=MARKUP)
        [job] = api.claim(worker=MARKUP)
        api.say("renew", job, progress=MARKUP)
        quoted = api.client.build_request("GET", "/", params={"q": id}).url.query.decode()[2:]
        place = f"/ui/queues/{api.queue}/jobs/{quoted.replace('+', '%20')}"
        body = {"every": "1h", "payload": MARKUP}
        name = quoted.replace("+", "%20")
        api.client.put(f"/api/v1/schedules/{api.queue}/{name}", json=body).raise_for_status()
        seen = [place, f"/ui/queues/{api.queue}?state=leased", "/ui/schedules"]
        seen += [f"/ui/queues/{api.queue}?state=waiting&lane={name}&handler={name}&text={name}"]
        for path in seen:
            expect(tab.go(path).locator("h1")).to_be_visible()
        api.say("fail", job, reason=MARKUP, dead=True)
        seen += [place, f"/ui/dead?queue={api.queue}&text={name}", f"/ui/search?q={name}"]
        seen += [f"/ui/queues/{api.queue}?state=waiting", "/ui/audit", f"/ui/{name}"]
        for path in seen:
            page = tab.go(path)
            assert page.locator("img, svg[onload], main script").count() == 0, path
        tab.go(place)
        expect(tab.page.locator("h1")).to_contain_text("<img src=x")
        expect(tab.page.locator("pre").first).to_contain_text("{{7*7}}")
        tab.do("Retry")
        expect(tab.page.locator("h1 + .state")).not_to_have_text("dead")
        made = tab.running.client().post("/api/v1/keys", json={"name": MARKUP, "scopes": ["read"]})
        assert made.status_code == 201
        tab.go("/ui/keys")
        assert [complaint for complaint in tab.complaints if "404" not in complaint] == []

    def test_of_any_size_and_kind_is_shown_without_a_fault(
        self, tab: Tab, running: RunningServer, api: Api
    ) -> None:
        submit_large(running, api.queue, "large", b'"' + b"x" * 5_000_000 + b'"')
        api.post("/jobs", {"id": "bytes", "payload_base64": "AAECA//+gIE="})
        api.submit("a\x00b\x1b[31mred\u202e\u0085", id="control")
        page = tab.go(f"/ui/queues/{api.queue}/jobs/large")
        expect(page.locator("main")).to_contain_text("Only the beginning is shown")
        assert len(page.content()) < 200_000
        tab.go(f"/ui/queues/{api.queue}/jobs/bytes")
        expect(page.locator("pre").first).to_contain_text("00010203")
        tab.go(f"/ui/queues/{api.queue}/jobs/control")
        expect(page.locator("pre").first).to_contain_text("red")
        long = "i" * 20_000
        for path in (f"/ui/queues/{api.queue}/jobs/{long}", f"/ui/search?q={long}"):
            answer = tab.context.request.get(running.address + path)
            assert answer.status == 422
        assert tab.complaints == []
        whole = tab.context.request.get(
            f"{running.address}/ui/queues/{api.queue}/jobs/large/payload"
        )
        assert len(whole.body()) == 5_000_002
        assert whole.headers["content-disposition"].startswith("attachment")

    def test_a_page_of_another_site_can_change_nothing(self, tab: Tab, api: Api) -> None:
        api.submit()
        target = f"{tab.running.address}/api/v1/queues/{api.queue}/pause"
        page = tab.page
        page.route("http://evil.example/", lambda route: route.fulfill(
            content_type="text/html",
            body=f"<form method=post action='{target}'><input name=a></form>"
            "<script>document.forms[0].submit()</script>",
        ))  # fmt: skip
        page.goto("http://evil.example/")
        page.wait_for_url("**/pause")
        expect(page.locator("h1")).to_have_text("Log in to Towpath")
        assert api.get().json()["paused"] is False
