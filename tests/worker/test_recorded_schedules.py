"""Schedules of handlers with a record: each firing has one row, made when it is first claimed."""

from collections.abc import AsyncIterator

import pytest

from towpath.app.app import Towpath
from towpath.engine.schedule import Every
from towpath.engine.states import State
from towpath.testing import Bench, running

ran: list[str] = []
app = Towpath("redis://nowhere", ledger="sqlite:///nowhere.db")


@app.recurring(Every("1h"), record=True, max_attempts=2)
async def report() -> str:
    ran.append("report")
    if len(ran) == 1:
        raise ConnectionError
    return "done"


@app.handler("invoices", record=True)
async def send(n: int) -> None:
    ran.append(f"send {n}")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    ran.clear()
    async with running(app) as bench:
        yield bench


async def test_a_declared_schedule_has_a_record_for_each_firing(bench: Bench) -> None:
    bench.advance("1h")
    await bench.drain()
    [record] = (await app.ledger.jobs.list("recurring")).records
    assert (record.state, record.attempts) == ("failed", 1)
    bench.advance("10m")
    await bench.drain()
    [record] = (await app.ledger.jobs.list("recurring")).records
    assert (record.state, record.attempts) == ("completed", 2)
    assert ran == ["report", "report"]
    assert await report.job(record.id).state() is State.DONE
    bench.advance("1h")
    await bench.drain()
    assert len((await app.ledger.jobs.list("recurring")).records) == 2


async def test_a_schedule_made_at_run_time_has_a_record_for_each_firing(bench: Bench) -> None:
    await send.schedule("hourly", Every("1h"), 7)
    bench.advance("1h")
    await bench.drain()
    assert "send 7" in ran
    [record] = (await app.ledger.jobs.list("invoices")).records
    assert (record.state, record.payload) == ("completed", b"7")
