"""The command and an engine on the same server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.command import Command
from towpath import Engine
from towpath.embedded import EmbeddedServer


@pytest.fixture
def towpath(server: EmbeddedServer, tmp_path: Path) -> Command:
    return Command(server.url, tmp_path)


@pytest.fixture
async def engine(server: EmbeddedServer) -> AsyncIterator[Engine]:
    async with Engine(server.url) as engine:
        yield engine
