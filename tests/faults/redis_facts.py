"""Facts of a Redis that tests wait for."""

from towpath.embedded import EmbeddedServer, RedisConnection
from towpath.embedded.process import ask_fields


def blocked_clients(server: EmbeddedServer) -> int:
    """How many clients of this Redis are blocked: they wait for a wake-up, or for a replica."""
    return int(ask_fields(server.address, "INFO", "clients")["blocked_clients"])


def count_replicas_up_to_date(primary: EmbeddedServer) -> int:
    """How many replicas have every write that was made until now.

    WAIT covers the writes of its own connection only, so this writes one first.
    """
    with RedisConnection(primary.address) as line:
        line.ask("SET", "probe:caught-up", "1")
        count = line.ask("WAIT", 1, 100)
    assert isinstance(count, int)
    return count


def count_error_replies(server: EmbeddedServer, code: str) -> int:
    """How often this Redis has answered with that error."""
    said = ask_fields(server.address, "INFO", "errorstats").get(f"errorstat_{code}", "count=0")
    return int(said.partition("count=")[2])
