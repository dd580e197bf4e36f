"""A server on this machine, and a caller that may reach it."""

from collections.abc import AsyncIterator

import pytest

from tests.calls.receivers import Receiver, receiving
from towpath.calls import Caller


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving(Receiver()) as it:
        yield it


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    async with Caller(allow=["127.0.0.0/8"]) as it:
        yield it
