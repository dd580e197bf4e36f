"""The fixtures that more than one folder of tests uses; `tests/conftest.py` loads them.

A folder says what differs there by a fixture of the same name, most often one of the small ones:
`engine_url`, `clock`, `ledger_options`.
"""

import asyncio
import os
import random
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.calls.receivers import Receiver, receiving
from tests.forges.github_description import github_description
from tests.forges.serving import ForgeServer, running_forge
from tests.postgres import PostgresServer
from tests.servers import oldest
from tests.waiting import HANGS
from towpath.app import backend
from towpath.calls.caller import Caller
from towpath.clock import Clock, ManualClock, seconds
from towpath.embedded import EmbeddedCluster, EmbeddedSentinel, EmbeddedServer, Listen
from towpath.embedded.objects import EmbeddedObjects
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.ledger.errors import LedgerOutdated
from towpath.ledger.ledger import Ledger
from towpath.testing.github.double import GitHubDouble
from towpath.testing.proxy import Faults, Proxy
from towpath.worker import attempt

SEED = "TOWPATH_TEST_SEED"


@pytest.fixture
def seed() -> int:
    """Where a random test begins. Printed, so that a failure can be repeated."""
    chosen = int(os.environ.get(SEED) or random.randrange(1_000_000))
    print(f"to repeat: {SEED}={chosen}")  # noqa: T201  shown by pytest when the test fails
    return chosen


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    """Where programs write who they are."""
    return tmp_path / "pids"


# ── servers: one set per test process, emptied before each test ──────────────────────────


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


@pytest.fixture(scope="session")
def running_sentinel() -> Iterator[EmbeddedSentinel]:
    """One that never fails over by itself, however slow the machine is."""
    with EmbeddedSentinel(replicas=1, down_after=HANGS) as sentinel:
        yield sentinel


@pytest.fixture(autouse=True)
def blocking_ends() -> Iterator[None]:
    """What a test asked by `.blocking` ends with it, not with the process: its thread would go on
    queuing records on the server that the next test uses.
    """
    yield
    for connected in list(backend._all):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- all there are
        connected.leave_blocking()


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
    return _emptied(running_cluster)


def _emptied(cluster: EmbeddedCluster) -> EmbeddedCluster:
    for master in cluster.masters:
        master.ask("FLUSHALL")
    return cluster


# ── servers that a test may break ────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def running_own_cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(masters=3) as cluster:
        yield cluster


@pytest.fixture
def own_cluster(running_own_cluster: EmbeddedCluster) -> EmbeddedCluster:
    """An empty cluster of the module's own: a move that went wrong troubles no other tests."""
    return _emptied(running_own_cluster)


@pytest.fixture
def replicated_cluster() -> Iterator[EmbeddedCluster]:
    """Three masters with a replica each, which soon takes over."""
    with EmbeddedCluster(masters=3, replicas=1, node_timeout=1.0) as cluster:
        yield cluster


@pytest.fixture
def group() -> Iterator[EmbeddedSentinel]:
    """A primary, a replica and the sentinels that watch them."""
    with EmbeddedSentinel(replicas=1) as group:
        yield group


@pytest.fixture
def stopped_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server that has an address and does not run."""
    with EmbeddedServer(data=tmp_path, listen=Listen.PORT) as server:
        server.stop()
        yield server


@pytest.fixture
async def proxy(server: EmbeddedServer) -> AsyncIterator[Proxy]:
    """Stands between the server and whoever uses its URL; without faults until it has some."""
    async with Proxy(server.address, Faults()) as proxy:
        yield proxy


# ── engines ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def clock() -> Clock:
    """The clock of `engine`, which the test moves."""
    return ManualClock()


@pytest.fixture
def engine_url(server: EmbeddedServer) -> str:
    """Where `engine` has its jobs."""
    return server.url


SLOW_ANSWERS = Limits(give_up=seconds(HANGS))
"""For a server that is slow only because the machine is busy."""


@pytest.fixture
async def engine(engine_url: str, clock: Clock) -> AsyncIterator[Engine]:
    async with Engine(engine_url, clock=clock, limits=SLOW_ANSWERS) as engine:
        yield engine


@pytest.fixture
def quick_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers renew their leases often, however long those are. With a short lease they would too,
    but on a busy machine it would end meanwhile.
    """
    monkeypatch.setattr(attempt, "LONGEST_BEAT", 0.3)


