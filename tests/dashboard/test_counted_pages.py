"""Requests of a login session count for its key, even those for pages that everybody may open."""

from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.dashboard.sessions import log_in
from tests.server.serving import RunningServer, code, up


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that answers two requests a second for each key, and bursts of four."""
    with up(tmp_path_factory.mktemp("counted"), TOWPATH_HTTP__RATE="2") as running:
        yield running


def refused(ask: Callable[[], httpx.Response]) -> httpx.Response:
    """The first answer with 429."""
    for _ in range(500):
        answer = ask()
        if answer.status_code == 429:
            return answer
        assert answer.status_code in (200, 303), answer.text
    pytest.fail("nothing was refused")


@pytest.mark.parametrize("path", ["/", "/docs", "/ui/dead", "/ui/static/towpath.css"])
def test_a_page_counts_for_the_key_of_the_login_session(served: RunningServer, path: str) -> None:
    _, secret = served.make_key("read")
    login = log_in(served, secret)
    assert code(refused(lambda: login.get(path)), 429) == "rate-limited"
    client = served.client(secret)
    assert code(refused(lambda: client.get("/api/v1/queues")), 429) == "rate-limited"
    _, other = served.make_key("read")
    assert log_in(served, other).get(path).status_code == 200
    assert served.client(key="").get("/").status_code == 200


def test_a_login_counts_for_its_key(served: RunningServer) -> None:
    _, secret = served.make_key("read")
    client = served.client(key="")
    assert code(refused(lambda: client.post("/", data={"key": secret})), 429) == "rate-limited"
