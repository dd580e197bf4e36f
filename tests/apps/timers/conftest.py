"""The service of timers on an engine with a manual clock; and a server that calls instances."""

from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI

from tests.apps.timers.service_mode import OPTIONS, InstancesApi, scheduling_on, started, with_key
from towpath.apps.timers.options import TimersOptions
from towpath.apps.timers.service import TimerService
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger


@pytest.fixture
def timers(engine: Engine) -> TimerService:
    return TimerService(engine, TimersOptions())


@pytest.fixture
def timer_options() -> TimersOptions:
    """The options of timers of `app`."""
    return OPTIONS


@pytest.fixture
async def app(
    server: EmbeddedServer, prepared_file_url: str, timer_options: TimersOptions
) -> AsyncIterator[FastAPI]:
    """A server in service mode."""
    made = scheduling_on(server.url, Ledger(prepared_file_url), timer_options)
    async with started(made) as app:
        yield app


@pytest.fixture
async def api(app: FastAPI) -> AsyncIterator[InstancesApi]:
    """The API of instances of `app`, with a key."""
    async with with_key(app, "work", "read") as api:
        yield api
