"""Issues on a real store and a database in a file."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.apps.issues.agents import Desk
from towpath.apps.issues.options import IssuesOptions
from towpath.apps.issues.policy import Policy
from towpath.apps.issues.tables import TABLES
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger


@pytest.fixture
def url(prepared_file_url: str) -> str:
    return prepared_file_url


@pytest.fixture
def ledger_options() -> dict[str, Any]:
    return {"tables": [TABLES]}


@pytest.fixture
def options() -> IssuesOptions:
    return IssuesOptions()


@pytest.fixture
def policy() -> Policy:
    return Policy()


@pytest.fixture
async def desk(
    server: EmbeddedServer, ledger: Ledger, options: IssuesOptions, policy: Policy
) -> AsyncIterator[Desk]:
    async with Engine(server.url) as engine:
        yield Desk(engine, ledger, options, policy)
