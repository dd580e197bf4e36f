"""Calls of a program that only submits, such as a web application, while Redis is away."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.waiting import eventually
from towpath import Towpath
from towpath.apps.timers.plugin import Timers
from towpath.embedded import EmbeddedServer
from towpath.errors import ServerUnreachable
from towpath.ledger.ledger import Ledger

MAILS, INVOICES = "mails", "invoices"


@pytest.fixture(params=["frozen", "killed"])
def lose(request: pytest.FixtureRequest, redis: EmbeddedServer) -> Callable[[], None]:
    """Stops Redis from answering."""
    return redis.pause if request.param == "frozen" else redis.kill


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(data=tmp_path / "valkey") as server:
        yield server


def test_a_submit_gives_up_after_its_timeout_and_a_record_is_accepted(
    redis: EmbeddedServer, lose: Callable[[], None], prepared_file_url: str
) -> None:
    app = Towpath(redis.url, ledger=prepared_file_url, submit_timeout="500ms")
    timers = Timers(app)

    @app.handler(MAILS)
    async def send(number: int) -> None: ...

    @app.handler(INVOICES, record=True)
    async def charge(number: int) -> None: ...

    send.blocking.submit(1)
    timers.blocking.submit("t", 1, task_id="x", delay="1h")
    lose()
    with pytest.raises(ServerUnreachable):
        send.blocking.submit(2)
    with pytest.raises(ServerUnreachable):
        timers.blocking.cancel("t", "x")
    accepted = charge.blocking.submit(3, id="invoice-3")
    assert not accepted.existed
    if redis.running:
        redis.unpause()
    else:
        redis.start()

    def works() -> bool:
        with suppress(ServerUnreachable):
            return bool(send.blocking.submit(4))
        return False

    def is_cancelled() -> bool:
        """Timers have an engine of their own, which polls Redis once a second."""
        with suppress(ServerUnreachable):
            return timers.blocking.cancel("t", "x").state == "cancelled"
        return False

    eventually(works)
    eventually(is_cancelled)

    async def recorded() -> str:
        async with Ledger(prepared_file_url) as ledger:
            return (await ledger.jobs.get(INVOICES, "invoice-3")).state

    assert asyncio.run(recorded()) == "pending"
