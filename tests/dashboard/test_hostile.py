"""Text of strangers in a real browser: every field that a page shows has markup in it, and all of
it is shown as text. A browser that took any of it for markup would have an additional element.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.browsing import Tab
from tests.server.serving import Api, RunningServer, up
from tests.waiting import eventually
from towpath import Engine
from towpath.clock import minutes, wall_ms
from towpath.engine.model import job_ref
from towpath.engine.worker_registry import BlockedLoop, HandlerReport, RunningJob, WorkerReport

HEAD = "a" * 40
QUEUE = "strangers"
REVIEWER = """
import json, sys
task = json.load(sys.stdin)
if task["number"] == 8:
    sys.exit(sys.argv[2])
comments = [{"path": sys.argv[4], "line": 3, "body": sys.argv[3]}]
print(json.dumps({"summary": sys.argv[1], "verdict": "comment", "comments": comments}))
"""
TAKEN = "document.querySelectorAll('[data-planted]').length"
"""How many elements there are that somebody wrote into a field."""
SHOWN = "document.title + '\\n' + document.body.innerText"


def planted(field: str) -> str:
    """Ends an attribute in either kind of quotes, and adds an element that would run a script."""
    return f"{field}'\"><img data-planted src=x onerror=alert(1)>"


def quoted(field: str) -> str:
    return quote(planted(field), safe="")


SEEN = {
    "job-id", "lane", "handler", "header", "payload", "payload-name", "worker",
    "progress", "reason", "result", "second-id", "schedule", "living", "host", "at-work",
    "user", "message", "metadata", "organization", "client",
    "branch", "subject", "author", "said", "comment", "path", "last-error",
    "timer-type", "timer-id", "timer-app", "timer-params", "timer-error",
    "file", "title", "label", "body", "outcome", "key",
    "text-of-search", "unknown-page",
}  # fmt: skip
"""The fields that strangers fill in and that some page shows."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of its own, with a reviewer that returns hostile text."""
    said = [planted(field) for field in ("said", "last-error", "comment", "path")]
    words = [sys.executable, "-c", REVIEWER, *said]
    env = {"TOWPATH_REVIEWS__REVIEWER_COMMAND": json.dumps(words)}
    with up(tmp_path_factory.mktemp("strangers"), **env) as running:
        yield running


@pytest.fixture
def visitor(place: RunningServer, browser: Browser) -> Iterator[Tab]:
    """A client whose key has such a name, too."""
    body = {"name": planted("key"), "scopes": ["admin"]}
    secret = posted(place.client(), "/api/v1/keys", **body)["secret"]
    context = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    tab = Tab(place, context)
    tab.log_in(secret)
    yield tab
    context.close()


def posted(client: httpx.Client, path: str, **body: object) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code in (200, 201, 202), answer.text
    return answer.json()


# ── places for text of strangers, each with the pages that show it ───────────────────────


def jobs(api: Api) -> list[str]:
    """A running job, a job behind it, a done and a dead one."""
    headers = {"handler": planted("handler"), "x-note": planted("header")}
    payload = {"text": planted("payload"), planted("payload-name"): 1}
    api.submit(payload, id=planted("job-id"), lane=planted("lane"), headers=headers)
    api.submit(1, id=planted("behind"), lane=planted("lane"))
    [job] = api.claim(worker=planted("worker"), lease=600)
    assert api.say("renew", job, progress=planted("progress")).is_success
    api.submit(1, id="ended", keep=600)
    [other] = api.claim()
    assert api.say("complete", other, result=planted("result")).is_success
    api.submit(1, id=planted("second-id"), headers=headers)
    [dying] = api.claim(worker=planted("worker"))
    assert api.say("fail", dying, reason=planted("reason"), dead=True).is_success
    root = f"/ui/queues/{api.queue}"
    return [
        "/", f"{root}?state=leased", f"{root}?state=waiting", f"{root}?state=dead",
        f"{root}?state=done", f"{root}/jobs/{quoted('job-id')}", f"{root}/jobs/{quoted('behind')}",
        f"{root}/jobs/ended", f"{root}/jobs/{quoted('second-id')}", "/ui/dead",
        f"/ui/dead?queue={api.queue}&text={quoted('reason')}",
    ]  # fmt: skip


