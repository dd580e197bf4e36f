"""The tests of the shop: real jobs on a private server, with a clock that the tests move."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from shop.jobs import Mail, app, book, daily_report, seconds_spent, send_mail, thumbnail
from shop.web import web
from towpath import State
from towpath.testing import Bench


@pytest.fixture
async def bench(towpath_bench: Any) -> AsyncIterator[Bench]:
    async with towpath_bench(app) as bench:
        yield bench


@pytest.fixture
async def client(bench: Bench) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(web)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        yield client


async def test_a_mail_is_sent(bench: Bench) -> None:
    job = await send_mail.submit(Mail("anna@example.org", "Welcome"))
    await bench.drain()
    assert await job.result(within=5) == 1
    assert "send_mail" in seconds_spent


async def test_a_mail_to_somebody_who_is_away_comes_back_later(bench: Bench) -> None:
    job = await send_mail.submit(Mail("ben@away.example", "Welcome"))
    await bench.drain()
    assert await job.state() is State.DELAYED


async def test_orders_of_a_customer_are_booked_in_order(
    bench: Bench, client: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_DATABASE", str(tmp_path / "shop.db"))
    for number in (1, 2, 3, 3):
        order = {"number": number, "customer": "anna", "cents": 100}
        assert (await client.post("/orders", json=order)).status_code == 202
    assert len(await bench.drain()) == 3
    assert await book.job("order-3").result(within=5) == 300
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        booked = database.execute("SELECT number FROM orders").fetchall()
    assert booked == [(1,), (2,), (3,)]


async def test_a_thumbnail_shows_its_progress(
    bench: Bench, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    picture = tmp_path / "cat.raw"
    picture.write_bytes(bytes(640))
    job = (await client.post("/thumbnails", params={"path": str(picture)})).json()["job"]
    seen = (await client.get(f"/thumbnails/{job}")).json()
    assert seen == {"state": "ready", "progress": None}
    await bench.drain()
    seen = (await client.get(f"/thumbnails/{job}")).json()
    assert seen == {"state": "done", "progress": {"done": 10, "of": 10}}
    assert await thumbnail.job(job).result(within=5) == f"{picture}.small"
    assert (await client.get("/thumbnails/unknown")).status_code == 404


async def test_a_thumbnail_is_cancelled(bench: Bench, client: httpx.AsyncClient) -> None:
    job = await thumbnail.submit("cat.raw")
    assert (await client.delete(f"/thumbnails/{job.id}")).json() == {"state": "cancelled"}
    assert await bench.drain() == []
    assert (await client.delete("/thumbnails/unknown")).status_code == 404


async def test_the_report_comes_every_day(bench: Bench) -> None:
    bench.advance("24h")
    ran = await bench.drain()
    assert [job.state for job in ran] == [State.DONE, State.DONE]
    assert [mail.subject[:6] for mail in bench.submitted(send_mail)] == ["Report"]
    assert daily_report.queue == "recurring"
