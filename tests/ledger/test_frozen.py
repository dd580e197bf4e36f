"""A process that stands still in a transaction does not keep its rows for ever."""

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import event, text
from sqlalchemy.engine import Connection, Engine

from tests.ledger.records import lease, made
from tests.programs import Bounded
from tests.waiting import HANGS
from towpath import milliseconds
from towpath.engine.model import Complete
from towpath.ledger.database.writing import Overtaken, Write
from towpath.ledger.errors import LedgerBusy
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.attempts import Ending
from towpath.ledger.records.record import RecordState

ADD = "INSERT INTO notes VALUES ((SELECT count(*) FROM notes))"
COUNT = "SELECT count(*) FROM notes"
THINKS = """
import asyncio, sys
from sqlalchemy import text
from towpath.ledger.ledger import Ledger
from towpath.ledger.database.writing import Overtaken

COUNT = text("SELECT count(*) FROM notes")

def decide(connection):
    found = connection.scalar(COUNT)
    print("thinks", flush=True)
    sys.stdin.readline()

    def write(connection):
        if connection.scalar(COUNT) != found:
            raise Overtaken
        connection.execute(text("INSERT INTO notes VALUES (:n)"), {"n": found})

    return write

async def main():
    async with Ledger(sys.argv[1]) as ledger:
        await ledger.decide(decide)

asyncio.run(main())
"""
WORKS = """
import asyncio, sys
from towpath.engine.model import Complete, JobRef, Lease
from towpath.ledger.records.attempts import Ending
from towpath.ledger.errors import LedgerBusy
from towpath.ledger.ledger import Ledger

async def work(ledger, id):
    await ledger.jobs.submit("theirs", b"1", id=id)
    lease = Lease(JobRef("theirs", id), b"", 1, 1, "w", 0, 0)
    await ledger.jobs.begin(lease)
    await ledger.jobs.end(Ending(lease, Complete(lease), cancelled=False))

async def main():
    async with Ledger(sys.argv[1]) as ledger:
        asked = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        number = 0
        while not asked.done():
            await asyncio.gather(*(work(ledger, f"t{number}.{n}") for n in range(5)))
            number += 1
            print(number, flush=True)
            await asyncio.sleep(0.02)

asyncio.run(main())
"""


async def test_postgresql_ends_an_idle_transaction(server_url: str) -> None:
    """A frozen process cannot give up its locks, so the server ends its transaction."""
    async with Ledger(server_url) as ledger:
        await ledger.migrate()
        asked = text("SHOW idle_in_transaction_session_timeout")
        assert await ledger.read(lambda connection: connection.scalar(asked)) == "10s"