def addresses(api: Api) -> list[str]:
    """Text in addresses: filters, cursors, searches, names of missing objects."""
    root, text = f"/ui/queues/{api.queue}", quoted("text-of-search")
    searches = [f"/ui/search?q={text}", f"/ui/search?q={text}&by=id"]
    searches += [f"/ui/search?q={quoted(by)}&by={by}" for by in ("lane", "handler")]
    return [
        *searches, f"/ui/search?q={quoted('reason')}&by=error", f"/ui/search?q=dead&by={text}",
        f"{root}?state=ready&lane={text}&handler={text}", f"{root}?state=dead&text={text}",
        f"{root}?state={text}", f"{root}?last={text}", f"{root}?state=ready&after={text}",
        f"/ui/dead?queue={text}", f"/ui/dead?queue={api.queue}&text={text}&group=x&after={text}",
        f"/ui/schedules?within={text}", f"/ui/schedules?after={text}", f"/ui/audit?after={text}",
        f"/ui/issues?agent={text}&after={text}", f"/ui/messages?user={text}",
        f"/ui/timers?task_type={text}&app={text}&after={text}", f"/ui/uploads?after={text}",
        f"/ui/reviews?state={text}", f"/ui/reviews?after={text}", f"/ui/reviews/{text}",
        f"/ui/issues/{text}/1", f"{root}/jobs/{text}", f"{root}/jobs/{text}/payload",
        f"/ui/queues/{quoted('unknown-page')}", f"/ui/{quoted('unknown-page')}", f"/docs?x={text}",
    ]  # fmt: skip


def operators(api: Api, place: RunningServer) -> list[str]:
    path = f"/api/v1/schedules/{api.queue}/{quoted('schedule')}"
    api.client.put(path, json={"every": "1h", "payload": planted("x")}).raise_for_status()
    running = RunningJob(job_ref(api.queue, planted("at-work")), wall_ms())
    report = WorkerReport(
        host=planted("host"), pid=1, queues=[api.queue], serving=1, slots=1, running=1,
        jobs=[running], blocked=BlockedLoop(7.5, planted("handler"), running.job),
        release=planted("release"), handlers=[HandlerReport(api.queue, planted("name"))],
    )  # fmt: skip

    async def tell() -> None:
        async with Engine(place.said["store"]) as engine:
            await engine.workers.report(planted("living"), report, lasts=minutes(30))

    with ThreadPoolExecutor(1) as apart:  # Playwright has a loop in this thread
        apart.submit(asyncio.run, tell()).result()
    return ["/ui/schedules", "/ui/workers", "/ui/keys", "/ui/audit"]


def messages(client: httpx.Client) -> list[str]:
    sent = {
        "user_id": planted("user"), "org_id": planted("organization"),
        "client_id": planted("client"), "message": planted("message"),
        "metadata": {planted("metadata"): planted("x")},
    }  # fmt: skip
    ids = [posted(client, "/api/v1/message", **sent)["message_id"] for _ in range(2)]
    posted(client, "/api/v1/queues/messages/claim", worker="w", lease=600)
    pages = [f"/ui/queues/messages/jobs/{quote(id, safe='')}" for id in ids]
    return ["/ui/messages", f"/ui/messages?user={quoted('user')}", *pages]


def reviews(client: httpx.Client) -> list[str]:
    """A review that is completed, and one that fails."""
    about = {
        "repository": "octo/repo", "head": HEAD, "ref": planted("branch").replace(" ", "/"),
        "title": planted("subject"), "author": planted("author"),
    }  # fmt: skip
    ids = [posted(client, "/api/v1/reviews", number=n, **about)["id"] for n in (7, 8)]
    paths = [f"/api/v1/reviews/{quote(id, safe='')}" for id in ids]
    eventually(lambda: client.get(paths[0]).json()["review"])
    eventually(lambda: client.get(paths[1]).json()["last_error"])
    return ["/ui/reviews", *(f"/ui/reviews/{quote(id, safe='')}" for id in ids)]


def timers(client: httpx.Client) -> list[str]:
    kind, app = planted("timer-type"), planted("timer-app")
    params = {"params": {"x": planted("timer-params")}}
    posted(client, "/api/v1/timers", task_type=kind, app=app, task_id="a", delay=600)
    timer = {"task_type": kind, "task_id": planted("timer-id"), "delay": 0, **params}
    posted(client, "/api/v1/timers", **timer)
    types = client.get("/api/v1/timers/types").json()["types"]
    [queue] = [each["queue"] for each in types if each["task_type"] == kind and not each["app"]]
    api = Api(client, queue)
    [job] = api.claim()
    assert api.say("fail", job, reason=planted("timer-error"), dead=True).is_success
    page = f"/ui/queues/{queue}/jobs/{quote(job['id'], safe='')}"
    return ["/ui/timers", f"/ui/timers?task_type={quoted('timer-type')}", page]


def uploads(client: httpx.Client) -> list[str]:
    posted(client, "/api/v1/uploads", name=planted("file"), size=10)
    return ["/ui/uploads"]


def issues(client: httpx.Client) -> list[str]:
    """An issue that an agent has completed, and one that is held."""
    about = {"title": planted("title"), "body": planted("body"), "labels": [planted("label")]}
    for number in (1, 2):
        posted(client, "/api/v1/issues", repository="octo/strange", number=number, **about)
    first = posted(client, "/api/v1/request-task", agent_id="one")
    told = {"token": first["token"], "result": planted("outcome")}
    posted(client, f"/api/v1/tasks/{quote(first['task_id'], safe='')}/complete", **told)
    posted(client, "/api/v1/request-task", agent_id="two")
    root = f"/ui/issues/{quote('octo/strange', safe='')}"
    return ["/ui/issues", f"{root}/1", f"{root}/2"]


