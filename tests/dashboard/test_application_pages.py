"""The pages that applications bring: messages, reviews, timers, uploads, issues."""

import re
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import expect

from tests.dashboard.browsing import Tab
from tests.server.serving import RunningServer

HOSTILE = "<img src=x onerror=alert(1)>"
HEAD = "a" * 40
LATE = re.compile("/chunks/[12]$")


@pytest.fixture
def client(running: RunningServer) -> httpx.Client:
    return running.client()


def posted(client: httpx.Client, path: str, **body: object) -> httpx.Response:
    answer = client.post(path, json=body)
    assert answer.status_code in (200, 201, 202), answer.text
    return answer


def test_the_messages_of_a_user_are_shown_and_cancelled(tab: Tab, client: httpx.Client) -> None:
    sent = {"org_id": "o", "client_id": "web", "message": "hello"}
    for _ in range(3):
        posted(client, "/api/v1/message", user_id=HOSTILE, **sent)
    posted(client, "/api/v1/queues/messages/claim", worker="w", lease=600)
    page = tab.go("/ui/messages")
    page.click(f"a:has-text('{HOSTILE}')")
    expect(page.locator("h1")).to_have_text(HOSTILE)
    expect(page.locator("main h2 >> nth=1")).to_have_text("Waiting: 2")
    assert tab.faults() == []
    page.locator("button:text-is('Cancel')").last.click()
    page.click("#confirm .yes")
    expect(page.locator("main h2 >> nth=1")).to_have_text("Waiting: 1")
    assert tab.complaints == []


def test_a_review_is_shown_cancelled_and_retried(tab: Tab, client: httpx.Client) -> None:
    task = {"repository": "octo/repo", "head": HEAD, "number": 7}
    posted(client, "/api/v1/reviews", **task, title=HOSTILE)
    page = tab.go("/ui/reviews")
    page.click("a:has-text('octo/repo#7')")
    expect(page.locator("h1")).to_have_text("octo/repo#7")
    assert tab.faults() == []
    tab.do("Cancel")
    expect(page.locator("h1 + .state")).to_have_text("CANCELLED")
    tab.do("Retry")
    expect(page.locator("h1 + .state")).to_have_text("PENDING")
    assert tab.complaints == []


def test_timers_are_shown_moved_and_cancelled(tab: Tab, client: httpx.Client) -> None:
    for id in (HOSTILE, "second"):
        posted(client, "/api/v1/timers", task_type="page-test", task_id=id, delay=3600)
    page = tab.go("/ui/timers?task_type=page-test")
    row = page.locator("tr", has_text=HOSTILE)
    expect(row).to_contain_text("in 59 min")
    assert tab.faults() == []
    row.locator("button:text-is('Move')").click()
    page.fill("#confirm .field input", "86400")
    page.click("#confirm .yes")
    expect(row).to_contain_text("in 23 h")
    page.locator("tr", has_text="second").locator("button:text-is('Cancel')").click()
    page.click("#confirm .yes")
    expect(page.locator("tr", has_text="second")).to_contain_text("cancelled")
    assert tab.complaints == []


def test_a_file_is_sent_in_chunks_and_resumed_after_a_reload(
    tab: Tab, client: httpx.Client, tmp_path: Path
) -> None:
    """Half of its chunks are lost on the way, and the page is loaded anew."""
    file = tmp_path / f"{HOSTILE} report.bin".replace("/", "")
    file.write_bytes(bytes(range(256)) * (20 * 2**12))  # three chunks of 8 MiB
    page = tab.go("/ui/uploads")
    sent: list[str] = []
    page.on(
        "request", lambda request: sent.append(request.url) if request.method == "PUT" else None
    )
    page.route(LATE, lambda route: route.abort())
    page.set_input_files("#files", file)
    expect(page.locator("progress").first).not_to_have_attribute("value", "0")
    page.reload()
    expect(page.locator("#unfinished")).to_contain_text("Choose the file again")
    page.unroute(LATE)
    first = len(sent)
    page.set_input_files("#files", file)
    expect(page.locator("#sending")).to_contain_text("completed")
    assert first >= 3
    assert {url.rpartition("/")[2] for url in sent[first:]} == {"1", "2"}
    expect(page.locator("tbody tr").first).to_contain_text("COMPLETED")
    link = page.locator("tbody tr a").first.get_attribute("href") or ""
    assert client.get(link).content == file.read_bytes()
    assert tab.faults() == []
    assert [complaint for complaint in tab.complaints if "ERR_FAILED" not in complaint] == []


def test_an_issue_is_listed_and_opened(tab: Tab, client: httpx.Client) -> None:
    issue = {"repository": "octo/page", "number": 5, "title": HOSTILE, "body": HOSTILE}
    posted(client, "/api/v1/issues", **issue)
    page = tab.go("/ui/issues")
    page.click("a:has-text('octo/page#5')")
    expect(page.locator("h1")).to_have_text(HOSTILE)
    assert tab.faults() == []
    assert page.url.endswith(f"/ui/issues/{quote('octo/page', safe='')}/5")
    assert tab.complaints == []


def test_a_user_whose_only_message_waits_for_a_consumer_is_listed(
    tab: Tab, client: httpx.Client
) -> None:
    """No other message is in front of it: it is ready, and is listed among the waiting ones."""
    message = {"org_id": "o", "client_id": "web", "message": "hello"}
    posted(client, "/api/v1/message", user_id="alone", **message)
    page = tab.go("/ui/messages")
    expect(page.locator("tr", has_text="alone").locator("td").last).to_have_text("1")
    page.click("a:has-text('alone')")
    expect(page.locator("main h2").last).to_have_text("Waiting: 1")
    tab.do("Cancel")
    expect(page.locator("main h2").last).to_have_text("Waiting: 0")
    assert tab.complaints == []
