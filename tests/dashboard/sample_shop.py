"""A shop as it looks at three in the afternoon, and the pictures of it in the documentation.

    python -m tests.dashboard.sample_shop docs/images

Three hours pass on the script's own clock, so that charts have something to show. The pages show
what the engine was told by its own verbs.
"""

import asyncio
import json
import math
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from playwright.sync_api import ViewportSize, expect

from tests.dashboard.browsing import Tab, started
from tests.server.serving import up
from towpath import Engine, LanePolicy, QueueOptions, minutes
from towpath.clock import ManualClock
from towpath.embedded.process import ask
from towpath.engine.model import Bury, Complete, Fail, Lease, NewJob, Settlement, new_job

MINUTES = 180
USUAL = {"mails": 240, "thumbnails": 90, "chat": 60, "invoices": 25, "search-index": 140}
"""Jobs a minute."""
REASONS = (
    "SMTPServerDisconnected: mx.example.net closed the connection",
    "TimeoutError: the thumbnailer took longer than 30 s",
    "HTTPStatusError: 503 from billing.internal",
)
NAMES = [f"{name}-{n}" for name in ("ann", "ben", "cleo", "dora", "emil") for n in range(60)]
SIZE: ViewportSize = {"width": 1200, "height": 940}


async def fill(url: str) -> None:
    """Lets three hours pass until now, and leaves the shop busy."""
    chance, clock = Random(7), ManualClock(datetime.now(UTC) - timedelta(minutes=MINUTES))
    async with Engine(url, clock=clock) as engine:
        await engine.queues.configure("chat", QueueOptions(lanes=LanePolicy.BLOCK))
        minute = 0
        while clock.now < datetime.now(UTC):
            for queue, usual in USUAL.items():
                wave = 1 + 0.35 * math.sin(minute / 25) + chance.uniform(-0.15, 0.15)
                await _minute(engine, queue, round(usual * wave), minute, chance)
            clock.advance(minutes(1))
            minute += 1
    async with Engine(url) as engine:
        await _now(engine, chance)


async def work(url: str) -> None:
    """Runs the workers for some seconds while a page is open, so that there are rates."""
    chance = Random(11)
    async with Engine(url) as engine:
        for queue, usual in USUAL.items():
            await _minute(engine, queue, usual // 12, MINUTES, chance)


async def _minute(engine: Engine, queue: str, count: int, minute: int, chance: Random) -> None:
    """Submits the jobs of a minute, and runs what the workers can do of it."""
    await engine.submit_many(queue, [_job(queue, minute, n, chance) for n in range(count)])
    # From two o'clock on the mail server is slow, and mails pile up.
    share = 0.97 if queue == "mails" and minute > 0.7 * MINUTES else 1.02
    for _ in range(4):
        worker, lease = f"{chance.choice(('web', 'batch'))}-{chance.randint(1, 4)}", minutes(5)
        leases = await engine.claim(
            queue, worker=worker, lease=lease, count=round(count * share / 4)
        )
        await engine.settle([_end(held, chance.random(), chance) for held in leases])


def _end(lease: Lease, luck: float, chance: Random) -> Settlement:
    reason = chance.choice(REASONS)
    if luck > 0.012:
        return Complete(lease)
    return Fail(lease, reason) if luck > 0.0005 else Bury(lease, reason)


def _job(queue: str, minute: int, number: int, chance: Random) -> NewJob:
    name = chance.choice(NAMES)
    payload = json.dumps({"to": f"{name}@example.org", "order": minute * 100 + number}).encode()
    return new_job(payload, lane=name) if queue == "chat" else new_job(payload)


async def _now(engine: Engine, chance: Random) -> None:
    for queue, usual in USUAL.items():
        await _minute(engine, queue, usual, MINUTES, chance)
    for queue in ("mails", "thumbnails", "search-index", "chat"):
        await engine.submit_many(queue, [_job(queue, 999, n, chance) for n in range(40)])
        for number in range(1, 4):
            lease = minutes(30)
            await engine.claim(queue, worker=f"web-{number}", lease=lease, count=6)
    for n in range(6):
        await engine.submit("reports", b'{"month": "October"}', id=f"october-{n}")
    await engine.queues.pause("reports")
    due = [new_job(b'{"kind": "reminder"}', delay=minutes(5 + 3 * n)) for n in range(36)]
    await engine.submit_many("mails", due)


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as home, up(Path(home)) as running:
        ask(running.store, "CONFIG", "SET", "maxmemory", "2gb")  # as `towpath doctor` recommends
        asyncio.run(fill(running.said["store"]))
        with started() as browser:
            context = browser.new_context(viewport=SIZE, reduced_motion="reduce")
            tab = Tab(running, context)
            tab.log_in(running.key)
            tab.live()
            with ThreadPoolExecutor() as beside:  # Playwright has a loop in this thread
                beside.submit(asyncio.run, work(running.said["store"])).result()
            row = tab.page.get_by_role("row").filter(has_text="search-index")
            expect(row).not_to_contain_text("–")  # noqa: RUF001 -- as the page has it
            tab.page.screenshot(path=folder / "dashboard.png")
            context.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