# ── what the browser shows ───────────────────────────────────────────────────────────────


def ask_everything(page: Page) -> None:
    """Opens the confirmation of each button, and declines."""
    for button in page.locator("button[data-method]").all()[:8]:
        if button.get_attribute("data-picked") is None:
            button.click()
            expect(page.locator("#confirm")).to_be_visible()
            assert page.evaluate(TAKEN) == 0
            page.keyboard.press("Escape")
            expect(page.locator("#confirm")).to_be_hidden()


def test_every_field_that_a_stranger_fills_in_is_shown_as_text(
    visitor: Tab, place: RunningServer
) -> None:
    api = place.api(QUEUE)
    client = api.client
    pages = [*jobs(api), *messages(client), *reviews(client), *timers(client), *uploads(client)]
    pages += [*issues(client), *addresses(api), *operators(api, place)]
    shown = ""
    for path in pages:
        page = visitor.go(path)
        expect(page.locator("h1, #api").first).to_be_visible()
        shown += page.evaluate(SHOWN)
        assert page.evaluate(TAKEN) == 0, path
        ask_everything(page)
    assert {field for field in SEEN if f"{field}'" not in shown} == set()
    assert [complaint for complaint in visitor.complaints if "status of 4" not in complaint] == []


def test_text_that_an_error_quotes_is_shown_as_text(visitor: Tab, place: RunningServer) -> None:
    """The API names the job that no longer exists."""
    api = place.api("strangers-gone")
    api.bury(planted("gone"))
    page = visitor.go(f"/ui/queues/{api.queue}/jobs/{quoted('gone')}")
    page.click("button:text-is('Retry')")
    assert api.delete(f"/dead/{quoted('gone')}").status_code == 204
    page.click("#confirm .yes")
    expect(page.locator("#told")).to_contain_text("gone'\"><img")
    assert page.evaluate(TAKEN) == 0


def test_a_file_whose_name_is_markup_is_uploaded_and_remembered(visitor: Tab) -> None:
    """Also where it was not finished, and the browser has kept its name."""
    page = visitor.go("/ui/uploads")
    kept = json.dumps({"x": planted("unfinished")})
    page.evaluate("(kept) => localStorage.setItem('towpath-uploads', kept)", kept)
    page.reload()
    expect(page.locator("#unfinished")).to_contain_text("unfinished'\"><img")
    name = planted("chosen").replace("/", "")
    for kind in (planted("kind"), "text/plain"):
        page.set_input_files("#files", [{"name": name, "mimeType": kind, "buffer": b"x"}])
    expect(page.locator("#sending")).to_contain_text("chosen'\"><img")
    expect(page.locator("#sending")).to_contain_text("mime_type = 'kind")
    expect(page.locator("#sending")).to_contain_text("completed")
    assert page.evaluate(TAKEN) == 0
    assert [complaint for complaint in visitor.complaints if "status of 422" not in complaint] == []


@pytest.mark.parametrize("path", [f"/ui/{quoted('x')}?y={quoted('x')}", f"/?login={quoted('x')}"])
def test_the_login_page_shows_the_requested_path_as_text(
    place: RunningServer, browser: Browser, path: str
) -> None:
    context = browser.new_context()
    tab = Tab(place, context)
    page = tab.go(path)
    expect(page.locator("h1")).to_have_text("Log in to Towpath")
    assert page.evaluate(TAKEN) == 0
    assert [complaint for complaint in tab.complaints if "status of 401" not in complaint] == []
    context.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"/api/v1/queues/{quoted('queue')}/jobs", {"payload": 1}),
        ("/api/v1/reviews", {"repository": planted("x"), "head": HEAD, "number": 7}),
        ("/api/v1/reviews", {"repository": "octo/repo", "head": planted("x"), "number": 7}),
        ("/api/v1/issues", {"repository": planted("x"), "number": 1}),
        ("/api/v1/issues", {"repository": "octo/repo", "number": 1, "url": planted("x")}),
        ("/api/v1/request-task", {"agent_id": planted("x")}),
        (f"/api/v1/queues/{QUEUE}/jobs", {"payload": 1, "headers": {planted("x"): "x"}}),
        ("/api/v1/keys", {"name": "x", "scopes": [planted("x")]}),
        ("/api/v1/keys", {"name": "x", "scopes": ["read"], "queues": [planted("x")]}),
    ],
)
def test_names_with_a_restricted_alphabet_accept_no_markup(
    place: RunningServer, path: str, body: dict[str, object]
) -> None:
    assert place.client().post(path, json=body).status_code == 422


@pytest.mark.parametrize(
    "when", [{"cron": planted("x")}, {"cron": "0 3 * * *", "tz": planted("x")}]
)
def test_a_schedule_with_markup_as_its_time_is_refused(
    place: RunningServer, when: dict[str, object]
) -> None:
    answer = place.client().put(f"/api/v1/schedules/{QUEUE}/x", json={"payload": 1, **when})
    assert answer.status_code == 422
