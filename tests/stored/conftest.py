"""Loads the kept data of Redis and the database anew for each test."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.spec.deployment import Deployment
from tests.stored import database_dump, redis_dump
from tests.stored.fill_database import SINKS
from tests.stored.make import KEPT
from towpath.clock import ManualClock
from towpath.embedded import EmbeddedCluster, EmbeddedServer


@pytest.fixture(scope="session")
def facts() -> dict[str, Any]:
    """The facts that were written down together with the data."""
    return json.loads((KEPT / "facts.json").read_text())


@pytest.fixture
def clock(facts: dict[str, Any]) -> ManualClock:
    """A clock that stands at the moment at which the data was written."""
    return ManualClock(datetime.fromisoformat(facts["clock"]))


@pytest.fixture(params=["server", "oldest_server", "cluster"])
def loaded(request: pytest.FixtureRequest) -> Deployment:
    """The kept data, loaded into Valkey, Redis 6.2 and a cluster."""
    running: EmbeddedServer | EmbeddedCluster = request.getfixturevalue(request.param)
    masters = running.masters if isinstance(running, EmbeddedCluster) else (running,)
    deployment = Deployment(running.url, masters)
    redis_dump.load(deployment, KEPT / "store.jsonl")
    return deployment


@pytest.fixture
def engine_url(loaded: Deployment) -> str:
    return loaded.url


# ── with the database ────────────────────────────────────────────────────────────────────


@pytest.fixture
def filled(server: EmbeddedServer) -> EmbeddedServer:
    """A Redis with the data that belongs to the database."""
    redis_dump.load(Deployment(server.url, (server,)), KEPT / "store.jsonl")
    return server


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path, facts: dict[str, Any]) -> str:
    """The kept database, of each kind."""
    file, written_ms = KEPT / f"ledger.{request.param}.sql", facts["written_ms"]
    if request.param == "sqlite":
        return database_dump.load_file(file, tmp_path / "ledger.db", written_ms=written_ms)
    server = request.getfixturevalue("running_postgres")
    return database_dump.load_server(file, server, written_ms=written_ms)


@pytest.fixture
def ledger_options() -> dict[str, Any]:
    return {"sinks": SINKS}
