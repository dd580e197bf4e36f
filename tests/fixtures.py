"""The fixtures that more than one folder of tests uses; `tests/conftest.py` loads them.

A folder overrides a fixture by one of the same name, most often one of the small ones:
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
    """The seed of a random test. It is printed, so that a failure can be repeated."""
    chosen = int(os.environ.get(SEED) or random.randrange(1_000_000))
    print(f"to repeat: {SEED}={chosen}")  # noqa: T201  shown by pytest when the test fails
    return chosen


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    """The file into which programs write their process ids."""
    return tmp_path / "pids"


# ── Redis: one set per test process, emptied before each test ────────────────────────────


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
    """A primary behind sentinels that never fails over by itself, however slow the machine is."""
    with EmbeddedSentinel(replicas=1, down_after=HANGS) as sentinel:
        yield sentinel


@pytest.fixture(autouse=True)
def blocking_ends() -> Iterator[None]:
    """Ends the thread of `.blocking` with its test instead of with the process: it would go on
    queuing records in the Redis that the next test uses.
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


# ── Redis that a test may break ──────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def running_own_cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(masters=3) as cluster:
        yield cluster


@pytest.fixture
def own_cluster(running_own_cluster: EmbeddedCluster) -> EmbeddedCluster:
    """An empty cluster of the module's own: a failed move of slots affects no other tests."""
    return _emptied(running_own_cluster)


@pytest.fixture
def replicated_cluster() -> Iterator[EmbeddedCluster]:
    """A cluster of three masters with a replica each, which soon takes over."""
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
    """A proxy between Redis and the users of its URL; it has no faults until a test adds some."""
    async with Proxy(server.address, Faults()) as proxy:
        yield proxy


# ── engines ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def clock() -> Clock:
    """The clock of `engine`, which the test advances."""
    return ManualClock()


@pytest.fixture
def engine_url(server: EmbeddedServer) -> str:
    """The URL of the Redis that `engine` uses."""
    return server.url


SLOW_ANSWERS = Limits(give_up=seconds(HANGS))
"""For a server that is slow only because the machine is busy."""


@pytest.fixture
async def engine(engine_url: str, clock: Clock) -> AsyncIterator[Engine]:
    async with Engine(engine_url, clock=clock, limits=SLOW_ANSWERS) as engine:
        yield engine


@pytest.fixture
def quick_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers renew their leases often, however long those are. A short lease would have that
    effect too, but would end meanwhile on a busy machine.
    """
    monkeypatch.setattr(attempt, "LONGEST_BEAT", 0.3)


# ── object stores ────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def running_objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedObjects]:
    """A real S3 server; it takes some seconds to start."""
    with EmbeddedObjects(tmp_path_factory.mktemp("objects")) as objects:
        yield objects


# ── databases: tests run with each kind ──────────────────────────────────────────────────


@pytest.fixture(scope="session")
def running_postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL that a test may break."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file, to be copied: a migration takes longer than most tests."""
    file = tmp_path_factory.mktemp("ledger") / "migrated.db"
    asyncio.run(_migrate(f"sqlite:///{file}"))
    return file


@pytest.fixture(scope="session")
def migrated_database(running_postgres: PostgresServer) -> str:
    """The name of a migrated database on PostgreSQL, to be copied."""
    asyncio.run(_migrate(running_postgres.new_database("migrated")))
    return "migrated"


async def _migrate(url: str) -> None:
    async with Ledger(url) as ledger:
        await ledger.migrate()


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """The URL of an SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def server_url(running_postgres: PostgresServer) -> str:
    """The URL of an empty database on PostgreSQL."""
    return running_postgres.emptied()


@pytest.fixture
def prepared_file_url(file_url: str, migrated_file: Path) -> str:
    """The URL of a migrated SQLite file."""
    shutil.copy(migrated_file, file_url.removeprefix("sqlite:///"))
    return file_url


@pytest.fixture
def prepared_server_url(running_postgres: PostgresServer, migrated_database: str) -> str:
    """The URL of a migrated database on PostgreSQL. It is a copy: whatever a test does to its
    tables, the next test gets them unchanged.
    """
    running_postgres.tell(
        "postgres",
        "DROP DATABASE IF EXISTS prepared WITH (FORCE)",
        f"CREATE DATABASE prepared TEMPLATE {migrated_database}",
    )
    return running_postgres.url("prepared")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """A database of each kind: migrated if the test has a `ledger` on it, else empty."""
    which = "file_url" if request.param == "sqlite" else "server_url"
    ready = "prepared_" if "ledger" in request.fixturenames else ""
    return request.getfixturevalue(ready + which)


LEDGER_LIMIT = seconds(30)
"""Machines that run tests are busy: a new connection can take longer than the usual 5 s."""


@pytest.fixture
def ledger_options() -> dict[str, Any]:
    """The arguments of `ledger` beside its URL."""
    return {}


@pytest.fixture
async def ledger(url: str, ledger_options: dict[str, Any]) -> AsyncIterator[Ledger]:
    """A ledger on a migrated database."""
    options: dict[str, Any] = {"limit": LEDGER_LIMIT, **ledger_options}
    async with Ledger(url, **options) as ledger:
        try:
            await ledger.read(lambda _: None)
        except LedgerOutdated:  # a test with a database of its own
            await ledger.migrate()
        yield ledger


# ── servers that Towpath calls over HTTP ─────────────────────────────────────────────────


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving(Receiver()) as receiver:
        yield receiver


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    """A caller that may reach this machine."""
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
