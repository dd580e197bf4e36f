"""The schema: made by migrations, the same everywhere, refused where it does not fit."""

import asyncio
import subprocess
import sys

import pytest
from sqlalchemy import inspect, text
from sqlalchemy.engine import Connection

from tests.warm import Bounded
from towpath.ledger.database.migrate import Migration, steps_of
from towpath.ledger.database.schema import LEDGER, SCHEMA, metadata, schema_version
from towpath.ledger.errors import LedgerAhead, LedgerOutdated
from towpath.ledger.ledger import Ledger

MIGRATE = """
import asyncio, sys
from towpath.ledger.ledger import Ledger

async def main():
    async with Ledger(sys.argv[1]) as ledger:
        print("here", flush=True)
        sys.stdin.readline()
        print((await ledger.migrate())[0].before)

asyncio.run(main())
"""


class TestMigrating:
    async def test_makes_the_schema_that_the_code_describes(self, ledger: Ledger) -> None:
        """No drift: what the migrations make is what `schema.py` says."""

        assert await ledger.drift() == []

    async def test_a_second_time_does_nothing(self, url: str) -> None:
        async with Ledger(url) as ledger:
            assert await ledger.migrate() == [Migration("ledger", before=None, after=SCHEMA)]
            key, _ = await ledger.keys.create("anna", scopes=["read"])
        async with Ledger(url) as ledger:
            assert await ledger.migrate() == [Migration("ledger", before=SCHEMA, after=SCHEMA)]
            assert await ledger.keys.list() == [key]

    def test_by_several_processes_at_once_happens_once(self, url: str) -> None:
        """All but one wait, and find it done."""
        command = [sys.executable, "-W", "error", "-c", MIGRATE, url]
        pipe = subprocess.PIPE
        at_once = [
            Bounded[str](command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(4)
        ]
        for process in at_once:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
        for process in at_once:
            assert process.stdin is not None
            process.stdin.write("now\n")
            process.stdin.flush()
        ended = [process.communicate(timeout=60) for process in at_once]
        assert [err for _, err in ended] == [""] * 4
        assert sorted(out.strip() for out, _ in ended) == [SCHEMA, SCHEMA, SCHEMA, "None"]

    async def test_by_several_tasks_at_once_happens_once(self, url: str) -> None:
        async with Ledger(url) as one, Ledger(url) as other:
            done = await asyncio.gather(one.migrate(), other.migrate(), one.migrate())
        assert sorted(str(migration.before) for [migration] in done) == [SCHEMA, SCHEMA, "None"]

    async def test_leaves_nothing_behind_where_a_step_fails(self, url: str) -> None:
        """A table of the same name is in the way of the first step."""
        async with Ledger(url) as ledger:
            await ledger.migrate()
            await ledger.write(
                lambda connection: connection.execute(text(f"DROP TABLE {schema_version.name}"))
            )
            with pytest.raises(Exception, match="already exists"):
                await ledger.migrate()

            def tables(connection: Connection) -> list[str]:
                return inspect(connection).get_table_names()

            assert sorted(await ledger.read(tables)) == sorted(metadata.tables)

    async def test_touches_only_tables_that_begin_with_towpath(self, ledger: Ledger) -> None:
        """They may live beside the user's own."""
        names = await ledger.read(lambda connection: inspect(connection).get_table_names())
        assert names
        assert [name for name in names if not name.startswith("towpath_")] == []


class TestASchemaThatDoesNotFit:
    async def test_is_refused_where_there_is_none(self, url: str) -> None:
        async with Ledger(url) as ledger:
            with pytest.raises(LedgerOutdated, match=r"no schema|no database file") as refusal:
                await ledger.keys.list()
        assert "towpath migrate" in refusal.value.remedy

    async def test_is_refused_for_writes_too(self, url: str) -> None:
        async with Ledger(url) as ledger:
            with pytest.raises(LedgerOutdated):
                await ledger.keys.create("anna", scopes=["read"])
            with pytest.raises(LedgerOutdated):
                await ledger.probe()

    async def test_is_refused_where_it_is_older(self, ledger: Ledger, url: str) -> None:
        await _pretend(ledger, "0000")
        async with Ledger(url) as later:
            with pytest.raises(LedgerOutdated, match="schema 0000") as refusal:
                await later.keys.check("anything")
        assert not isinstance(refusal.value, LedgerAhead)

    async def test_is_refused_where_it_is_newer(self, ledger: Ledger, url: str) -> None:
        """This code does not know it, and must not change it back."""
        await _pretend(ledger, "0999")
        async with Ledger(url) as later:
            with pytest.raises(LedgerAhead, match="schema 0999") as refusal:
                await later.keys.list()
            with pytest.raises(LedgerAhead):
                await later.migrate()
        assert "newer" in refusal.value.remedy

    async def test_is_taken_as_soon_as_somebody_has_migrated_it(self, url: str) -> None:
        """A server that started too early goes on by itself."""
        async with Ledger(url) as early, Ledger(url) as other:
            with pytest.raises(LedgerOutdated):
                await early.keys.list()
            await other.migrate()
            assert await early.keys.list() == []


def test_the_steps_are_numbered_and_the_last_one_is_what_the_code_wants() -> None:
    steps = list(steps_of(LEDGER))
    assert steps[-1] == SCHEMA
    assert steps == [f"{number:04}" for number in range(1, len(steps) + 1)]


async def _pretend(ledger: Ledger, version: str) -> None:
    other = schema_version.update().values(version_num=version, oldest=version)
    await ledger.write(lambda connection: connection.execute(other))
