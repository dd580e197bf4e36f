"""Waiting for plain facts while the event loop runs on, and some facts that servers tell."""

from collections.abc import Callable

from tests.waiting import HANGS, eventually_async
from towpath.embedded import EmbeddedServer, ServerConnection
from towpath.embedded.process import ask_fields


async def meanwhile(fact: Callable[[], bool], *, within: float = HANGS) -> None:
    """Return as soon as *fact* holds; what was begun in this event loop goes on meanwhile."""

    async def holds() -> bool:
        return fact()

    await eventually_async(holds, within=within)


def blocked_clients(server: EmbeddedServer) -> int:
    """How many clients wait for something on this server: a token to come, a replica to confirm."""
    return int(ask_fields(server.address, "INFO", "clients")["blocked_clients"])


def caught_up(primary: EmbeddedServer) -> int:
    """How many replicas have everything that was written until now.

    WAIT looks at the last write of its own connection, so one goes first.
    """
    with ServerConnection(primary.address) as line:
        line.ask("SET", "probe:caught-up", "1")
        count = line.ask("WAIT", 1, 100)
    assert isinstance(count, int)
    return count


def errors_told(server: EmbeddedServer, code: str) -> int:
    """How often the server has answered with this error."""
    said = ask_fields(server.address, "INFO", "errorstats").get(f"errorstat_{code}", "count=0")
    return int(said.partition("count=")[2])
