"""The schema is made by migrations, the same everywhere, and refused where it does not fit."""

import asyncio
import subprocess
import sys

import pytest
from sqlalchemy import inspect, text
from sqlalchemy.engine import Connection

from tests.programs import Bounded
from tests.waiting import HANGS
from towpath.clock import seconds
from towpath.ledger.database.migrate import Migration, steps_of
from towpath.ledger.database.postgres import PostgresStore
from towpath.ledger.database.schema import LEDGER, SCHEMA, metadata, schema_version
from towpath.ledger.errors import LedgerAhead, LedgerOutdated, MigrationFailed
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
        """The migrations make exactly what `schema.py` declares."""

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
        ended = [process.communicate(timeout=HANGS) for process in at_once]
        assert [err for _, err in ended] == [""] * 4
        assert sorted(out.strip() for out, _ in ended) == [SCHEMA, SCHEMA, SCHEMA, "None"]

    async def test_by_several_tasks_at_once_happens_once(self, url: str) -> None:
        async with Ledger(url) as one, Ledger(url) as other:
            done = await asyncio.gather(one.migrate(), other.migrate(), one.migrate())
        assert sorted(str(migration.before) for [migration] in done) == [SCHEMA, SCHEMA, "None"]

    async def test_that_fails_at_a_step_leaves_nothing_behind(self, url: str) -> None:
        """A table with the name of one in the first step exists already."""
        async with Ledger(url) as ledger:
            await ledger.migrate()
            await ledger.write(
                lambda connection: connection.execute(text(f"DROP TABLE {schema_version.name}"))
            )
            with pytest.raises(MigrationFailed, match="0001") as refusal:
                await ledger.migrate()
            assert refusal.value.line == "ledger"

            def tables(connection: Connection) -> list[str]:
                return inspect(connection).get_table_names()

            assert sorted(await ledger.read(tables)) == sorted(metadata.tables)

    async def test_touches_only_tables_that_begin_with_towpath(self, ledger: Ledger) -> None:
        """They may be in one database with the user's own tables."""
        names = await ledger.read(lambda connection: inspect(connection).get_table_names())
        assert names
        assert [name for name in names if not name.startswith("towpath_")] == []


class TestASchemaThatDoesNotFit:
    async def test_is_refused_where_it_is_missing(self, url: str) -> None:
        async with Ledger(url) as ledger:
            with pytest.raises(LedgerOutdated) as refusal:
                await ledger.keys.list()
        assert refusal.value.found is None
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
            with pytest.raises(LedgerOutdated) as refusal:
                await later.keys.check("anything")
        assert not isinstance(refusal.value, LedgerAhead)
        assert (refusal.value.found, refusal.value.wanted) == ("0000", SCHEMA)

    async def test_is_refused_where_it_is_newer(self, ledger: Ledger, url: str) -> None:
        """This code does not know it, and must not change it back."""
        await _pretend(ledger, "0999")
        async with Ledger(url) as later:
            with pytest.raises(LedgerAhead) as refusal:
                await later.keys.list()
            with pytest.raises(LedgerAhead):
                await later.migrate()
        assert (refusal.value.found, refusal.value.wanted) == ("0999", SCHEMA)

    async def test_is_accepted_as_soon_as_it_is_migrated(self, url: str) -> None:
        """A server that started too early goes on by itself."""
        async with Ledger(url) as early, Ledger(url) as other:
            with pytest.raises(LedgerOutdated):
                await early.keys.list()
            await other.migrate()
            assert await early.keys.list() == []


def test_the_steps_are_numbered_and_the_last_one_is_the_schema_of_this_release() -> None:
    steps = list(steps_of(LEDGER))
    assert steps[-1] == SCHEMA
    assert steps == [f"{number:04}" for number in range(1, len(steps) + 1)]


async def _pretend(ledger: Ledger, version: str) -> None:
    other = schema_version.update().values(version_num=version, oldest=version)
    await ledger.write(lambda connection: connection.execute(other))


async def test_a_database_has_an_id_of_its_own(url: str, file_url: str, ledger: Ledger) -> None:
    """It is the same for every user of the database and after each migration, and another in
    another database.
    """
    async with Ledger(url) as again, Ledger(f"{file_url}-other") as other:
        own = await ledger.identity()
        assert own
        await again.migrate()
        assert await again.identity() == own
        await other.migrate()
        assert await other.identity() not in {None, own}


async def test_a_migration_may_compute_for_minutes_between_two_statements(server_url: str) -> None:
    """PostgreSQL ends any other session that is idle in a transaction for 10 s."""
    store = PostgresStore(server_url, limit=seconds(30))
    setting = text("SELECT setting FROM pg_settings WHERE name = :name")
    name = {"name": "idle_in_transaction_session_timeout"}
    found = await store.alone(lambda connection: connection.execute(setting, name).scalar_one())
    assert int(found) >= 600_000
    await store.close()
