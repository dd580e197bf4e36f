"""The dashboard on a phone: at its width, every button is in sight."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.browsing import Tab
from tests.dashboard.test_odd_input import park
from tests.server.serving import Api, RunningServer
from tests.waiting import eventually

WIDTH = 390
LONG = (
    "ConnectionResetError: the mail server of example.org closed the connection after the greeting"
)
PUSHED = "main button:visible, main a:text-is('Download'):visible"


@pytest.fixture
def phone(running: RunningServer, browser: Browser) -> Iterator[Tab]:
    context = browser.new_context(
        viewport={"width": WIDTH, "height": 800}, has_touch=True, reduced_motion="reduce"
    )
    tab = Tab(running, context)
    tab.log_in(running.key)
    yield tab
    context.close()


def beyond(page: Page) -> list[str]:
    """Buttons that lie beyond the edge of the screen."""
    found: list[str] = []
    for button in page.locator(PUSHED).all():
        box = button.bounding_box()
        assert box is not None
        if box["x"] < 0 or box["x"] + box["width"] > WIDTH:
            found.append(f"{button.inner_text()} {box}")
    return found


def cut_off(page: Page) -> list[str]:
    """Tables that go on beyond the edge."""
    script = (
        "it => it.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.ariaLabel)"
    )
    return page.locator(".scroll").evaluate_all(script)


def posted(client: httpx.Client, path: str, **body: object) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code in (200, 201, 202), answer.text
    return answer.json()


def test_groups_of_dead_jobs_are_retried_and_deleted_on_a_phone(phone: Tab, api: Api) -> None:
    for n in range(3):
        api.bury(f"a-rather-long-name-of-a-job-{n}", reason=f"{LONG} {'x' * n}")
    page = phone.go(f"/ui/dead?queue={api.queue}")
    expect(page.locator("#groups tbody tr")).to_have_count(3)
    assert page.locator("#groups button:text-is('Delete group')").count() == 3
    assert (beyond(page), cut_off(page)) == ([], [])
    phone.picture("phone-dead")
    page.locator("#groups button:text-is('Retry group')").last.tap()
    page.locator("#confirm .yes").tap()
    expect(page.locator("#told")).to_contain_text("1 retried, 2 dead jobs left")
    assert phone.fits()
    assert phone.faults() == []
    assert phone.complaints == []


def test_the_overview_shows_all_columns_of_a_queue_on_a_phone(phone: Tab, api: Api) -> None:
    api.bury("dead-one")
    for n in range(3):
        api.submit(id=f"job-{n}", lane="one")
    api.submit(id="later", delay=3600)
    page = phone.go("/")
    row = page.locator(f"#queue-{api.queue}")
    expect(row).to_be_visible()
    assert (beyond(page), cut_off(page)) == ([], [])

    def shows_all() -> bool:
        """Viewers share an overview that may be a moment old."""
        shown = row.locator("td:visible").evaluate_all(
            "all => all.map(one => getComputedStyle(one, '::before').content + one.innerText)"
        )
        told = " ".join(shown).replace('"', "")
        facts = ("Ready 1", "Waiting 2", "Delayed 1", "Dead 1")
        return all(fact in told for fact in facts) and "Leased" not in told  # none is

    eventually(shows_all)
    assert phone.fits()
    assert phone.faults() == []
    phone.picture("phone-overview")


def test_every_row_with_buttons_fits_a_phone(phone: Tab, running: RunningServer, api: Api) -> None:
    park(running, api.queue)
    for id in ("first-of-its-lane", "second-of-its-lane"):
        api.submit(id=id, lane="a-lane-with-a-long-name")
    [job] = api.claim()
    api.say("fail", job, reason=LONG, dead=True)
    client, name = api.client, "a-schedule-whose-name-is-rather-long"
    schedule = f"/api/v1/schedules/{api.queue}/{name}"
    client.put(
        schedule, json={"cron": "*/5 1-7 * * 1,3,5", "tz": "Europe/Berlin"}
    ).raise_for_status()
    sent: list[str] = []
    for n in range(2):
        message = {"user_id": "somebody-on-a-phone", "org_id": "o", "client_id": "web"}
        told = posted(client, "/api/v1/message", message="hello", **message)
        sent.append(told["message_id"])
        posted(
            client, "/api/v1/timers", task_type="phone.reminder", task_id=f"order-{n}", delay=600
        )
        posted(client, "/api/v1/uploads", name=f"holidays-in-the-mountains-{n}.mp4", size=9)
    for path in (
        f"/ui/queues/{api.queue}?state=waiting", "/ui/schedules", "/ui/keys", "/ui/uploads",
        "/ui/messages?user=somebody-on-a-phone", "/ui/timers?task_type=phone.reminder",
    ):  # fmt: skip
        page = phone.go(path)
        expect(page.locator("main table button").first).to_be_visible()
        assert (beyond(page), cut_off(page)) == ([], []), path
        assert phone.fits(), path
        expect(page.locator(".menu [aria-current]")).to_be_in_viewport(ratio=1)
        assert phone.faults() == [], path
        phone.picture("phone-" + path.split("?")[0].rpartition("/")[2])
    assert phone.complaints == []
    client.delete(schedule).raise_for_status()
    for id in sent:  # no other claim gets them
        posted(client, f"/api/v1/message/{id}/cancel")
