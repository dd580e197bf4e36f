"""The dashboard where something unusual happens: what is shown goes away, or is far too large."""

import asyncio
import http.client
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from playwright.sync_api import expect

from tests.dashboard.browsing import Tab
from tests.dashboard.visiting import COOKIE, Visitor
from tests.server.serving import PATIENCE, Api, Serving
from towpath import Engine
from towpath.engine.options import LanePolicy, QueueOptions

DROPPED = """([name, text]) => {
  const carried = new DataTransfer();
  carried.items.add(new File([text], name));
  const zone = document.getElementById("drop");
  const about = {dataTransfer: carried, bubbles: true, cancelable: true};
  for (const kind of ["dragenter", "dragover", "drop"])
    zone.dispatchEvent(new DragEvent(kind, about));
}"""


def remove(running: Serving, queue: str) -> bool:
    """Remove a queue; apart, because Playwright has a loop in this thread."""

    async def removed() -> bool:
        async with Engine(running.said["store"]) as engine:
            return await engine.queues.delete(queue)

    with ThreadPoolExecutor(1) as apart:
        return apart.submit(asyncio.run, removed()).result()


def park(running: Serving, queue: str) -> None:
    """Let the lanes of a queue wait behind a dead job."""

    async def configured() -> None:
        async with Engine(running.said["store"]) as engine:
            await engine.queues.configure(queue, QueueOptions(lanes=LanePolicy.PARK))

    with ThreadPoolExecutor(1) as apart:
        apart.submit(asyncio.run, configured()).result()


def test_a_queue_that_is_removed_while_its_page_is_open_is_said_to_be_gone(
    tab: Tab, running: Serving, api: Api
) -> None:
    api.post("/pause")
    api.post("/resume")
    page = tab.go(f"/ui/queues/{api.queue}")
    expect(page.locator("h1")).to_have_text(api.queue)
    tab.live()
    assert remove(running, api.queue)
    expect(page.locator("#told")).to_contain_text("What this page shows no longer exists")
    page.reload()
    expect(page.locator("main")).to_contain_text("no queue")


@pytest.mark.parametrize(
    "path", ["/ui/queues/x/jobs/{}", "/ui/queues/{}", "/ui/search?q={}", "/ui/dead?queue=x&text={}"]
)
def test_a_name_of_100_000_characters_is_refused(admin: Visitor, path: str) -> None:
    """Past httpx, which sends no such address."""
    url = admin.client.base_url
    cookie = f"{COOKIE}={admin.client.cookies[COOKIE]}"
    connection = http.client.HTTPConnection(url.host, url.port, timeout=PATIENCE)
    with closing(connection):
        connection.request("GET", path.format("x" * 100_000), headers={"Cookie": cookie})
        answer = connection.getresponse()
        assert 400 <= answer.status < 500
        assert b"x" * 10_000 not in answer.read()
    assert admin.get("/").status_code == 200


def test_a_parked_lane_is_dropped(tab: Tab, running: Serving, api: Api) -> None:
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
