"""Follows the planted field `tier` of a job through every surface of a copied package, and prints
its values. It runs as a process, because it imports the copy.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.server.in_process import client_of, key_of, started
from tests.server.messaging import app_on
from tests.waiting import HANGS
from towpath import Engine, Towpath
from towpath.clock import hours, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.model import job_ref
from towpath.ledger.ledger import Ledger

TIER: dict[str, Any] = {"tier": 7}
QUEUES = ("python", "handler", "http", "list", "command", "record")
SHOWN = ("python", "record")
"""Queues whose jobs the command shows too: it shows those of the others in the same way."""


async def submit_everywhere(url: str, ledger: str) -> None:
    app = Towpath(url, ledger=ledger)

    async def work() -> None: ...

    plain, recorded = app.handler("handler")(work), app.handler("record", record=True)(work)
    async with app, started(app_on(url, Ledger(ledger))) as served:
        await app.engine.submit("python", b"1", **TIER)
        await plain.submit(**TIER)
        await recorded.submit(**TIER)
        async with client_of(served, await key_of(served, "submit", "work", "read")) as client:
            one = await client.post("/api/v1/queues/http/jobs", json=TIER)
            many = await client.post("/api/v1/queues/list/jobs", json=[TIER, {"tier": 10}])
            assert one.status_code == many.status_code == 202, one.text + many.text
            assert "tier" in many.json()["jobs"][1]["detail"]
            seen = await client.get(f"/api/v1/queues/http/jobs/{one.json()['id']}")
            assert seen.json()["tier"] == 7
        await asyncio.to_thread(run_command, url, "submit", "command", "1", "--tier", "7")


def run_command(url: str, *words: str) -> str:
    program = "from towpath.cli.main import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", program, *words, "--url", url, "--json"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return ran.stdout


async def seen(url: str) -> dict[str, list[int]]:
    """By queue: on the lease, on the job's info, and for those in SHOWN in the output of the
    command.
    """
    found: dict[str, list[int]] = {}
    async with Engine(url) as engine:
        for queue in QUEUES:
            [lease] = await engine.claim(queue, worker="w", lease=hours(1), wait=seconds(HANGS))
            info: Any = await engine.inspect.job(job_ref(queue, lease.id))
            given: Any = lease
            found[queue] = [given.tier, info.tier]
            if queue in SHOWN:
                shown = await asyncio.to_thread(run_command, url, "jobs", "show", str(lease.job))
                found[queue].append(json.loads(shown)["tier"])
    return found


def main() -> None:
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as home:
        ledger = f"sqlite:///{Path(home)}/ledger.db"
        run_command(server.url, "migrate", "--database", ledger)
        asyncio.run(submit_everywhere(server.url, ledger))
        print(json.dumps(asyncio.run(seen(server.url))))  # noqa: T201 -- what it is for


if __name__ == "__main__":
    main()