# ── objects ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def running_objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedObjects]:
    """A real S3 server; it takes some seconds to start."""
    with EmbeddedObjects(tmp_path_factory.mktemp("objects")) as objects:
        yield objects


# ── databases: what holds for one kind must hold for the other ───────────────────────────


@pytest.fixture(scope="session")
def running_postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server that a test may break."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file that is up to date, to be copied: a migration takes longer than most tests."""
    file = tmp_path_factory.mktemp("ledger") / "migrated.db"
    asyncio.run(_migrate(f"sqlite:///{file}"))
    return file


@pytest.fixture(scope="session")
def migrated_database(running_postgres: PostgresServer) -> str:
    """The name of a database on PostgreSQL that is up to date, to be copied."""
    asyncio.run(_migrate(running_postgres.new_database("migrated")))
    return "migrated"


async def _migrate(url: str) -> None:
    async with Ledger(url) as ledger:
        await ledger.migrate()


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """An SQLite file that is not there yet."""
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def server_url(running_postgres: PostgresServer) -> str:
    """An empty database on a PostgreSQL server."""
    return running_postgres.emptied()


@pytest.fixture
def prepared_file_url(file_url: str, migrated_file: Path) -> str:
    """An SQLite file that is up to date."""
    shutil.copy(migrated_file, file_url.removeprefix("sqlite:///"))
    return file_url


@pytest.fixture
def prepared_server_url(running_postgres: PostgresServer, migrated_database: str) -> str:
    """A database on PostgreSQL that is up to date. A copy: whatever a test does to its tables, the
    next one has them as they were.
    """
    running_postgres.tell(
        "postgres",
        "DROP DATABASE IF EXISTS prepared WITH (FORCE)",
        f"CREATE DATABASE prepared TEMPLATE {migrated_database}",
    )
    return running_postgres.url("prepared")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """A database of each kind: up to date where the test has a `ledger` on it, else empty."""
    which = "file_url" if request.param == "sqlite" else "server_url"
    ready = "prepared_" if "ledger" in request.fixturenames else ""
    return request.getfixturevalue(ready + which)


LEDGER_LIMIT = seconds(30)
"""Machines that run tests are busy: a new connection can take longer than the usual 5 s."""


@pytest.fixture
def ledger_options() -> dict[str, Any]:
    """What `ledger` is made with beside its URL."""
    return {}


@pytest.fixture
async def ledger(url: str, ledger_options: dict[str, Any]) -> AsyncIterator[Ledger]:
    """A ledger that is up to date."""
    options: dict[str, Any] = {"limit": LEDGER_LIMIT, **ledger_options}
    async with Ledger(url, **options) as ledger:
        try:
            await ledger.read(lambda _: None)
        except LedgerOutdated:  # a test with a database of its own
            await ledger.migrate()
        yield ledger


# ── those that Towpath calls over HTTP ───────────────────────────────────────────────────


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving(Receiver()) as receiver:
        yield receiver


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    """One that may reach this machine."""
    async with Caller(allow=["127.0.0.0/8"]) as caller:
        yield caller


@pytest.fixture
async def forge() -> AsyncIterator[ForgeServer]:
    """A GitHub or a GitLab."""
    async with running_forge() as server:
        yield server


@pytest.fixture
def github() -> Iterator[GitHubDouble]:
    """A GitHub that keeps state. A request that GitHub does not describe fails the test."""
    description = github_description()
    with GitHubDouble(check=description.misfits if description else None) as double:
        yield double
    assert double.misfits == []
