"""A submit takes the path from the handler to the socket that the documentation shows."""

import re
import sys
from typing import Any

import pytest

from tests.architecture.sources import ROOT
from towpath import Towpath
from towpath.embedded import EmbeddedServer
from towpath.engine import blocking, connection

MOST = 9


def shown() -> list[str]:
    """The methods in the table of the page."""
    page = (ROOT / "docs" / "explanation" / "engine.md").read_text()
    return re.findall(r"^\| \d \| `([\w.]+)` \|", page, re.MULTILINE)


def watch_exchanges(monkeypatch: pytest.MonkeyPatch, stream: Any) -> list[list[str]]:
    """Our functions that were under way at each exchange of a *stream*, outermost first."""
    seen: list[list[str]] = []
    exchange = stream.exchange

    def watched(self: Any, *args: Any) -> Any:
        found = [f"{stream.__module__}.{exchange.__qualname__}"]
        frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- the stack
        while frame is not None:
            module = frame.f_globals["__name__"]
            if module.startswith("towpath."):
                found.append(f"{module}.{frame.f_code.co_qualname}")
            frame = frame.f_back
        seen.append(found[::-1])
        return exchange(self, *args)

    monkeypatch.setattr(stream, "exchange", watched)
    return seen


def app_with_a_handler(url: str) -> Any:
    app = Towpath(url)

    @app.handler("mails")
    async def send(_: str) -> None: ...

    return app, send


async def test_a_submit_takes_the_path_of_the_page(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, send = app_with_a_handler(server.url)
    async with app:
        await send.submit("the first introduces the queue")
        seen = watch_exchanges(monkeypatch, connection._Stream)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- has the socket
        await send.submit("hello")
    assert seen[0] == shown()
    assert len(shown()) <= MOST


def test_a_blocking_submit_takes_the_same_path(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, send = app_with_a_handler(server.url)
    send.blocking.submit("the first introduces the queue")
    seen = watch_exchanges(monkeypatch, blocking._Stream)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- has the socket
    send.blocking.submit("hello")
    instead = {
        "towpath.engine.batcher.Batcher.submit": "towpath.engine.batcher.Unbatched.submit",
        "towpath.engine.connection.Connection.exchange": (
            "towpath.engine.blocking.BlockingConnection.exchange"
        ),
        "towpath.engine.connection._Stream.exchange": "towpath.engine.blocking._Stream.exchange",
    }
    shared = shown()[1:]  # from `submit_plain` on
    assert seen[0][-len(shared) :] == [instead.get(method, method) for method in shared]
