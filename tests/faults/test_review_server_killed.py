"""I2, I4, I12 with the HTTP server, which is killed while webhooks come and while it runs reviews.

A forge repeats a delivery that was not answered. Every acknowledged review ends, once.
"""

import asyncio
import random
from pathlib import Path

import httpx
import pytest

from tests.amounts import amount
from tests.apps.reviews.deliveries import GITHUB_SECRET, Delivery, github, payload
from tests.faults import record_history
from tests.server.serving import RunningServer, begin, first_line
from tests.waiting import HANGS, eventually_async, eventually_in_loop
from towpath.embedded import EmbeddedServer
from towpath.ledger.ledger import Ledger

MANY, AT_ONCE, KILLS = amount(300, thoroughly=2_000), 30, 2
REVIEWER = """
async def review(task):
    return f"Looked at {task.number}"
"""


class RestartedServer:
    """A server that is started again whenever it was killed."""

    def __init__(self, folder: Path, url: str, database: str) -> None:
        (folder / "reading.py").write_text(REVIEWER)
        self._words = ("serve", "--url", url, "--database", database)
        self._log, self._database = folder / "log", database
        self._env = {
            "TOWPATH_REVIEWS__GITHUB_SECRETS": GITHUB_SECRET,
            "TOWPATH_REVIEWS__REVIEWER_FUNCTION": "reading:review",
            "TOWPATH_OUTBOX__SINKS": "none",
        }
        self.serving = self._started()

    def _started(self) -> RunningServer:
        process = begin(*self._words, log=self._log, env=self._env)
        return RunningServer(process, first_line(process, self._log), self._database, self._log)

    def kill(self) -> None:
        self.serving.kill()
        self.serving.end()
        self.serving = self._started()


class WebhookSender:
    """Delivers each webhook until it is answered."""

    def __init__(self, restarted: RestartedServer) -> None:
        self._server, self.promised = restarted, set[str]()

    async def deliver_all(self) -> None:
        turn = asyncio.Semaphore(AT_ONCE)
        async with httpx.AsyncClient(timeout=HANGS) as client:

            async def one(sent: Delivery) -> None:
                async with turn:
                    await eventually_async(lambda: self._answered(client, sent))

            await asyncio.gather(*(one(delivery(number)) for number in range(1, MANY + 1)))

    async def _answered(self, client: httpx.AsyncClient, sent: Delivery) -> bool:
        place = f"{self._server.serving.address}/api/v1/webhooks/github"
        try:
            answer = await client.post(place, content=sent.body, headers=sent.headers)
        except httpx.TransportError:
            return False
        assert answer.status_code == 202, answer.text
        self.promised.add(answer.json()["id"])
        return True


def delivery(number: int) -> Delivery:
    """A delivery about a pull request of its own."""
    changes = {"pull_request.number": number, "number": number}
    body = payload("github_pull_request", changes)
    return github("pull_request", body, delivery=f"delivery-{number}")


@pytest.mark.timeout(2 * HANGS)
async def test_every_acknowledged_review_ends_once(
    server: EmbeddedServer, url: str, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    async with Ledger(url) as ledger:
        await ledger.migrate()
        await record_history.watch(ledger)
        restarted = RestartedServer(tmp_path, server.url, url)
        sender = WebhookSender(restarted)
        try:
            delivering = asyncio.create_task(sender.deliver_all())
            for number in range(KILLS):
                share = int(MANY * (number + chance.random()) / KILLS)
                await eventually_in_loop(
                    lambda share=share: len(sender.promised) >= share, within=HANGS
                )
                await asyncio.to_thread(restarted.kill)
            await delivering

            async def none_left() -> bool:
                return not await record_history.left(ledger)

            await eventually_async(none_left)
        finally:
            restarted.serving.end()
        found, steps = await record_history.rows(ledger), await record_history.history(ledger)
    assert len(sender.promised) == MANY
    assert sender.promised == found.keys()
    assert record_history.not_once(found, steps) + record_history.regressions(steps) == []
    assert {row.state for row in found.values()} == {"completed"}
