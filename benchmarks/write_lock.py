"""How long each kind of change holds SQLite's write lock, and how much of that is Python.

    .venv/bin/python -m benchmarks.write_lock

Makes each kind of change several times, alone and a hundred at once, and prints the medians per
transaction: from taking the lock to the end of the commit, the part of it in SQLite, and the rest,
which is Python. Then the rate at which records are made, begun and completed.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from statistics import median
from time import perf_counter
from typing import Any, ClassVar, NamedTuple, cast

from sqlalchemy import text

from benchmarks.databases import DatabaseKind, database
from towpath.engine.model import Complete, Fail, JobRef, Lease, Settlement
from towpath.ids import Token, job_id, queue_name
from towpath.ledger.ledger import Ledger
from towpath.ledger.outbox.event import NewEvent
from towpath.ledger.records.attempts import Ending
from towpath.ledger.records.open_records import as_read, claim_due, write_down

ROUNDS, MANY, RECORDS, AT_ONCE = 20, 100, 4_000, 200
_WRITES = ("INSERT", "UPDATE", "DELETE", "BEGIN IMMEDIATE")


class LockHold(NamedTuple):
    """One time that the lock was held."""

    seconds: float
    in_sqlite: float
    statements: int


class WatchedConnection(sqlite3.Connection):
    """A connection that notes when it has the write lock, and what it does meanwhile."""

    held: ClassVar[list[LockHold]] = []

    def __init__(self, *rest: Any, **more: Any) -> None:
        super().__init__(*rest, **more)
        self._since, self._inside, self._statements = 0.0, 0.0, 0

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(_Cursor)

    def execute(self, words: str, *rest: Any) -> Any:
        return self.timed(words, lambda: super(WatchedConnection, self).execute(words, *rest))

    def commit(self) -> None:
        self.timed("COMMIT", super().commit)

    def rollback(self) -> None:
        self.timed("ROLLBACK", super().rollback)

    def timed(self, words: str, call: Callable[[], Any]) -> Any:
        """The result of *call*; its time is spent in SQLite."""
        began = perf_counter()
        answer = call()
        ended = perf_counter()
        if not self._since and words.lstrip().startswith(_WRITES):
            # The time of waiting for other transactions does not count.
            self._since = began = ended if words.startswith("BEGIN") else began
            self._inside, self._statements = 0.0, 0
        if self._since:
            self._inside += ended - began
            self._statements += bool(words)
            if words in {"COMMIT", "ROLLBACK"}:
                self.held.append(LockHold(ended - self._since, self._inside, self._statements))
                self._since = 0.0
        return answer


class _Cursor(sqlite3.Cursor):
    def execute(self, words: str, *rest: Any) -> Any:
        return self._timed(words, lambda: super(_Cursor, self).execute(words, *rest))

    def executemany(self, words: str, *rest: Any) -> Any:
        return self._timed(words, lambda: super(_Cursor, self).executemany(words, *rest))

    def fetchall(self) -> Any:
        return self._timed("", super().fetchall)

    def _timed(self, words: str, call: Callable[[], Any]) -> Any:
        return cast("WatchedConnection", self.connection).timed(words, call)


# ── the changes ──────────────────────────────────────────────────────────────────────────


class RecordWriter:
    """Makes each kind of change to records of its own."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self._number, self._token = ledger, 0, 0

    def ids(self, many: int) -> list[str]:
        self._number += many
        return [f"j{n}" for n in range(self._number - many, self._number)]

    def lease(self, id: str) -> Lease:
        self._token += 1
        job = JobRef(queue_name("mails"), job_id(id))
        return Lease(job, b"", Token(self._token), 1, "w", 0, 0)

    async def create(self, id: str, **options: Any) -> None:
        await self.ledger.jobs.submit("mails", b"x" * 400, id=id, **options)

    async def begin(self, id: str) -> Lease:
        lease = self.lease(id)
        await self.ledger.jobs.begin(lease)
        return lease

    async def end(self, lease: Lease, settlement: Settlement) -> None:
        await self.ledger.jobs.end(Ending(lease, settlement, cancelled=False))

    async def made(self, many: int) -> list[str]:
        ids = self.ids(many)
        await _all(self.create(id) for id in ids)
        return ids

    async def begun(self, many: int) -> list[Lease]:
        ids = await self.made(many)
        return [await task for task in [asyncio.create_task(self.begin(id)) for id in ids]]


