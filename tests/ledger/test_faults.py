"""A database that is away, frozen or broken: reported in time, and used again by itself."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.ledger.manual_time import ManualTime
from tests.postgres import PostgresServer
from tests.waiting import HANGS
from towpath import milliseconds, seconds
from towpath.ledger.errors import LedgerRefused, LedgerUnreachable
from towpath.ledger.keys.key import FRESH
from towpath.ledger.ledger import Ledger


class TestAPostgresThatGoesAway:
    async def test_is_an_error_until_it_is_back(
        self, own_postgres: PostgresServer, manual_time: ManualTime
    ) -> None:
        """A key in use is accepted for as long as its cached answer is fresh."""
        url = own_postgres.new_database("jobs")
        async with Ledger(url, wall=manual_time.wall, ticks=manual_time.ticks) as ledger:
            await ledger.migrate()
            info, secret = await ledger.keys.create("shop", scopes=["read"])
            assert await ledger.keys.check(secret.get_secret_value()) == info

            own_postgres.stop(signal.SIGQUIT)
            assert await ledger.keys.check(secret.get_secret_value()) == info
            with pytest.raises(LedgerUnreachable) as refusal:
                await ledger.probe()
            assert str(refusal.value)
            manual_time.advance(FRESH)
            with pytest.raises(LedgerUnreachable):
                await ledger.keys.check(secret.get_secret_value())

            await asyncio.to_thread(own_postgres.start)
            assert await ledger.keys.check(secret.get_secret_value()) == info
            await ledger.probe()

    async def test_between_two_queries_causes_no_error(self, own_postgres: PostgresServer) -> None:
        """A connection that the restart has cut is not used."""
        async with Ledger(own_postgres.new_database("jobs")) as ledger:
            await ledger.migrate()
            await ledger.probe()
            own_postgres.stop(signal.SIGINT)
            await asyncio.to_thread(own_postgres.start)
            await ledger.probe()

    async def test_by_freezing_is_an_error_within_the_time_limit(
        self, own_postgres: PostgresServer
    ) -> None:
        """This holds on an open connection, and for all callers at once."""
        url = own_postgres.new_database("jobs")
        async with Ledger(url, limit=milliseconds(300)) as ledger:
            await ledger.migrate()
            await ledger.probe()
            own_postgres.freeze()
            try:
                async with asyncio.timeout(HANGS):
                    asked = [ledger.keys.check("some-key") for _ in range(20)]
                    told = await asyncio.gather(*asked, return_exceptions=True)
            finally:
                own_postgres.thaw()
            assert {type(error) for error in told} == {LedgerUnreachable}
            assert await ledger.keys.check("some-key") is None

    async def test_loses_no_use_of_a_key(
        self, own_postgres: PostgresServer, manual_time: ManualTime
    ) -> None:
        url = own_postgres.new_database("jobs")
        async with Ledger(url, wall=manual_time.wall, ticks=manual_time.ticks) as ledger:
            await ledger.migrate()
            _, secret = await ledger.keys.create("shop", scopes=["read"])
            await ledger.keys.check(secret.get_secret_value())
            own_postgres.stop(signal.SIGQUIT)
            await ledger.keys.note_uses()
            await asyncio.to_thread(own_postgres.start)
            await ledger.keys.note_uses()
            assert [key.last_used_at for key in await ledger.keys.list()] == [manual_time.clock.now]


async def test_a_server_that_does_not_run_is_unreachable(tmp_path: Path) -> None:
    url = f"postgresql://anna:canary@/jobs?host={tmp_path}"
    async with Ledger(url, limit=seconds(2)) as ledger:
        with pytest.raises(LedgerUnreachable) as refusal:
            await ledger.migrate()
    assert "canary" not in repr(refusal.value)


async def test_a_database_that_does_not_exist_is_refused(running_postgres: PostgresServer) -> None:
    async with Ledger(running_postgres.url("nowhere")) as ledger:
        with pytest.raises(LedgerRefused, match="nowhere"):
            await ledger.probe()


async def test_a_folder_that_does_not_exist_is_unreachable(tmp_path: Path) -> None:
    """It may be on a disk that is not mounted yet."""
    async with Ledger(f"sqlite:///{tmp_path}/nowhere/ledger.db") as ledger:
        for _ in range(2):
            with pytest.raises(LedgerUnreachable, match="unable to open"):
                await ledger.migrate()
        (tmp_path / "nowhere").mkdir()
        await ledger.migrate()


async def test_a_file_that_is_no_database_is_refused_and_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "letter.txt"
    file.write_text("Dear Anna, " * 1000)
    async with Ledger(f"sqlite:///{file}") as ledger:
        with pytest.raises(LedgerRefused, match="not a database"):
            await ledger.migrate()
    assert file.read_text() == "Dear Anna, " * 1000
