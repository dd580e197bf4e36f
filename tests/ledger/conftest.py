"""The clock of ledgers, advanced by the test; and a shop with transactions of its own."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine as BlockingEngine
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tests.ledger.manual_time import ManualTime
from tests.ledger.own_transactions import ORDERS, Sell, named
from tests.waiting import PATIENT
from towpath import Context, Fixed, Towpath, milliseconds
from towpath.app.submitting import AppHandler
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger


@pytest.fixture
def manual_time() -> ManualTime:
    return ManualTime()


@pytest.fixture
def ledger_options(manual_time: ManualTime) -> dict[str, Any]:
    return {"wall": manual_time.wall, "ticks": manual_time.ticks}


@pytest.fixture
def limits() -> Limits:
    """A test that makes the database unreachable is parametrized with `SHORT`."""
    return PATIENT


@pytest.fixture
async def engine(server: EmbeddedServer, limits: Limits) -> AsyncIterator[Engine]:
    """An engine on the clock of Redis."""
    async with Engine(server.url, limits=limits) as engine:
        yield engine


# ── a shop with transactions of its own ──────────────────────────────────────────────────


@pytest.fixture
async def orders(url: str, ledger: Ledger) -> AsyncIterator[AsyncEngine]:
    """The user's own engine of SQLAlchemy, with a table of the user."""
    engine = create_async_engine(named(url))
    async with engine.begin() as connection:
        await connection.execute(text(ORDERS))
    yield engine
    await engine.dispose()


@pytest.fixture
def blocking(url: str, ledger: Ledger) -> Iterator[BlockingEngine]:
    """The same for code without an event loop."""
    engine = create_engine(named(url, blocking=True))
    yield engine
    engine.dispose()


@pytest.fixture
def app(server: EmbeddedServer, url: str, ledger: Ledger) -> Towpath:
    return Towpath(server.url, ledger=url)


@pytest.fixture
def sell(app: Towpath) -> Sell:
    """A named handler beside another one."""

    @app.handler("shop", name="sell", record=True, max_attempts=2, retry=Fixed(milliseconds(1)))
    async def sell(number: int, ctx: Context) -> int:
        if number < 0:
            raise ValueError(f"attempt {ctx.attempt}")
        return number * 2

    return sell


@pytest.fixture
def bill(app: Towpath) -> AppHandler[str, str, Any]:
    @app.handler("shop", name="bill", record=True)
    async def bill(customer: str) -> str:
        return f"{customer} owes"

    return bill