async def _all(things: Any) -> None:
    await asyncio.gather(*things)


Step = Callable[[], Awaitable[Any]]


async def _steps(writer: RecordWriter, many: int) -> dict[str, Step]:
    """The steps to measure, fully prepared."""
    ledger, jobs = writer.ledger, writer.ledger.jobs
    new, about = writer.ids(many), writer.ids(many)
    waiting, again = await writer.made(many), await writer.made(many)
    done, failing = await writer.begun(many), await writer.begun(many)
    mixed = writer.ids(many), await writer.made(many), await writer.begun(many)
    due = text("UPDATE towpath_jobs SET relay_at = 1 WHERE relay_at IS NOT NULL")
    await ledger.write(lambda connection: connection.execute(due))
    taken: list[Any] = []

    async def take() -> None:
        taken[:] = as_read(await ledger.write(lambda connection: claim_due(connection, "mails")))

    async def complete(leases: list[Lease]) -> None:
        await _all(writer.end(lease, Complete(lease)) for lease in leases)

    async def everything() -> None:
        new, waiting, running = mixed
        await _all(
            [*map(writer.create, new), *map(writer.begin, waiting)]
            + [writer.end(lease, Complete(lease)) for lease in running]
        )

    parcels = [NewEvent(type="t", key=f"k{n}", data=b"{}") for n in range(many)]
    return {
        "create": lambda: _all(writer.create(id) for id in new),
        "create about a subject": lambda: _all(
            writer.create(id, subject=f"s{n % 10}") for n, id in enumerate(about)
        ),
        "begin": lambda: _all(writer.begin(id) for id in waiting),
        "end": lambda: complete(done),
        "fail": lambda: _all(writer.end(lease, Fail(lease, "no")) for lease in failing),
        "cancel": lambda: _all(jobs.cancel("mails", id) for id in again),
        "retry": lambda: _all(jobs.retry("mails", id) for id in again),
        "create, begin, end": everything,
        "relay takes": take,
        "relay writes": lambda: ledger.decide(
            lambda connection: write_down(connection, [at.record for at in taken], [], jobs.tell)
        ),
        "outbox": lambda: ledger.write(lambda connection: ledger.outbox.put(connection, parcels)),
        "keys": lambda: _all(ledger.keys.create("k", scopes=["read"]) for _ in range(many)),
    }


async def measure(ledger: Ledger, many: int) -> dict[str, list[LockHold]]:
    writer, found = RecordWriter(ledger), dict[str, list[LockHold]]()
    writer.ids(1_000_000 * many)
    for _ in range(ROUNDS):
        for name, step in (await _steps(writer, many)).items():
            WatchedConnection.held.clear()
            await step()
            found.setdefault(name, []).extend(WatchedConnection.held)
    return found


async def rate(ledger: Ledger) -> float:
    """Records per second that are made, begun and completed."""
    writer, turn = RecordWriter(ledger), asyncio.Semaphore(AT_ONCE)

    async def one(id: str) -> None:
        async with turn:
            await writer.create(id)
            lease = await writer.begin(id)
            await writer.end(lease, Complete(lease))

    began = perf_counter()
    await _all(one(f"r{n}") for n in range(RECORDS))
    return RECORDS / (perf_counter() - began)


async def main() -> None:
    real = sqlite3.connect
    async with database(DatabaseKind.SQLITE) as place, Ledger(place.url) as ledger:
        await ledger.migrate()
        rates = [await rate(ledger)]
    async with database(DatabaseKind.SQLITE) as place, Ledger(place.url, sinks=["one"]) as ledger:
        sqlite3.connect = lambda *a, **k: real(*a, factory=WatchedConnection, **k)  # pyright: ignore -- measured
        await ledger.migrate()
        for many in (1, MANY):
            sys.stdout.write(f"\n{many} at once          lock ms   SQLite   Python  statements\n")
            for name, held in (await measure(ledger, many)).items():
                lock, inside = (median(sample[place] for sample in held) * 1000 for place in (0, 1))
                count = median(sample.statements for sample in held)
                line = f"{name:24}{lock:8.3f} {inside:8.3f} {lock - inside:8.3f} {count:6g}\n"
                sys.stdout.write(line)
        sqlite3.connect = real
    sys.stdout.write(f"\n{median(rates):,.0f} records/s\n")


if __name__ == "__main__":
    asyncio.run(main())
