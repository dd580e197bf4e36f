"""The script that wrote what is kept can write it again: for the next release that is kept."""

from pathlib import Path
from typing import Any

from tests.stored.facts import RECORDS, differences
from tests.stored.make import write
from towpath.embedded import EmbeddedServer


async def test_this_release_writes_what_is_stored(
    server: EmbeddedServer, tmp_path: Path, facts: dict[str, Any]
) -> None:
    told = await write(server, f"sqlite:///{tmp_path}/ledger.db")
    assert _states(told) == _states(facts)
    assert differences(_as_today(facts["database"]), told["database"]) == []


def _as_today(kept: dict[str, Any]) -> dict[str, Any]:
    """A record that is sent again keeps the token of its last attempt now; it was forgotten. And
    when it is tried again has a place of its own; it replaced the due time.
    """
    return {**kept, "records": [_row_as_today(row) for row in kept["records"]]}


def _row_as_today(row: dict[str, Any]) -> dict[str, Any]:
    if row["id"] == "retried":
        return {**row, "fence": 1767225600000002}
    if row["state"] == "failed":
        return {**row, "due_at": False, "next_try_at": row["due_at"]}
    return row


def _states(told: dict[str, Any]) -> dict[str, str]:
    """Of all jobs but those of records: when the store hears of these is a matter of chance."""
    jobs = told["store"]["jobs"].items()
    return {key: job["state"] for key, job in jobs if not key.startswith(RECORDS)}
