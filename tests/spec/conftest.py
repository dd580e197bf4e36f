"""An engine with a manual clock, on each deployment that Towpath promises to run on.

`make test` runs the specification on Valkey, and on the oldest Redis and a cluster where those can
differ: modules that say `pytestmark = deployments`. `make test-all` runs all of it on all three,
and on a primary behind sentinels.
"""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.amounts import slow
from tests.fixtures import SLOW_ANSWERS
from tests.spec.deployment import Deployment
from towpath.clock import ManualClock
from towpath.engine.engine import Engine

USUAL, SENTINEL = "valkey", "sentinel"
"""A primary behind sentinels is the usual server at another address; it differs when it fails over,
which is tested in `tests/faults`."""
_RUNNING = {
    "valkey": "running_server",
    "oldest": "running_oldest_server",
    "cluster": "running_cluster",
    "sentinel": "running_sentinel",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests of the other deployments `slow` where the deployments cannot differ."""
    for item in items:
        chosen = getattr(item, "callspec", None)
        name = USUAL if chosen is None else chosen.params.get("running_deployment", USUAL)
        can_differ = name != SENTINEL and item.get_closest_marker("deployments") is not None
        if name != USUAL and not can_differ:
            item.add_marker(slow)


@pytest.fixture(scope="session", params=list(_RUNNING))
def running_deployment(request: pytest.FixtureRequest) -> Deployment:
    return Deployment.of(request.getfixturevalue(_RUNNING[request.param]))


@pytest.fixture
def deployment(running_deployment: Deployment) -> Iterator[Deployment]:
    """An empty deployment: the newest Valkey, the oldest Redis, a cluster of three masters, or a
    primary behind sentinels.
    """
    running_deployment.flush()
    yield running_deployment
    assert running_deployment.denied() == []


@pytest.fixture
def engine_url(deployment: Deployment) -> str:
    return deployment.url


@pytest.fixture
async def other_engine(deployment: Deployment, clock: ManualClock) -> AsyncIterator[Engine]:
    """The engine of another process on the same deployment."""
    async with Engine(deployment.url, clock=clock, limits=SLOW_ANSWERS) as engine:
        yield engine
