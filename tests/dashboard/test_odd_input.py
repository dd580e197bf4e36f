"""The dashboard in unusual situations: the object of a page is deleted, or is far too large."""

import asyncio
import http.client
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from playwright.sync_api import expect

from tests.dashboard.browsing import Tab
from tests.dashboard.sessions import COOKIE, SessionClient
from tests.server.serving import Api, RunningServer
from tests.waiting import HANGS, eventually
from towpath import Engine
from towpath.engine.options import LanePolicy, QueueOptions
from towpath.ledger.ledger import Ledger

DROPPED = """([name, text]) => {
  const carried = new DataTransfer();
  carried.items.add(new File([text], name));
  const zone = document.getElementById("drop");
  const about = {dataTransfer: carried, bubbles: true, cancelable: true};
  for (const kind of ["dragenter", "dragover", "drop"])
    zone.dispatchEvent(new DragEvent(kind, about));
}"""


def remove(running: RunningServer, queue: str) -> bool:
    """Removes a queue; in a function, because Playwright has a loop in this thread."""

    async def removed() -> bool:
        async with Engine(running.said["store"]) as engine:
            return await engine.queues.delete(queue)

    with ThreadPoolExecutor(1) as apart:
        return apart.submit(asyncio.run, removed()).result()


def park(running: RunningServer, queue: str) -> None:
    """Parks the lanes of a queue behind a dead job."""

    async def configured() -> None:
        async with Engine(running.said["store"]) as engine:
            await engine.queues.configure(queue, QueueOptions(lanes=LanePolicy.PARK))

    with ThreadPoolExecutor(1) as apart:
        apart.submit(asyncio.run, configured()).result()


def test_a_queue_that_is_removed_while_its_page_is_open_is_shown_as_gone(
    tab: Tab, running: RunningServer, api: Api
) -> None:
    api.post("/pause")
    api.post("/resume")
    page = tab.go(f"/ui/queues/{api.queue}")
    expect(page.locator("h1")).to_have_text(api.queue)
    tab.live()
    assert remove(running, api.queue)
    expect(page.locator("#told .note.warn").first).to_be_visible()
    answer = page.reload()
    assert answer is not None
    assert answer.status == 404


def expire_sessions(running: RunningServer) -> None:
    """Lets twelve hours pass for every login session."""

    async def expired() -> None:
        async with Ledger(running.database) as ledger:
            await ledger.write(
                lambda connection: connection.exec_driver_sql(
                    "UPDATE towpath_logins SET expires_at = 0"
                )
            )

    with ThreadPoolExecutor(1) as apart:
        apart.submit(asyncio.run, expired()).result()


def test_a_login_session_that_expires_under_an_open_page_changes_nothing_and_asks_for_the_key(
    tab: Tab, running: RunningServer, api: Api
) -> None:
    api.submit()
    place = f"/ui/queues/{api.queue}"
    page = tab.go(place)
    page.click("button:text-is('Pause')")
    expire_sessions(running)
    eventually(lambda: tab.context.request.get(running.address + place).status == 401)
    page.click("#confirm .yes")
    expect(page.locator("h1")).to_have_text("Log in to Towpath")
    expect(page.get_by_role("alert")).to_have_text("Your session has ended. Log in again.")
    assert api.get().json()["paused"] is False
    page.fill("#key", running.key)
    page.press("#key", "Enter")
    expect(page.locator("h1")).to_have_text(api.queue)


def test_a_name_from_right_to_left_does_not_affect_its_neighbours(tab: Tab, api: Api) -> None:
    """An override without an end affects all that follows, unless it is isolated."""
    api.submit(id="\u202eabc", headers={"handler": "\u202exyz"})
    page = tab.go(f"/ui/queues/{api.queue}/jobs/%E2%80%AEabc")
    beside = page.locator("h1 + .state").evaluate("it => getComputedStyle(it).direction")
    title, state = page.locator("h1").bounding_box(), page.locator("h1 + .state").bounding_box()
    assert title is not None
    assert state is not None
    assert (beside, title["x"] < state["x"]) == ("ltr", True)
    tab.go(f"/ui/queues/{api.queue}")
    for name in ("abc", "xyz"):
        assert page.locator("tbody bdi", has_text=name).count() == 1
    assert tab.complaints == []


@pytest.mark.parametrize(
    "path", ["/ui/queues/x/jobs/{}", "/ui/queues/{}", "/ui/search?q={}", "/ui/dead?queue=x&text={}"]
)
def test_a_name_of_100_000_characters_is_refused(admin: SessionClient, path: str) -> None:
    """Sent without httpx, which refuses such an address."""
    url = admin.client.base_url
    cookie = f"{COOKIE}={admin.client.cookies[COOKIE]}"
    connection = http.client.HTTPConnection(url.host, url.port, timeout=HANGS)
    with closing(connection):
        connection.request("GET", path.format("x" * 100_000), headers={"Cookie": cookie})
        answer = connection.getresponse()
        assert 400 <= answer.status < 500
        assert b"x" * 10_000 not in answer.read()
    assert admin.get("/").status_code == 200


def test_a_parked_lane_is_dropped(tab: Tab, running: RunningServer, api: Api) -> None:
    park(running, api.queue)
    api.submit(id="first", lane="ann")
    api.submit(id="second", lane="ann")
    [job] = api.claim()
    api.say("fail", job, reason="broken", dead=True)
    page = tab.go(f"/ui/queues/{api.queue}?state=waiting")
    expect(page.locator("tbody")).to_contain_text("first")
    tab.do("Drop")
    expect(page.locator("#told")).to_contain_text("The lane continues.")
    assert api.look("second")["state"] == "ready"
    assert api.look("first")["state"] == "dead"
    assert tab.complaints == []


def test_a_schedule_is_deleted(tab: Tab, api: Api) -> None:
    body = {"every": "1h", "payload": 1}
    api.client.put(f"/api/v1/schedules/{api.queue}/hourly", json=body).raise_for_status()
    page = tab.go("/ui/schedules")
    row = page.locator("tr", has=page.locator(f"a:text-is('{api.queue}')"))
    row.locator("button:text-is('Delete')").click()
    page.click("#confirm .yes")
    expect(page.locator("#told")).to_contain_text("Deleted.")
    expect(row).to_have_count(0)
    found = api.client.get(f"/api/v1/schedules/{api.queue}/hourly")
    assert found.status_code == 404
    assert tab.complaints == []


def test_a_file_that_is_dropped_on_the_page_is_uploaded(tab: Tab) -> None:
    page = tab.go("/ui/uploads")
    page.evaluate(DROPPED, ["dropped.txt", "carried here"])
    expect(page.locator("#sending")).to_contain_text("completed")
    row = page.locator("tbody tr", has_text="dropped.txt")
    expect(row).to_contain_text("COMPLETED")
    link = row.locator("a").first.get_attribute("href") or ""
    assert tab.running.client().get(link).content == b"carried here"
    assert tab.complaints == []
