"""Random programs, engine against oracle. TOWPATH_MODEL_PROGRAMS says how many."""

import ast
import os
import random
from pathlib import Path
from types import ModuleType

import pytest

from tests.amounts import amount
from tests.model import oracle, oracle_places, oracle_questions, values, worker_registry_oracle
from tests.model.keyspace import ModelTarget
from tests.model.run_programs import run_programs
from towpath.embedded import EmbeddedServer, RedisConnection

PROGRAMS = int(os.environ.get("TOWPATH_MODEL_PROGRAMS", amount(60, thoroughly=1_500)))
PARTS = 3


@pytest.mark.timeout(300 + PROGRAMS)  # a failed program is shrunk, for up to 5 minutes
@pytest.mark.parametrize("part", range(PARTS))
def test_engine_and_oracle_agree(part: int, server: EmbeddedServer) -> None:
    """With TOWPATH_MODEL_SEED, the programs of an earlier run."""
    seed = int(os.environ.get("TOWPATH_MODEL_SEED", random.randrange(2**32)))
    print(f"TOWPATH_MODEL_SEED={seed}")  # noqa: T201 -- shown when the test fails
    with RedisConnection(server.address) as connection:
        target = ModelTarget(server.url, server.address, connection)
        run_programs(target, programs=PROGRAMS // PARTS, seed=seed + part * PROGRAMS)


@pytest.mark.parametrize(
    "module", [worker_registry_oracle, oracle, oracle_places, oracle_questions, values]
)
def test_the_oracle_imports_nothing_of_towpath(module: ModuleType) -> None:
    path = Path(str(module.__file__))
    foreign = {name for name in imports(path.read_text()) if not name.startswith("tests.model.")}
    assert {name.partition(".")[0] for name in foreign} <= {
        "__future__",
        "collections",
        "dataclasses",
        "re",
        "typing",
    }


@pytest.mark.parametrize(
    "text", ["import towpath", "from towpath.engine import keys", "if x:\n  import towpath.ids"]
)
def test_an_import_of_towpath_is_found(text: str) -> None:
    assert [name.partition(".")[0] for name in imports(text)] == ["towpath"]


def imports(text: str) -> list[str]:
    """Every module that *text* imports."""
    found: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
    return found
