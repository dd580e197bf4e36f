"""Issues on a real Redis and a database in a file."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.apps.issues.served import ServedIssues, issues_served
from tests.apps.issues.services import IssueServices
from tests.apps.issues.synced import SECRET, SyncedIssueServices, options_for
from tests.forges.github_description import github_description
from towpath.apps.issues.options import IssuesOptions
from towpath.apps.issues.policy import IssuePolicy
from towpath.apps.issues.tables import TABLES
from towpath.calls.caller import Caller
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger
from towpath.testing.github.double import GitHubDouble


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
def policy() -> IssuePolicy:
    return IssuePolicy()


@pytest.fixture
async def issues(
    engine_url: str, ledger: Ledger, options: IssuesOptions, policy: IssuePolicy
) -> AsyncIterator[IssueServices]:
    async with Engine(engine_url) as engine:
        yield IssueServices(engine, ledger, options, policy)


@pytest.fixture
async def served(
    server: EmbeddedServer, prepared_file_url: str, options: IssuesOptions
) -> AsyncIterator[ServedIssues]:
    async with issues_served(server.url, prepared_file_url, options) as running:
        yield running


@pytest.fixture
async def synced(
    engine_url: str, ledger: Ledger, github: GitHubDouble, policy: IssuePolicy, caller: Caller
) -> AsyncIterator[SyncedIssueServices]:
    github.listen("http://127.0.0.1:1/", secret=SECRET)
    async with Engine(engine_url) as engine:
        yield SyncedIssueServices(
            engine, ledger, options_for(github), policy, github=github, caller=caller
        )


@pytest.fixture
def github() -> Iterator[GitHubDouble]:
    """A GitHub double whose webhooks the test delivers itself."""
    description = github_description()
    check = description.misfits if description else None
    with GitHubDouble(check=check, live=False) as double:
        yield double
    assert double.misfits == []
