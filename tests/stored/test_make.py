"""The script that wrote what is kept can write it again: for the next release that is kept."""

from pathlib import Path
from typing import Any

from tests.stored.facts import RECORDS, differences
from tests.stored.make import write
from towpath.embedded import EmbeddedServer


async def test_the_same_is_written_today(
    server: EmbeddedServer, tmp_path: Path, facts: dict[str, Any]
) -> None:
    told = await write(server, f"sqlite:///{tmp_path}/ledger.db")
    assert _states(told) == _states(facts)
    assert differences(_as_today(facts["database"]), told["database"]) == []


def _as_today(kept: dict[str, Any]) -> dict[str, Any]:
    """A record that is sent again keeps the token of its last attempt now; it was forgotten."""
    rows = [
        {**row, "fence": 1767225600000002} if row["id"] == "retried" else row
        for row in kept["records"]
    ]
    return {**kept, "records": rows}


def _states(told: dict[str, Any]) -> dict[str, str]:
    """Of all jobs but those of records: when the store hears of these is a matter of chance."""
    jobs = told["store"]["jobs"].items()
    return {key: job["state"] for key, job in jobs if not key.startswith(RECORDS)}