def thinking(url: str) -> Bounded[str]:
    """A process that has read, and has not written yet."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", THINKS, url]
    other = Bounded[str](command, stdin=pipe, stdout=pipe, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "thinks\n"
    return other


async def test_on_sqlite_a_transaction_without_writes_blocks_no_other(
    prepared_file_url: str,
) -> None:
    """It stands still before its first write: the others write meanwhile."""
    async with Ledger(prepared_file_url) as ledger:
        await ledger.write(
            lambda connection: connection.execute(text("CREATE TABLE notes (n INTEGER)"))
        )
        other = await asyncio.to_thread(thinking, prepared_file_url)
        other.send_signal(signal.SIGSTOP)
        try:
            for _ in range(5):
                await ledger.write(lambda connection: connection.execute(text(ADD)))
        finally:
            other.send_signal(signal.SIGCONT)
            # What it read is no longer true, so it decides again.
            told, _ = await asyncio.to_thread(other.communicate, "on\non\n", timeout=HANGS)
        assert (told, other.returncode) == ("thinks\n", 0)
        numbers = text("SELECT n FROM notes ORDER BY n")
        assert await ledger.read(lambda connection: list(connection.scalars(numbers))) == [
            0,
            1,
            2,
            3,
            4,
            5,
        ]


async def test_a_decision_on_outdated_rows_is_repeated(
    prepared_file_url: str, tmp_path: Path
) -> None:
    """This holds for changes that share a transaction too: each is made once, on current rows.
    Others write while all of them decide.
    """
    seen: list[list[int]] = [[], [], []]
    thinking, go_on = threading.Barrier(2, timeout=HANGS), threading.Event()

    def decide(connection: Connection, which: int) -> Write[int]:
        found = connection.scalar(text(COUNT)) or 0
        seen[which].append(found)
        if which == 2 and len(seen[which]) == 1:  # the last of those that share a transaction
            thinking.wait()
            go_on.wait(HANGS)

        def write(connection: Connection) -> int:
            if connection.scalar(text(COUNT)) != found:
                raise Overtaken
            connection.execute(text("INSERT INTO notes VALUES (:n)"), {"n": found})
            return found

        return write

    async with Ledger(prepared_file_url) as ledger:
        await ledger.write(
            lambda connection: connection.execute(text("CREATE TABLE notes (n INTEGER)"))
        )
        tasks = [
            asyncio.create_task(
                ledger.decide(lambda connection, which=which: decide(connection, which))
            )
            for which in range(3)
        ]
        await asyncio.to_thread(thinking.wait)
        try:
            with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
                other.execute(ADD)
        finally:
            go_on.set()
        assert await asyncio.gather(*tasks) == [1, 2, 3]
    assert seen == [[0, 1], [0, 2], [0, 3]]


async def test_a_submit_reads_nothing_while_it_holds_the_write_lock(
    prepared_file_url: str, tmp_path: Path
) -> None:
    """Records are made, begun, ended and cancelled in one transaction; all reads come before it."""
    said: list[str] = []

    def says(_: Connection, __: Any, words: str, *___: Any) -> None:
        if "api_keys" not in words:
            said.append(words.split(maxsplit=1)[0])

    async with Ledger(prepared_file_url, sinks=["one"]) as ledger:
        begins, ends, stops = [await made(ledger, id) for id in ("begins", "ends", "stops")]
        ending = lease(ends, 1)
        await ledger.jobs.begin(ending)
        with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting = asyncio.create_task(ledger.keys.create("first", scopes=["read"]))
            await asyncio.sleep(0)  # the others gather behind it
            changes = asyncio.gather(
                made(ledger, "new"),
                ledger.jobs.begin(lease(begins, 2)),
                ledger.jobs.end(Ending(ending, Complete(ending), cancelled=False)),
                ledger.jobs.cancel(stops.queue, stops.id),
            )
            for _ in range(50):
                await asyncio.sleep(0)
            event.listen(Engine, "before_cursor_execute", says)
            try:
                other.execute("COMMIT")
                await waiting
                await changes
            finally:
                event.remove(Engine, "before_cursor_execute", says)
    first = min(said.index("INSERT"), said.index("UPDATE"))
    # Two ends are reported to the sink.
    assert sorted(said[first:]) == ["INSERT"] * 3 + ["UPDATE"] * 3


async def test_a_submit_of_an_existing_record_takes_no_lock(
    prepared_file_url: str, tmp_path: Path
) -> None:
    """Another process holds the lock as long as it likes."""
    async with Ledger(prepared_file_url, limit=milliseconds(1)) as ledger:
        first = await made(ledger, "a")
        with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            again = await ledger.jobs.submit(first.queue, b"2", id="a")
    assert (again.existed, again.record) == (True, first)


async def test_a_process_that_is_frozen_at_any_moment_loses_nothing(
    prepared_file_url: str,
) -> None:
    """Others write unless it has the lock at that moment. Then they get LedgerBusy, and it goes on
    when the frozen process does.
    """
    pipe, chance = subprocess.PIPE, random.Random(18)
    other = Bounded[str](
        [sys.executable, "-c", WORKS, prepared_file_url], stdin=pipe, stdout=pipe, text=True
    )
    assert other.stdout is not None
    wrote, refused = 0, 0
    async with Ledger(prepared_file_url, limit=milliseconds(100)) as ledger:
        await asyncio.to_thread(other.stdout.readline)
        for number in range(20):
            for _ in range(chance.randrange(20)):  # until any moment of its work
                await ledger.jobs.counts("ours")
            other.send_signal(signal.SIGSTOP)
            try:
                await ledger.jobs.submit("ours", b"1", id=f"o{number}")
                wrote += 1
            except LedgerBusy:
                refused += 1
            finally:
                other.send_signal(signal.SIGCONT)
            await submitted(ledger, f"o{number}")
        told, _ = await asyncio.to_thread(other.communicate, "stop\n", timeout=HANGS)
        assert other.returncode == 0
        assert wrote >= 1
        ours, theirs = [await ledger.jobs.counts(queue) for queue in ("ours", "theirs")]
    assert ours[RecordState.PENDING] == sum(ours.values()) == wrote + refused
    done = 5 * int(told.split()[-1])
    assert theirs[RecordState.COMPLETED] == sum(theirs.values()) == done


async def submitted(ledger: Ledger, id: str) -> None:
    """Submits until it succeeds: a refused call may be repeated."""
    while True:
        try:
            await ledger.jobs.submit("ours", b"1", id=id)
        except LedgerBusy:
            continue
        return
