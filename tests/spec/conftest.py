"""An engine with a manual clock, on each deployment that Towpath promises to run on."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.spec.deployment import Deployment
from towpath.clock import ManualClock
from towpath.engine.engine import Engine

_RUNNING = {
    "valkey": "running_server",
    "oldest": "running_oldest_server",
    "cluster": "running_cluster",
}


@pytest.fixture(scope="session", params=list(_RUNNING))
def running_deployment(request: pytest.FixtureRequest) -> Deployment:
    return Deployment.of(request.getfixturevalue(_RUNNING[request.param]))


@pytest.fixture
def deployment(running_deployment: Deployment) -> Iterator[Deployment]:
    """The newest Valkey, the oldest Redis, or a cluster of three masters: empty."""
    running_deployment.flush()
    yield running_deployment
    assert running_deployment.denied() == []


@pytest.fixture
def engine_url(deployment: Deployment) -> str:
    return deployment.url


@pytest.fixture
async def other_engine(deployment: Deployment, clock: ManualClock) -> AsyncIterator[Engine]:
    """The engine of another process on the same deployment."""
    async with Engine(deployment.url, clock=clock) as engine:
        yield engine
