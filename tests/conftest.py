"""Real servers, one set per test process, emptied before each test."""

import signal
from collections.abc import Iterator

import pytest

from tests.servers import oldest
from towpath.embedded import EmbeddedCluster, EmbeddedServer

# What a shell starts in the background ignores SIGINT and SIGQUIT, and under nohup SIGHUP; so do
# its children, and the programs of the tests would never hear the signals they are sent.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def running_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


@pytest.fixture(scope="session")
def running_oldest_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(binary=oldest()) as server:
        yield server


@pytest.fixture(scope="session")
def running_cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(masters=3) as cluster:
        yield cluster


@pytest.fixture
def server(running_server: EmbeddedServer) -> EmbeddedServer:
    """An empty Valkey on a Unix socket, without persistence."""
    running_server.ask("FLUSHALL")
    return running_server


@pytest.fixture
def oldest_server(running_oldest_server: EmbeddedServer) -> EmbeddedServer:
    """An empty Redis 6.2 on a Unix socket, without persistence."""
    running_oldest_server.ask("FLUSHALL")
    return running_oldest_server


@pytest.fixture
def cluster(running_cluster: EmbeddedCluster) -> EmbeddedCluster:
    """An empty cluster of three masters, without persistence."""
    for master in running_cluster.masters:
        master.ask("FLUSHALL")
    return running_cluster
