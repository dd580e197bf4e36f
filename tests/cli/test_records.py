"""Jobs whose record is the database, from the command line: submitted, and retried when dead."""

from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.waiting import HANGS, eventually_async
from towpath.app.app import Towpath
from towpath.embedded import EmbeddedServer
from towpath.engine.states import State
from towpath.worker.worker import Worker


@pytest.fixture
def database(towpath: Command, tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/records.db"
    assert towpath("migrate", "--database", url).code == 0
    towpath.env["TOWPATH_DATABASE"] = url
    return url


async def test_a_dead_record_is_retried_as_any_dead_job(
    towpath: Command, server: EmbeddedServer, database: str
) -> None:
    app, broken = Towpath(server.url, ledger=database), [True]

    @app.handler("invoices", record=True, max_attempts=1)
    async def send(n: int) -> int:
        if broken[0]:
            raise ConnectionError("no printer")
        return n

    async with app:
        jobs = await send.submit_many([send.new(n, id=f"i-{n}") for n in range(3)])
        await Worker(app, signals=()).drain()
        assert {await job.state() for job in jobs} == {State.DEAD}
        broken[0] = False
        assert towpath("dead", "retry", "invoices/i-0").out == "invoices/i-0  ready\n"
        assert towpath("dead", "retry", "invoices", "--all").out == "invoices  2 retried\n"

        async def done() -> bool:
            await Worker(app, signals=()).drain()
            return {await job.state() for job in jobs} == {State.DONE}

        await eventually_async(done)
        assert (await app.engine.inspect.counts("invoices")).dead == 0


async def test_a_record_is_submitted_and_waited_for(
    towpath: Command, server: EmbeddedServer, database: str
) -> None:
    app = Towpath(server.url, ledger=database)

    @app.handler("invoices", record=True)
    async def send(n: int) -> str:
        return f"invoice {n}"

    submit = ("submit", "invoices", "7", "--id", "i-7", "--record")
    assert towpath(*submit).out == "invoices/i-7  ready\n"
    assert towpath(*submit).out == "invoices/i-7  ready  existed\n"
    assert towpath("submit", "invoices", "8", "--id", "i-7", "--record").code == 4
    assert towpath(*submit, "--lines").code == 2
    async with app:
        assert (await send.job("i-7").info()).payload == b"7"
        await Worker(app, signals=()).drain()
        assert await send.job("i-7").result(within=HANGS) == "invoice 7"
    assert towpath(*submit, "--wait", "20s").out == '"invoice 7"\n'


async def test_many_records_are_cancelled_and_their_queue_is_deleted(
    towpath: Command, server: EmbeddedServer, database: str
) -> None:
    app = Towpath(server.url, ledger=database)

    @app.handler("invoices", record=True)
    async def send(n: int) -> int:
        return n

    async with app:
        jobs = await send.submit_many([send.new(n, id=f"i-{n}") for n in range(3)])
        cancel = ("jobs", "cancel", "--queue", "invoices", "--all", "--yes", "--json")
        assert towpath(*cancel).object["cancelled"] == 3
        assert {await job.state() for job in jobs} == {State.CANCELLED}
        await send.submit(7, id="i-7")
        ran = towpath("queues", "delete", "invoices", "--yes", "--json")
        assert (ran.code, ran.object["deleted"]) == (0, 4)
        assert {await job.state() for job in jobs} == {State.GONE}
    assert towpath("queues", "show", "invoices").code == 5
