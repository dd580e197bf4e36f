"""An engine with a manual clock, and the queue of messages on it."""

from collections.abc import AsyncIterator

import pytest

from towpath.apps.messages.queue import MessageQueue
from towpath.clock import ManualClock
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def engine(server: EmbeddedServer, clock: ManualClock) -> AsyncIterator[Engine]:
    async with Engine(server.url, clock=clock) as engine:
        yield engine


@pytest.fixture
def queue(engine: Engine) -> MessageQueue:
    return MessageQueue(engine)
