"""What an operator sees first: queues without workers, what a job waits for, and no button that
does more than the page shows.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.dashboard.browsing import Tab
from tests.dashboard.sessions import SessionClient, log_in
from tests.dashboard.test_browser import made_key
from tests.dashboard.test_odd_input import park
from tests.server.serving import Api, RunningServer, up
from tests.waiting import eventually
from towpath.embedded.process import ask
from towpath.engine.keys import keys_of
from towpath.ids import QueueName

WRONG_TYPE = "<h1>Wrong key type</h1>"
"""The title of the page that refuses a queue whose data can't be read: the code of the error."""
MENU = re.compile(r'<nav class="menu".*?</nav>', re.DOTALL)


class Spoilt:
    """A queue whose data in Redis cannot be read, until it is repaired."""

    def __init__(self, running: RunningServer, api: Api) -> None:
        self.api, self._store = api, running.store
        self._key = keys_of(QueueName(api.queue)).queue
        self._is_spoilt = False

    def spoil(self) -> None:
        ask(self._store, "RENAME", self._key, f"{self._key}-hidden")
        ask(self._store, "SET", self._key, "not a sorted set")
        self._is_spoilt = True

    def mend(self) -> None:
        if self._is_spoilt:
            ask(self._store, "RENAME", f"{self._key}-hidden", self._key)
            self._is_spoilt = False


class TestAQueueWithoutAWorker:
    def test_is_marked_until_a_worker_asks_for_its_jobs(self, tab: Tab, api: Api) -> None:
        api.submit(id="lonely")
        row = tab.go("/").locator(f"#queue-{api.queue}")
        expect(row).to_contain_text("no worker")
        tab.live()
        assert tab.faults() == []
        assert api.get().json()["no_worker"] is True
        [job] = api.claim()
        api.say("release", job)
        expect(row).not_to_contain_text("no worker")
        expect(row.locator("td").nth(1)).to_have_text("1")
        assert tab.complaints == []

    def test_is_marked_on_its_own_page_and_on_the_pages_of_its_jobs(
        self, tab: Tab, api: Api
    ) -> None:
        api.submit(id="lonely")
        page = tab.go(f"/ui/queues/{api.queue}")
        page.click("h1 + a:text-is('no worker')")
        expect(page.locator("h1")).to_have_text("Workers")
        why = tab.go(f"/ui/queues/{api.queue}/jobs/lonely").locator("#live > .note")
        expect(why).to_contain_text("none has ever asked")
        expect(why).to_contain_text("No job is before it.")
        expect(why).to_contain_text(f"Start a worker for the queue {api.queue}.")
        assert tab.faults() == []

    def test_of_an_application_is_marked_on_the_page_of_the_application(
        self, tmp_path: Path
    ) -> None:
        """On a server of its own: others' tests ask for messages."""
        with up(tmp_path) as alone:
            head = {"repository": "octo/alone", "head": "b" * 40, "number": 3}
            answer = alone.client().post("/api/v1/reviews", json=head)
            session = log_in(alone, alone.key)
            assert "so they stay PENDING" in session.look("/ui/reviews")
            sent = f"/api/v1/reviews/{answer.json()['id']}/cancel"
            alone.client().post(sent).raise_for_status()
            assert "so they stay PENDING" not in session.look("/ui/reviews")
            message = {"user_id": "u", "org_id": "o", "client_id": "web", "message": "hello"}
            alone.client().post("/api/v1/message", json=message).raise_for_status()
            assert "No consumer asks for messages" in session.look("/ui/messages")


class TestAQueueThatCannotBeRead:
    @pytest.fixture
    def spoilt(self, running: RunningServer, queue: str) -> Iterator[Spoilt]:
        bad = Spoilt(running, running.api(f"{queue}-spoilt"))
        bad.api.submit(1)
        bad.spoil()
        yield bad
        bad.mend()

    def test_is_named_beside_the_others_until_it_can_be_read(
        self, tab: Tab, api: Api, spoilt: Spoilt
    ) -> None:
        api.submit(1)
        page = tab.go("/")
        expect(page.locator("#unreadable a")).to_have_text([spoilt.api.queue])
        expect(page.locator(f"#queue-{api.queue}")).to_be_visible()
        expect(page.locator(f"#queue-{spoilt.api.queue}")).to_have_count(0)
        assert tab.faults() == []
        tab.live()
        spoilt.mend()
        expect(page.locator(f"#queue-{spoilt.api.queue}")).to_be_visible()
        expect(page.locator("#unreadable")).to_have_count(0)
        assert tab.complaints == []

    def test_has_a_page_that_says_why(self, admin: SessionClient, spoilt: Spoilt) -> None:
        assert WRONG_TYPE in admin.look(f"/ui/queues/{spoilt.api.queue}", 503)
        assert WRONG_TYPE in admin.look("/ui/dead", 503, queue=spoilt.api.queue)

    def test_is_not_shown_to_keys_that_do_not_cover_it(
        self, running: RunningServer, api: Api, spoilt: Spoilt
    ) -> None:
        api.submit(1)
        session = log_in(running, made_key(running, "read", queues=(api.queue,))[1])
        session.look(f"/ui/queues/{api.queue}")  # a new queue is looked for
        page = session.look("/")
        assert f'id="queue-{api.queue}"' in page
        assert spoilt.api.queue not in page
        assert WRONG_TYPE not in session.look(f"/ui/queues/{spoilt.api.queue}", 403)
        assert WRONG_TYPE not in session.look("/ui/dead", 404, queue=spoilt.api.queue)


