"""With 200,000 records of history every background statement takes 5 ms at most on SQLite.

    .venv/bin/python -m benchmarks.ledger_history [rows]

Fills a new SQLite ledger with ended records and refused events, lets relay, worker and courier run
in the background, and prints how long each statement took: the slowest first, the median of several
rounds.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from statistics import median
from time import perf_counter
from typing import Any

from sqlalchemy import event, text
from sqlalchemy.engine import Connection
from sqlalchemy.engine import Engine as Database

from benchmarks.databases import DatabaseKind, database
from towpath.clock import seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import Complete, Lease
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.recorder import LedgerRecorder
from towpath.ledger.records.relay import Relay
from towpath.telemetry.logs import Log

ROWS, ROUNDS, SHOWN, MOST_MS = 200_000, 20, 12, 5.0
_FILL = (
    """
    WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {rows})
    INSERT INTO towpath_jobs (queue, id, job, state, payload, priority, lane, attempts, fence,
        created_at, started_at, finished_at, cancel_requested)
    SELECT 'mails', 'h' || n, 'h' || n, 'completed', zeroblob(400), 50, 'lane' || (n % 100), 1, n,
        1, 1, CASE WHEN n % 2 THEN 1 ELSE 9000000000000 END, 0 FROM n""",
    """
    WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {rows} / 10)
    INSERT INTO towpath_outbox (sink, id, type, source, key, data, at, created_at, attempts,
        refused_at)
    SELECT 'old', 'e' || n, 't', 's', 'k' || n, '1', 1, 1, 0, 1 FROM n""",
)


class Stopwatch:
    """The duration of each statement, by its text."""

    def __init__(self) -> None:
        self.took: dict[str, list[float]] = defaultdict(list)
        event.listen(Database, "before_cursor_execute", self._before)
        event.listen(Database, "after_cursor_execute", self._after)

    def _before(self, connection: Connection, *_: Any) -> None:
        connection.info["began"] = perf_counter()

    def _after(self, connection: Connection, _: Any, words: str, *__: Any) -> None:
        self.took[" ".join(words.split())].append(perf_counter() - connection.info["began"])

    def slowest(self) -> list[tuple[float, str]]:
        """Milliseconds and statements, the slowest first."""
        medians = ((median(times) * 1000, words) for words, times in self.took.items())
        return sorted(medians, reverse=True)


async def work(ledger: Ledger, engine: Engine, server: EmbeddedServer) -> None:
    """Runs the background work again and again."""
    relay = ledger.jobs.relay = Relay(ledger, engine, log=Log())
    recorder = LedgerRecorder(ledger.jobs)
    due = text(
        "UPDATE towpath_jobs SET relay_at = 1 WHERE relay_at IS NOT NULL AND queue = 'mails'"
    )
    for number in range(ROUNDS):
        for part in range(10):
            lane = f"lane{part}"
            await ledger.jobs.submit("mails", b"1", id=f"r{number}.{part}", lane=lane)
        await ledger.write(lambda connection: connection.execute(due))
        await relay.look()
        await relay.reconcile()
        for lease in await engine.claim("mails", worker="w", lease=seconds(30), count=5):
            begun = await recorder.begin(lease)
            if isinstance(begun, Lease):
                await recorder.end(begun, Complete(begun), cancelled=False)
            await engine.complete(lease)
        await ledger.outbox.counts()
        if number % 5 == 4:
            server.ask("FLUSHALL")


async def main(rows: int) -> int:
    with EmbeddedServer() as server:
        async with (
            database(DatabaseKind.SQLITE) as place,
            Ledger(place.url) as ledger,
            Engine(server.url) as engine,
        ):
            await ledger.migrate()
            for words in _FILL:
                fill = text(words.format(rows=rows))
                await ledger.write(lambda connection, fill=fill: connection.execute(fill))
            watch = Stopwatch()
            await work(ledger, engine, server)
    slowest = watch.slowest()
    for took, words in slowest[:SHOWN]:
        sys.stdout.write(f"{took:8.2f} ms  {words[:110]}\n")
    kept = slowest[0][0] <= MOST_MS
    sys.stdout.write(f"{len(slowest)} statements, {rows:,} rows of history: ")
    sys.stdout.write(f"{'all' if kept else 'NOT all'} within {MOST_MS:g} ms\n")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)))
