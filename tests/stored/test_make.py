"""The script that wrote the kept data can write it again: for the next release that is kept."""

from pathlib import Path
from typing import Any

from tests.stored.facts import RECORDS, differences
from tests.stored.make import write
from towpath.embedded import EmbeddedServer


async def test_this_release_writes_the_data_that_is_kept(
    server: EmbeddedServer, tmp_path: Path, facts: dict[str, Any]
) -> None:
    told = await write(server, f"sqlite:///{tmp_path}/ledger.db")
    assert _states(told) == _states(facts)
    assert differences(_as_today(facts["database"]), told["database"]) == []


def _as_today(kept: dict[str, Any]) -> dict[str, Any]:
    """Adapts a record to today: a record that is sent again keeps the token of its last attempt,
    which was forgotten before; and the time of the next attempt has a field of its own, which was
    the due time before.
    """
    return {**kept, "records": [_row_as_today(row) for row in kept["records"]]}


def _row_as_today(row: dict[str, Any]) -> dict[str, Any]:
    if row["id"] == "retried":
        return {**row, "fence": 1767225600000002}
    if row["state"] == "failed":
        return {**row, "due_at": False, "next_try_at": row["due_at"]}
    return row


def _states(told: dict[str, Any]) -> dict[str, str]:
    """The states of all jobs without a record: when Redis learns those of records is a matter of
    timing.
    """
    jobs = told["store"]["jobs"].items()
    return {key: job["state"] for key, job in jobs if not key.startswith(RECORDS)}
