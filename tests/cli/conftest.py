"""The command and an engine on the same Redis."""

import os
from pathlib import Path

import pytest

from tests.cli.command import Command
from towpath.clock import ServerClock
from towpath.embedded import EmbeddedServer


@pytest.fixture
def towpath(server: EmbeddedServer, tmp_path: Path) -> Command:
    return Command(server.url, tmp_path)


@pytest.fixture
def clock() -> ServerClock:
    """The clock that the command uses."""
    return ServerClock()


@pytest.fixture
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory, and no variables."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith(("TOWPATH_", "REDIS_")):
            monkeypatch.delenv(name)


@pytest.fixture
def without_redis(towpath: Command, prepared_file_url: str) -> Command:
    """The command, with a migrated database and a Redis that is away."""
    towpath.env["DATABASE_URL"] = prepared_file_url
    towpath.env["TOWPATH_URL"] = f"unix://{towpath.directory}/nobody.sock"
    return towpath
