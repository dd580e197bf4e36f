"""The page of a running job: it follows the job, and shows a cancel as what it is.

The page's clock stands still unless a test advances it, so only the tested refreshes happen.
"""

import re
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.browsing import Tab
from tests.server.serving import Api

Go = Callable[[str], Page]


@pytest.fixture
def go(tab: Tab) -> Go:
    """Opens a page whose clock stands still once it is loaded."""

    def open_page(path: str) -> Page:
        tab.page.clock.install()
        page = tab.go(path)
        expect(page.locator("#sign")).to_have_attribute("data-state", "on")
        page.clock.pause_at(time.time() + 60)
        return page

    return open_page


class TestTheJobPage:
    def test_follows_the_progress_of_a_job(self, go: Go, api: Api) -> None:
        api.submit(id="long")
        [job] = api.claim(lease=600)
        assert api.say("renew", job, lease=600, progress={"percent": 1}).is_success
        page = go(f"/ui/queues/{api.queue}/jobs/long")
        note = page.get_by_label("Progress")
        expect(note).to_contain_text('"percent": 1')
        for percent in (35, 70):
            assert api.say("renew", job, lease=600, progress={"percent": percent}).is_success
            page.clock.run_for(3000)
            expect(note).to_contain_text(f'"percent": {percent}')

    def test_updates_relative_times(self, go: Go, api: Api) -> None:
        """Also of a job that has ended, whose page has nothing else to fetch."""
        api.bury("lost")
        page = go(f"/ui/queues/{api.queue}/jobs/lost")
        shown = page.locator(".timeline time").first
        for _ in range(2):
            before = shown.inner_text()
            page.clock.run_for(12_000)
            expect(shown).not_to_have_text(before)

    def test_says_that_a_running_job_was_asked_to_stop(self, tab: Tab, api: Api) -> None:
        api.submit(id="runs", keep=3600)
        [job] = api.claim(lease=600)
        page = tab.go(f"/ui/queues/{api.queue}/jobs/runs")
        page.get_by_role("button", name="Cancel", exact=True).click()
        page.locator("#confirm .yes").click()
        expect(page.locator("#told .note")).to_have_attribute("data-state", "leased")
        expect(page.locator("h1 ~ .state.leased")).to_be_visible()
        expect(page.locator("h1 ~ .state.stopping")).to_be_visible()
        assert api.say("release", job).json()["state"] == "cancelled"
        expect(page.locator("h1 ~ .state.cancelled")).to_be_visible()
        expect(page.locator("dt:text-is('Attempts') + dd")).to_have_text(re.compile(r"^1 of "))
        assert tab.faults() == []

    def test_says_that_a_waiting_job_is_cancelled(self, tab: Tab, api: Api) -> None:
        api.submit(id="waits", keep=3600)
        page = tab.go(f"/ui/queues/{api.queue}/jobs/waits")
        page.get_by_role("button", name="Cancel", exact=True).click()
        page.locator("#confirm .yes").click()
        expect(page.locator("#told .note")).to_have_attribute("data-state", "cancelled")
        expect(page.locator("h1 ~ .state.cancelled")).to_be_visible()


class TestKeptJobs:
    def kept(self, page: Page, state: str) -> str:
        return page.locator(f".figures .{state} b").inner_text()

    def test_are_counted_by_how_they_ended(self, tab: Tab, api: Api) -> None:
        for n in range(3):
            api.submit(id=f"done-{n}", keep=3600)
            [job] = api.claim()
            assert api.say("complete", job).is_success
        page = tab.go(f"/ui/queues/{api.queue}")
        expect(page.locator(".figures .done b")).to_have_text("3")
        assert self.kept(page, "cancelled") == "0"

    def test_are_counted_even_if_some_are_not_kept(self, tab: Tab, api: Api) -> None:
        """A cancelled job that is not kept counts nowhere."""
        api.submit(id="unkept", keep=0)
        api.post("/jobs/unkept/cancel")
        for n in range(2):
            api.submit(id=f"done-{n}", keep=3600)
            [job] = api.claim()
            assert api.say("complete", job).is_success
        page = tab.go(f"/ui/queues/{api.queue}")
        expect(page.locator(".figures .done b")).to_have_text("2")
        assert self.kept(page, "cancelled") == "0"
