"""The programs of `examples/ideas` print what their docstrings say, and every example is in the
list.
"""

import ast
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.programs import run

EXAMPLES = Path(__file__).parents[2] / "examples"
IDEAS = sorted((EXAMPLES / "ideas").glob("*.py"))


@pytest.mark.parametrize("program", IDEAS, ids=lambda path: path.stem)
def test_an_example_prints_what_its_docstring_says(program: Path) -> None:
    told = ast.get_docstring(ast.parse(program.read_text())) or ""
    idea, found, expected = told.partition("\n\nPrints:\n\n")
    assert found, f"{program.name} does not say what it prints"
    assert len(idea.splitlines()) == 1
    ran = run([sys.executable, "-W", "error", str(program)])
    assert (ran.code, ran.out) == (0, dedent(expected) + "\n"), ran.err


def test_the_list_has_every_example() -> None:
    """Programs are listed by path, examples of several files by folder."""
    text = (EXAMPLES / "README.md").read_text()
    programs = [
        str(path.relative_to(EXAMPLES))
        for path in sorted(EXAMPLES.rglob("*"))
        if path.suffix in (".py", ".mjs", ".sh") and not path.name.startswith(("__", "test_"))
    ]
    folders = ("reviews/", "shop/")
    missing = [
        program
        for program in programs
        if f"({program})" not in text and not program.startswith(folders)
    ]
    assert missing == []
    assert all(f"({folder})" in text for folder in folders)
