"""The public names: listed, there, documented."""

import ast
import inspect
from importlib import import_module

import pytest

import towpath
from tests.architecture.sources import SOURCE


def test_are_listed_in_order() -> None:
    constants = [name for name in towpath.__all__ if name.isupper()]
    classes = [name for name in towpath.__all__ if name[0].isupper() and not name.isupper()]
    functions = [name for name in towpath.__all__ if name[0].islower()]
    assert towpath.__all__ == sorted(constants) + sorted(classes) + sorted(functions)


@pytest.mark.parametrize("name", towpath.__all__)
def test_are_there_and_say_what_they_are(name: str) -> None:
    it = getattr(towpath, name)
    if inspect.isclass(it) and it.__module__.startswith("towpath"):
        assert it.__doc__


def test_are_what_a_type_checker_sees() -> None:
    """They are looked up when first used; the imports are only there to be read."""
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    [block] = [
        node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)
    ]
    imported = {
        name.name: getattr(import_module(node.module or ""), name.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    assert set(imported) == set(towpath.__all__)
    assert [name for name, it in imported.items() if getattr(towpath, name) is not it] == []
