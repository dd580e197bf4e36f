"""The secret of a key is shown once and stored nowhere: the tests search for planted secrets."""

import asyncio
import logging
import traceback
from pathlib import Path

import pytest
from sqlalchemy import text

from towpath.ledger.errors import LedgerError
from towpath.ledger.ledger import Ledger

CHOSEN = "canary-chosen-by-the-operator"
WRONG = "canary-that-is-no-key-at-all"


async def use(ledger: Ledger) -> list[str]:
    """Does everything that can be done with keys; returns the texts that must not be found."""
    made = await ledger.keys.create("shop", scopes=["admin"])
    secret = made.secret.get_secret_value()
    ensured = await ledger.keys.ensure(CHOSEN, name="first")
    for each in (secret, CHOSEN, WRONG):
        await ledger.keys.check(each)
    await ledger.keys.note_uses()
    await ledger.keys.list()
    await ledger.keys.revoke(ensured.id)
    return [secret, secret.split("_", 2)[2], CHOSEN, WRONG]


@pytest.fixture
def all_logs(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Every line of every library, including statements with their parameters."""
    caplog.set_level(logging.DEBUG)
    for name in ("sqlalchemy.engine", "sqlalchemy.pool", "alembic", "asyncio"):
        caplog.set_level(logging.DEBUG, logger=name)
    return caplog


async def test_a_secret_is_not_in_the_logs(url: str, all_logs: pytest.LogCaptureFixture) -> None:
    async with Ledger(url) as ledger:
        await ledger.migrate()
        words = await use(ledger)
    assert "towpath_api_keys" in all_logs.text
    assert [word for word in words if word in all_logs.text] == []


async def test_a_secret_is_not_in_the_files_of_sqlite(file_url: str, tmp_path: Path) -> None:
    async with Ledger(file_url) as ledger:
        await ledger.migrate()
        words = await use(ledger)
        open_files = await asyncio.to_thread(contents, tmp_path)
    closed_files = contents(tmp_path)
    assert b"shop" in open_files + closed_files
    found = [word for word in words if word.encode() in open_files + closed_files]
    assert found == []


async def test_a_secret_is_not_in_a_table_of_postgresql(server_url: str) -> None:
    async with Ledger(server_url) as ledger:
        await ledger.migrate()
        words = await use(ledger)
        everything = text("SELECT string_agg(it::text, ' ') FROM towpath_api_keys it")
        told = str(await ledger.read(lambda connection: connection.scalar(everything)))
    assert "shop" in told
    assert [word for word in words if word in told or word.encode().hex() in told] == []


async def test_a_secret_is_not_in_printed_values(ledger: Ledger) -> None:
    made = await ledger.keys.create("shop", scopes=["admin"])
    info = await ledger.keys.check(made.secret.get_secret_value())
    printed = f"{made} {made!r} {made.info!r} {info!r} {ledger!r} {ledger.keys!r}"
    assert made.secret.get_secret_value().split("_", 2)[2] not in printed


@pytest.mark.parametrize("table", ["towpath_api_keys"])
async def test_a_secret_is_not_in_an_error_of_the_database(ledger: Ledger, table: str) -> None:
    """Nor is it in the errors behind it, which a traceback shows."""
    made = await ledger.keys.create("shop", scopes=["admin"])
    secret = made.secret.get_secret_value()
    await ledger.write(lambda connection: connection.execute(text(f"DROP TABLE {table}")))
    shown = ""
    for doing in (
        lambda: ledger.keys.check(secret),
        lambda: ledger.keys.ensure(CHOSEN, name="first"),
        lambda: ledger.keys.create("canary", scopes=["read"]),
    ):
        with pytest.raises(LedgerError) as refusal:
            await doing()
        shown += "".join(traceback.format_exception(refusal.value))
    assert table in shown
    assert "hidden" in shown  # the parameters of statements
    assert [hidden for hidden in (secret, CHOSEN) if hidden in shown] == []


def contents(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
