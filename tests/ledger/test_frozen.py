"""A process that stands still in a transaction does not keep its rows for ever."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.engine import Connection

from tests.warm import Bounded
from towpath.ledger.ledger import Ledger

ADD = "INSERT INTO notes VALUES ((SELECT count(*) FROM notes))"
COUNT = "SELECT count(*) FROM notes"
THINKS = """
import asyncio, sys
from sqlalchemy import text
from towpath.ledger.ledger import Ledger

def change(connection):
    connection.execute(text("SELECT count(*) FROM notes"))
    print("thinks", flush=True)
    sys.stdin.readline()
    connection.execute(text("INSERT INTO notes VALUES ((SELECT count(*) FROM notes))"))

async def main():
    async with Ledger(sys.argv[1]) as ledger:
        await ledger.write(change)

asyncio.run(main())
"""


async def test_postgresql_ends_a_transaction_in_which_nobody_says_anything(server_url: str) -> None:
    """A frozen process can't give up its locks itself: the server takes them."""
    async with Ledger(server_url) as ledger:
        await ledger.migrate()
        asked = text("SHOW idle_in_transaction_session_timeout")
        assert await ledger.read(lambda it: it.scalar(asked)) == "10s"


def thinking(url: str) -> Bounded[str]:
    """A process that has read, and has not written yet."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", THINKS, url]
    other = Bounded[str](command, stdin=pipe, stdout=pipe, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "thinks\n"
    return other


async def test_on_sqlite_one_that_has_written_nothing_yet_is_in_nobodys_way(
    prepared_file_url: str,
) -> None:
    """It stands still before its first write: the others write meanwhile."""
    async with Ledger(prepared_file_url) as ledger:
        await ledger.write(lambda it: it.execute(text("CREATE TABLE notes (n INTEGER)")))
        other = await asyncio.to_thread(thinking, prepared_file_url)
        other.send_signal(signal.SIGSTOP)
        try:
            for _ in range(5):
                await ledger.write(lambda it: it.execute(text(ADD)))
        finally:
            other.send_signal(signal.SIGCONT)
            # What it read is not true any more: it thinks once more.
            told, _ = await asyncio.to_thread(other.communicate, "on\non\n", timeout=60)
        assert (told, other.returncode) == ("thinks\n", 0)
        numbers = text("SELECT n FROM notes ORDER BY n")
        assert await ledger.read(lambda it: list(it.scalars(numbers))) == [0, 1, 2, 3, 4, 5]


async def test_what_was_decided_on_an_old_state_is_decided_again(
    prepared_file_url: str, tmp_path: Path
) -> None:
    """Also for changes that share a transaction: each is done once, on what is true then."""
    seen: list[list[int]] = [[], [], []]
    thinking, go_on = threading.Event(), threading.Event()

    def change(connection: Connection, which: int) -> int:
        found = connection.scalar(text(COUNT)) or 0
        seen[which].append(found)
        thinking.set()
        go_on.wait(30)
        connection.execute(text("INSERT INTO notes VALUES (:n)"), {"n": found})
        return found

    async with Ledger(prepared_file_url) as ledger:
        await ledger.write(lambda it: it.execute(text("CREATE TABLE notes (n INTEGER)")))
        tasks = [
            asyncio.create_task(ledger.write(lambda it, which=which: change(it, which)))
            for which in range(3)
        ]
        await asyncio.to_thread(thinking.wait, 30)
        try:
            with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
                other.execute(ADD)
        finally:
            go_on.set()
        assert await asyncio.gather(*tasks) == [1, 2, 3]
    assert seen[0] == [0, 1]