class TestAJobOfAParkedLane:
    def test_links_to_the_dead_job_which_can_be_dropped(
        self, tab: Tab, running: RunningServer, api: Api
    ) -> None:
        park(running, api.queue)
        for id in ("first", "second"):
            api.submit(id=id, lane="ann")
        [job] = api.claim()
        api.say("fail", job, reason="no such street", dead=True)
        page = tab.go(f"/ui/queues/{api.queue}/jobs/second")
        why = page.locator("#live > .note")
        expect(why.locator("a:has-text('first') + .state")).to_have_text("dead")
        expect(why).to_contain_text("1 job before it in its lane.")
        assert tab.faults() == []
        tab.do("Drop")
        expect(page.locator("h1 + .state")).to_have_text("ready")
        assert tab.complaints == []

    def test_has_no_button_for_users_who_may_only_look(
        self, running: RunningServer, api: Api
    ) -> None:
        park(running, api.queue)
        for id in ("first", "second"):
            api.submit(id=id, lane="ann")
        [job] = api.claim()
        api.say("fail", job, reason="no such street", dead=True)
        reader = log_in(running, made_key(running, "read")[1])
        page = reader.look(f"/ui/queues/{api.queue}/jobs/second")
        assert "jobs/first" in page
        assert "data-method" not in page


@pytest.mark.parametrize(
    ("shown", "buttons"),
    [
        ({}, ["Retry selected", "Retry all", "Delete all"]),
        ({"text": "timeout"}, ["Retry selected", "Retry all matches", "Delete all matches"]),
        ({"group": "{group}"}, ["Retry selected"]),
    ],
)
def test_no_button_above_some_dead_jobs_changes_other_jobs(
    admin: SessionClient, api: Api, shown: dict[str, str], buttons: list[str]
) -> None:
    api.bury("a", reason="timeout")
    api.bury("b", reason="no route")
    whole = admin.look("/ui/dead", queue=api.queue)
    [group, *_] = re.findall(r'id="group-([^"]+)"', whole)
    asked = {name: text.format(group=group) for name, text in shown.items()}
    page = admin.client.get("/ui/dead", params={"queue": api.queue, **asked}).text
    above = page[page.index("<h1>") : page.index('aria-label="Queues with dead jobs"')]
    assert re.findall(r"data-method[^>]*>([^<]+)</button>", above) == buttons


class TestTypedValues:
    def test_an_invalid_time_moves_no_job(self, tab: Tab, api: Api) -> None:
        """An empty field is not 0, which would run the job now."""
        api.submit(id="later", delay=7200)
        page = tab.go(f"/ui/queues/{api.queue}/jobs/later")
        page.click("button[data-method]:text-is('Move')")
        for wrong in ("", "-5", "99999999999"):
            page.fill("#confirm input", wrong)
            page.click("#confirm .yes")
            assert page.locator("#confirm").evaluate("it => it.open"), wrong
        assert api.look("later")["state"] == "delayed"
        page.fill("#confirm input", "60")
        page.click("#confirm summary")
        expect(page.locator("#confirm pre")).to_contain_text("-d '{\"delay\":60}'")
        page.click("#confirm .yes")
        expect(page.locator("#told")).to_contain_text("Moved.")
        expect(page.locator("#live > .note")).to_contain_text("due at")
        page.click("button[data-method]:text-is('Cancel')")  # a hidden field is not required
        page.click("#confirm .yes")
        expect(page.locator("h1 + .state")).to_have_text("cancelled")
        assert tab.complaints == []

    def test_a_key_needs_a_scope_and_its_queues_may_have_commas(self, tab: Tab) -> None:
        page = tab.go("/ui/keys")
        page.fill("#new-key [name=name]", "typed here")
        page.uncheck("#new-key [value=read]")
        page.fill("#new-key [name=queues]", "mails, chat,")
        page.fill("#new-key [name=owner]", "the shop")
        page.click("#new-key button")
        expect(page.locator("#told")).to_contain_text("Select at least one scope.")
        page.check("#new-key [value=read]")
        page.click("#new-key button")
        expect(page.locator("#secret pre")).to_contain_text("tp_")
        expect(page.locator("tr", has_text="typed here")).to_contain_text("mails chat")
        expect(page.locator("tr", has_text="typed here")).to_contain_text("the shop")
        assert tab.complaints == []


