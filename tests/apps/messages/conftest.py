"""An engine with a manual clock, and the queue of messages on it."""

import pytest

from towpath.apps.messages.queue import MessageQueue
from towpath.engine.engine import Engine


@pytest.fixture
def queue(engine: Engine) -> MessageQueue:
    return MessageQueue(engine)
