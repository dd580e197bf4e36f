"""Writes the data of a Redis and a database with everything in them, to be kept.

`python -m tests.stored.make` writes into `tests/stored/kept`. The database there was written by
commit 47ef80a and must not be written again by newer code: it proves that data of older code can be
read. The data of Redis was written by the same commit; its records and the `meta` of its queues
follow the layout until 0.1.0.
A release that changes what is stored gets a folder of its own:
`python -m tests.stored.make FOLDER`.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.postgres import PostgresServer
from tests.stored import database_dump, facts, redis_dump
from tests.stored.fill_database import ORDERS, SINKS, write_keys, write_outbox, write_records
from tests.stored.fill_redis import write_store
from towpath import Engine, Towpath
from towpath.clock import ManualClock, wall_ms
from towpath.embedded import EmbeddedServer
from towpath.embedded.process import items
from towpath.ledger.ledger import Ledger

KEPT = Path(__file__).parent / "kept"


async def write(server: EmbeddedServer, url: str) -> dict[str, Any]:
    """Fills Redis and the database, and writes down the facts about them."""
    clock = ManualClock()
    async with Ledger(url, sinks=SINKS) as ledger:
        await ledger.migrate()
        await write_keys(ledger)
        async with Towpath(server.url, clock=clock, ledger=ledger) as app:
            await write_records(app)
        await write_outbox(ledger)
        # No relay runs here to enqueue the record in Redis.
        await ledger.jobs.submit(ORDERS, b'"unseen"', id="unseen")
        async with Engine(server.url, clock=clock) as engine:
            await write_store(engine, clock)
            keys = [redis_dump.as_bytes(key).decode() for key in items(server.ask("KEYS", "*"))]
            refs = sorted(facts.jobs_of(keys), key=str)
            return {
                "clock": clock.now.isoformat(),
                "written_ms": wall_ms(),
                "store": await facts.of_store(engine, refs),
                "database": await facts.of_database(ledger),
            }


def main(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home, EmbeddedServer() as server:
        file = Path(home, "ledger.db")
        told = asyncio.run(write(server, f"sqlite:///{file}"))
        redis_dump.dump(server, folder / "store.jsonl")
        database_dump.dump_file(file, folder / "ledger.sqlite.sql")
        with PostgresServer() as postgres:
            # The same again: tokens come from the same clock, so the data of Redis fits both
            # databases.
            server.ask("FLUSHALL")
            asyncio.run(write(server, postgres.url()))
            (folder / "ledger.postgres.sql").write_text(postgres.dump("postgres"))
    (folder / "facts.json").write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else KEPT)
