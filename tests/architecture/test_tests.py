"""Tests wait for facts, not for time."""

import ast
from pathlib import Path

import pytest

from tests.architecture.sources import TESTS, python_files, shown

THE_ONE_PLACE = TESTS / "waiting.py"


def test_no_test_sleeps() -> None:
    found = {
        shown(path): lines
        for path in python_files(TESTS)
        if path != THE_ONE_PLACE and (lines := sleeps(path.read_text()))
    }
    assert found == {}


@pytest.mark.parametrize(
    "text",
    ["time.sleep(1)", "asyncio.sleep(delay)", "from time import sleep", "anyio.sleep(0.1)"],
)
def test_a_sleep_is_caught(text: str) -> None:
    assert sleeps(text) == [1]


def test_giving_way_to_other_tasks_is_no_sleep() -> None:
    assert sleeps("asyncio.sleep(0)") == []


def test_the_one_place_is_where_it_says() -> None:
    assert sleeps(Path(THE_ONE_PLACE).read_text())


def sleeps(text: str) -> list[int]:
    """The lines that let time pass: a call of somebody's `sleep`, or an import of it."""
    return [line for node in ast.walk(ast.parse(text)) for line in _sleeping_line(node)]


def _sleeping_line(node: ast.AST) -> list[int]:
    match node:
        case ast.ImportFrom(names=names) if any(name.name == "sleep" for name in names):
            return [node.lineno]
        case ast.Call(func=ast.Attribute(attr="sleep"), args=[ast.Constant(value=0)]):
            return []
        case ast.Call(func=ast.Attribute(attr="sleep")):
            return [node.lineno]
        case _:
            return []
