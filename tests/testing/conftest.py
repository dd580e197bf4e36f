"""The shop on a bench, as users would write it; the fixtures come from the plugin."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from tests.testing import shop
from towpath.testing import Bench

NewBench = Callable[..., AbstractAsyncContextManager[Bench]]


@pytest.fixture
async def bench(towpath_bench: NewBench) -> AsyncIterator[Bench]:
    shop.attempts.clear()
    async with towpath_bench(shop.app) as bench:
        yield bench
