"""What a program that only submits jobs has to install and to load."""

import json
import subprocess
import sys

from tests.waiting import HANGS
from towpath.embedded import EmbeddedServer

# A module that is None in sys.modules cannot be imported, as if it were not installed.
_SUBMITS = """
import asyncio, sys
sys.modules["redis"] = None
from towpath import Towpath, seconds

app = Towpath(sys.argv[1])

@app.handler("mails")
async def send(mail: str) -> None: ...

async def main():
    async with app:
        job = await send.submit("hello")
        [lease] = await app.engine.claim("mails", worker="w", lease=seconds(60))
        await app.engine.complete(lease)
        print((await job.state()).value)

asyncio.run(main())
print(send.blocking.submit("again").state().value)
"""


def test_a_program_needs_no_client_library_of_redis(server: EmbeddedServer) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _SUBMITS, server.url],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS,
    )
    assert (ran.returncode, ran.stdout.split()) == (0, ["gone", "ready"]), ran.stderr


# Slow to import, and useless for a program that only submits.
HEAVY = {
    "alembic",
    "fastapi",
    "httpx",
    "importlib.metadata",
    "importlib.resources",
    "opentelemetry",
    "prometheus_client",
    "pydantic",
    "rich",
    "sqlalchemy",
    "structlog",
    "typer",
}
# These are not needed before an app has handlers to run, an engine or a server of its own.
HEAVY_PARTS = {
    "towpath.embedded",
    "towpath.ledger.ledger",
    "towpath.server",
    "towpath.worker.worker",
}


def loaded_by(program: str) -> set[str]:
    """The modules that a new process has loaded after *program*."""
    ran = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport json, sys; print(json.dumps([*sys.modules]))"],
        capture_output=True,
        text=True,
        check=True,
        timeout=HANGS,
    )
    return set(json.loads(ran.stdout))


def test_importing_the_app_loads_nothing_heavy() -> None:
    before = loaded_by("")  # a machine may load some of its own in each process
    loaded = loaded_by("from towpath import Towpath, Handlers, Engine, seconds")
    assert loaded & (HEAVY | HEAVY_PARTS) - before == set()
    assert "towpath.app.app" in loaded


def test_importing_the_package_loads_none_of_its_modules() -> None:
    loaded = loaded_by("import towpath")
    assert {name for name in loaded if name.startswith("towpath.")} == set()
