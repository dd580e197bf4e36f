"""A running `towpath up` for all tests of the dashboard, and its users."""

from collections.abc import Iterator
from itertools import count

import pytest
from playwright.sync_api import Browser

from tests.dashboard.browsing import Tab, started
from tests.dashboard.sessions import SessionClient, log_in
from tests.server.serving import Api, RunningServer, up

_numbers = count(1)


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with up(tmp_path_factory.mktemp("dashboard")) as served:
        yield served


@pytest.fixture
def queue() -> str:
    """The name of an unused queue."""
    return f"board-{next(_numbers)}"


@pytest.fixture
def api(running: RunningServer, queue: str) -> Api:
    return running.api(queue)


@pytest.fixture
def admin(running: RunningServer) -> SessionClient:
    """A login session that may do everything."""
    return log_in(running, running.key)


@pytest.fixture
def reader(running: RunningServer) -> SessionClient:
    """A login session that may only look."""
    return log_in(running, running.make_key("read")[1])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of a module, which has no async tests: while a browser runs,
    Playwright has a loop in this thread.
    """
    with started() as browser:
        yield browser


@pytest.fixture
def tab(running: RunningServer, browser: Browser) -> Iterator[Tab]:
    """A tab of a user who has logged in and may do everything."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    tab = Tab(running, context)
    tab.log_in(running.key)
    yield tab
    context.close()