class TestACommand:
    def test_of_selected_jobs_names_them(self, tab: Tab, running: RunningServer, api: Api) -> None:
        for id in ("it's", "other"):
            api.bury(id, reason="no route")
        tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = tab.go(f"/ui/dead?queue={api.queue}")
        page.click("[aria-label='Copy “Retry selected” as curl']")
        expect(page.locator("#told")).to_contain_text("Select some jobs first.")
        page.check('[aria-label="Select it\'s"]')
        page.click("[aria-label='Copy “Retry selected” as curl']")
        expect(page.locator("#told")).to_contain_text("TOWPATH_API_KEY")
        command = page.evaluate("navigator.clipboard.readText()")
        environment = {**os.environ, "TOWPATH_API_KEY": running.key}
        done = subprocess.run(
            ["sh", "-c", f"{command} -s"], env=environment, capture_output=True, check=True
        )
        assert done.stdout == b'{"retried":1,"left":1}'
        assert api.look("it's")["state"] == "ready"
        assert tab.complaints == []


class TestButtonsOfJobs:
    """Only those are shown that the key of the login session may use."""

    @staticmethod
    def buttons(
        running: RunningServer, path: str, *scopes: str, owner: str = "", queue: str = "*"
    ) -> set[str]:
        _, secret = running.make_key(*scopes, owner=owner or None, queues=(queue,))
        session = log_in(running, secret)
        if queue != "*":  # pages know of a new queue after a moment
            eventually(lambda: queue in session.look(path))
        page = session.look(path)
        return set(re.findall(r">(Move|Cancel|Fire now|Pause|Delete)</button>", page))

    def test_of_another_owner_need_manage(self, running: RunningServer, api: Api) -> None:
        _, secret = running.make_key("submit", owner="shop")
        running.api(api.queue, secret).submit(1, id="a")
        path = f"/ui/queues/{api.queue}/jobs/a"
        assert self.buttons(running, path, "read", "submit") == set()
        for scopes, owner in (
            (("read", "submit"), "shop"),
            (("read", "submit", "manage"), ""),
            (("admin",), ""),
        ):
            assert self.buttons(running, path, *scopes, owner=owner) == {"Move", "Cancel"}

    def test_of_an_applications_queue_need_raw(self, running: RunningServer) -> None:
        running.api("reviews.post").submit(1, id="a", delay=3600)
        path = "/ui/queues/reviews.post/jobs/a"
        assert self.buttons(running, path, "read", "submit", "manage") == set()
        with_raw = ("read", "submit", "manage", "raw")
        assert self.buttons(running, path, *with_raw) == {"Move", "Cancel"}
        running.api("reviews.post").post("/jobs/a/cancel")

    def test_of_a_review_need_its_owner_or_manage(self, running: RunningServer) -> None:
        _, secret = running.make_key("submit", owner="shop")
        task = {"repository": "octo/buttons", "head": "a" * 40, "number": 7}
        answer = running.client(secret).post("/api/v1/reviews", json=task)
        path = f"/ui/reviews/{answer.json()['id']}"
        shown = partial(self.buttons, running, path, "read")
        assert shown("submit") == set()
        assert shown(owner="shop") == set()
        assert shown("submit", owner="shop") == {"Cancel"}
        assert shown("submit", "manage") == {"Cancel"}
        assert shown("admin") == {"Cancel"}

    def test_of_schedules_need_their_owner_or_manage(
        self, running: RunningServer, api: Api
    ) -> None:
        _, secret = running.make_key("submit", owner="shop")
        path, hourly = f"/api/v1/schedules/{api.queue}/hourly", {"every": 3600}
        assert running.client(secret).put(path, json=hourly).status_code == 201
        shown = partial(self.buttons, running, "/ui/schedules", "read", queue=api.queue)
        assert shown() == set()
        assert shown("submit") == {"Fire now"}
        every = {"Fire now", "Pause", "Delete"}
        assert shown("submit", owner="shop") == every
        assert shown("submit", "manage") == every


class TestTheMenu:
    def test_has_no_page_that_the_key_cannot_open(self, running: RunningServer) -> None:
        some = log_in(running, made_key(running, "read", "admin", queues=("mails", "reviews"))[1])
        links = re.findall(r'href="([^"]+)"', MENU.findall(some.look("/"))[0])
        assert "/ui/reviews" in links
        assert not {"/ui/messages", "/ui/issues", "/ui/uploads", "/ui/keys"} & set(links)
        assert [some.get(link).status_code for link in links] == [200] * len(links)

    def test_has_all_pages_for_a_key_of_all_queues(self, admin: SessionClient) -> None:
        links = re.findall(r'href="([^"]+)"', MENU.findall(admin.look("/"))[0])
        assert {"/ui/messages", "/ui/issues", "/ui/uploads", "/ui/keys", "/ui/audit"} <= set(links)


def test_an_error_shows_commands_as_commands(running: RunningServer) -> None:
    reader = log_in(running, made_key(running, "read")[1])
    page = reader.look("/ui/keys", status=403)
    assert "<code>admin</code>" in page
    assert "`" not in page[page.index("<main") :]
