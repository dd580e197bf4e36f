"""The project's own files, for tests that read them."""

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "towpath"
TESTS = ROOT / "tests"


@dataclass(frozen=True)
class Function:
    """A function and its length: the lines of its code, without the docstring."""

    name: str
    lines: int


def python_files(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def lua_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.lua"))


def project_files() -> list[Path]:
    """Every file that is in the repository, or would be after `git add`."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    names = listed.stdout.decode().split("\0")
    return [path for name in names if name and (path := ROOT / name).is_file()]


def shown(path: Path) -> str:
    """A path as people write it: from the root of the repository."""
    return path.relative_to(ROOT).as_posix()


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Function(f"{shown(path)}::{node.name}", _length(node))


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert node.end_lineno is not None
    whole = node.end_lineno - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node, clean=False) is None or first.end_lineno is None:
        return whole
    return whole - (first.end_lineno - first.lineno + 1)
