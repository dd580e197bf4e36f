"""Waits for facts while the event loop runs on, and reads some facts from a Redis."""

from collections.abc import Callable

from tests.waiting import HANGS, eventually_async
from towpath.embedded import EmbeddedServer, RedisConnection
from towpath.embedded.process import ask_fields


async def meanwhile(fact: Callable[[], bool], *, within: float = HANGS) -> None:
    """Returns as soon as *fact* holds; other tasks of this event loop go on meanwhile."""

    async def holds() -> bool:
        return fact()

    await eventually_async(holds, within=within)


def blocked_clients(server: EmbeddedServer) -> int:
    """How many clients of this Redis are blocked: they wait for a wake-up, or for a replica."""
    return int(ask_fields(server.address, "INFO", "clients")["blocked_clients"])


def caught_up(primary: EmbeddedServer) -> int:
    """How many replicas have every write that was made until now.

    WAIT covers the writes of its own connection only, so this writes one first.
    """
    with RedisConnection(primary.address) as line:
        line.ask("SET", "probe:caught-up", "1")
        count = line.ask("WAIT", 1, 100)
    assert isinstance(count, int)
    return count


def errors_told(server: EmbeddedServer, code: str) -> int:
    """How often this Redis has answered with that error."""
    said = ask_fields(server.address, "INFO", "errorstats").get(f"errorstat_{code}", "count=0")
    return int(said.partition("count=")[2])
