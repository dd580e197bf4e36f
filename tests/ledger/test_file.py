"""An SQLite file is made by a migration, and stays the same one as long as it is open."""

import os
import sqlite3
from pathlib import Path

import pytest

from towpath import seconds
from towpath.ledger.errors import LedgerAbsent, LedgerBusy, LedgerUnreachable
from towpath.ledger.ledger import Ledger

REVIEWS = "reviews"


class TestAnSqliteFile:
    async def test_is_created_only_by_a_migration(self, file_url: str, tmp_path: Path) -> None:
        async with Ledger(file_url) as ledger:
            with pytest.raises(LedgerAbsent, match=r"ledger\.db"):
                await ledger.jobs.get(REVIEWS, "a")
            with pytest.raises(LedgerAbsent):
                await ledger.jobs.submit(REVIEWS, b"1")
            assert os.listdir(tmp_path) == []  # noqa: PTH208 -- iterdir would block a loop no less
            await ledger.migrate()
            await ledger.jobs.submit(REVIEWS, b"1", id="a")

    async def test_is_readable_by_its_owner_only(self, file_url: str, tmp_path: Path) -> None:
        """The permissions of the directory and the umask do not matter."""
        tmp_path.chmod(0o755)  # noqa: ASYNC240 -- it takes no time
        async with Ledger(file_url) as ledger:
            await ledger.migrate()
            await ledger.jobs.submit(REVIEWS, b"1", id="a")
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}  # noqa: ASYNC240 -- it takes no time
        assert "ledger.db-wal" in modes
        assert set(modes.values()) == {0o600}, modes

    async def test_that_was_moved_is_not_written_to(self, file_url: str, tmp_path: Path) -> None:
        """SQLite itself would go on, and confirmed writes would be in a file that nobody reads."""
        file, away = tmp_path / "ledger.db", tmp_path / "away.db"
        async with Ledger(file_url) as ledger:
            await ledger.migrate()
            await ledger.jobs.submit(REVIEWS, b"1", id="a")
            file.rename(away)
            for use in (
                ledger.probe,
                lambda: ledger.jobs.submit(REVIEWS, b"1", id="b"),
                lambda: ledger.jobs.get(REVIEWS, "a"),
            ):
                with pytest.raises((LedgerUnreachable, LedgerAbsent)):
                    await use()
            assert not file.exists()
            away.rename(file)
            assert (await ledger.jobs.get(REVIEWS, "a")).payload == b"1"
            await ledger.jobs.submit(REVIEWS, b"1", id="c")

    async def test_that_another_transaction_has_locked_is_busy(self, file_url: str) -> None:
        async with Ledger(file_url, limit=seconds(0.1)) as ledger:
            await ledger.migrate()
            other = sqlite3.connect(file_url.removeprefix("sqlite:///"), isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(LedgerBusy):
                await ledger.jobs.submit(REVIEWS, b"1")
            other.close()
            await ledger.jobs.submit(REVIEWS, b"1")
