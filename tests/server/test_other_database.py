"""A server reports that a queue's workers keep their records in another database."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Command
from tests.server.serving import RunningServer
from tests.waiting import eventually_async
from towpath.app.app import Towpath
from towpath.app.submitting import AppHandler
from towpath.clock import hours
from towpath.ledger.ledger import Ledger
from towpath.worker.worker import Worker


@pytest.fixture
def other(tmp_path: Path) -> str:
    """A migrated database other than the server's."""
    url = f"sqlite:///{tmp_path}/other.db"

    async def migrate() -> None:
        async with Ledger(url) as ledger:
            await ledger.migrate()

    asyncio.run(migrate())
    return url


def invoices(
    running: RunningServer, database: str, queue: str
) -> tuple[Towpath, AppHandler[Any, Any, Any]]:
    app = Towpath(running.said["store"], ledger=database)

    @app.handler(queue, record=True)
    async def charge(invoice: dict[str, int]) -> None: ...

    return app, charge


@asynccontextmanager
async def working(app: Towpath, queue: str) -> AsyncGenerator[None]:
    """A worker that the server lists."""
    async with app:
        worker = Worker(app, signals=())
        task = asyncio.create_task(worker.run())
        try:

            async def is_listed() -> bool:
                listed = await app.engine.workers.list()
                return any(
                    queue in living.report.recorded and living.report.ledger for living in listed
                )

            await eventually_async(is_listed)
            yield
        finally:
            worker.stop()
            await task


def of_ledger(told: list[dict[str, Any]], queue: str) -> list[str]:
    """The verdicts about that queue's database."""
    return [
        finding["verdict"]
        for finding in told
        if finding["check"] == "ledger" and queue in finding["found"]
    ]


async def test_a_server_with_another_database_than_the_workers_says_so(
    running: RunningServer, queue: str, other: str, tmp_path: Path
) -> None:
    (app, handler), client = invoices(running, other, queue), running.client()
    towpath = Command(running.said["store"], tmp_path)
    towpath.env["TOWPATH_DATABASE"] = running.database

    async with working(app, queue):
        await handler.submit({"amount": 12}, id="i-7", delay=hours(1))

        async def server_knows() -> bool:
            found = await asyncio.to_thread(client.get, "/api/v1/doctor")
            return found.is_success and of_ledger(found.json()["findings"], queue) == ["warn"]

        await eventually_async(server_knows)
        ready = await asyncio.to_thread(client.get, "/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "ready")
        part = ready.json()["parts"]["ledger"]
        assert (part["ok"], part["warning"]) == (True, "ledger_differs")
        assert queue not in ready.text  # it needs no key
        said = [line for line in running.events() if line["event"] == "ledger.differs"]
        assert [line["queue"] for line in said if line["queue"] == queue] == [queue]

        page = await asyncio.to_thread(client.get, f"/ui/queues/{queue}/jobs/i-7")
        assert re.search(r'id="elsewhere"', page.text)
        ran = await asyncio.to_thread(towpath, "doctor", "--json")
        assert of_ledger(ran.objects, queue) == ["warn"]
        ran = await asyncio.to_thread(towpath, "doctor", "--json", TOWPATH_DATABASE=other)
        assert of_ledger(ran.objects, queue) == []

    page = await asyncio.to_thread(client.get, f"/ui/queues/{queue}/jobs/i-7")
    # this holds without a worker, too: the row is not here
    assert re.search(r'id="elsewhere"', page.text)


async def test_a_server_with_the_database_of_the_workers_reports_nothing(
    running: RunningServer, queue: str
) -> None:
    (app, handler), client = invoices(running, running.database, queue), running.client()
    async with working(app, queue):
        [mine] = [
            living for living in await app.engine.workers.list() if queue in living.report.queues
        ]
        async with Ledger(running.database) as ledger:
            assert (mine.report.ledger, mine.report.recorded) == (await ledger.identity(), [queue])
        await handler.submit({"amount": 12}, id="i-7", delay=hours(1))
        found = await asyncio.to_thread(client.get, "/api/v1/doctor")
        assert of_ledger(found.json()["findings"], queue) == []
        page = await asyncio.to_thread(client.get, f"/ui/queues/{queue}/jobs/i-7")
        assert 'id="elsewhere"' not in page.text
