"""The dashboard in a real browser: one Chromium for all tests, a fresh profile for each."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.architecture.sources import ROOT
from tests.server.serving import RunningServer

BROUGHT = ROOT / ".venv" / "chromium"
AXE = ROOT / ".venv" / "npm" / "node_modules" / "axe-core" / "axe.min.js"
PICTURES = "TOWPATH_TEST_PICTURES"
"""Where pictures of the pages are kept; without it, none are."""
PATIENCE_MS = 60_000
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
_SERIOUS = ("serious", "critical")


def program() -> Path:
    """The path of Chromium; the test is skipped without it."""
    for place in (BROUGHT / "chromium", Path("/usr/bin/chromium")):
        if place.exists():
            return place
    pytest.skip("no Chromium here: `make .venv/chromium` brings it on Debian")


@contextmanager
def started() -> Generator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=list(_FLAGS))
        yield browser
        browser.close()


class Tab:
    """A page in the browser, and the complaints of the browser meanwhile."""

    def __init__(self, running: RunningServer, context: BrowserContext) -> None:
        self.running, self.context = running, context
        context.set_default_timeout(PATIENCE_MS)
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._asked)

    def _asked(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def go(self, path: str) -> Page:
        self.page.goto(self.running.address + path)
        return self.page

    def log_in(self, key: str) -> None:
        self.go("/")
        self.page.fill("#key", key)
        self.page.click("text=Log in >> nth=-1")
        expect(self.page.locator("h1")).to_have_text("Overview")

    def live(self) -> None:
        """Waits until the page gets events."""
        expect(self.page.locator("#sign")).to_have_attribute("data-state", "on")

    def do(self, label: str) -> None:
        """Clicks the button of an action, and confirms."""
        self.page.click(f"button[data-method]:text-is('{label}')")
        self.page.click("#confirm .yes")

    def faults(self) -> list[str]:
        """The faults that axe-core finds, which would keep people from using the page."""
        self.page.evaluate(AXE.read_text())
        found: Any = self.page.evaluate(
            "axe.run(document, {resultTypes: ['violations']})"
            ".then((it) => it.violations.map((v) => ({id: v.id, impact: v.impact, "
            "nodes: v.nodes.map((n) => n.html).slice(0, 3)})))"
        )
        return [
            f"{fault['id']}: {fault['nodes']}" for fault in found if fault["impact"] in _SERIOUS
        ]

    def picture(self, name: str) -> None:
        if folder := os.environ.get(PICTURES):
            self.page.screenshot(path=Path(folder) / f"{name}.png", timeout=10 * PATIENCE_MS)

    def fits(self) -> bool:
        """Whether nothing overflows the page at the side."""
        script = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        return bool(self.page.evaluate(script))
