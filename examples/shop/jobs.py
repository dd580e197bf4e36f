"""The background jobs of the shop. Start a worker with `towpath worker shop.jobs:app`."""

import os
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from towpath import CallNext, Context, Exponential, Handlers, Snooze, Towpath


@dataclass
class Mail:
    to: str
    subject: str


@dataclass
class Order:
    number: int
    customer: str
    cents: int


@dataclass
class Step:
    """The progress of a thumbnail."""

    done: int
    of: int


@dataclass
class State:
    """What the handlers share; in a real shop, the connection to the mail server."""

    sent: list[Mail] = field(default_factory=list[Mail])
    closed: bool = False


seconds_spent: dict[str, float] = {}


async def resources() -> AsyncIterator[State]:
    state = State()
    yield state
    state.closed = True


async def timed(ctx: Context, call_next: CallNext) -> Any:
    """Middleware that measures how long each handler takes."""
    began = time.perf_counter()
    try:
        return await call_next()
    finally:
        seconds_spent[ctx.handler] = time.perf_counter() - began


jobs = Handlers()


@jobs.handler("mails", retry=Exponential(first="5s"), time_limit="30s")
async def send_mail(mail: Mail, ctx: Context[State]) -> int:
    if mail.to.endswith("@away.example"):
        raise Snooze("1h")  # comes back in an hour; the attempt does not count
    ctx.state.sent.append(mail)
    return len(ctx.state.sent)


@jobs.handler("thumbnails", processes=2, time_limit="2m")
def thumbnail(path: str, ctx: Context[State]) -> str:
    pixels = Path(path).read_bytes()
    small, rows = bytearray(), range(0, len(pixels), 64)
    for row in rows:
        if ctx.cancelled:
            break
        small += pixels[row : row + 64 : 8]
        ctx.progress(Step(row // 64 + 1, len(rows)))
    target = Path(f"{path}.small")
    target.write_bytes(small)
    return str(target)


@jobs.handler("books", max_attempts=3)
def book(order: Order) -> int:
    """Runs in a thread, because the database driver blocks. A second run changes nothing."""
    with closing(sqlite3.connect(os.environ.get("SHOP_DATABASE", "shop.db"))) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS orders (number PRIMARY KEY, customer, cents)")
        row = (order.number, order.customer, order.cents)
        db.execute("INSERT OR IGNORE INTO orders VALUES (?, ?, ?)", row)
        query = "SELECT sum(cents) FROM orders WHERE customer = ?"
        return db.execute(query, (order.customer,)).fetchone()[0]


@jobs.recurring("0 6 * * *", tz="Europe/Berlin")
async def daily_report(ctx: Context) -> None:
    await send_mail.submit(Mail("boss@shop.example", f"Report {ctx.headers['scheduled']}"))


app = Towpath(lifespan=resources, middleware=[timed])
app.include(jobs)
