"""The public names: listed, importable, documented."""

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module

import pytest

import towpath
from docs.reference.api import listed, members_of, promised
from tests.architecture.sources import SOURCE


def test_public_names_are_listed_in_order() -> None:
    constants = [name for name in towpath.__all__ if name.isupper()]
    classes = [name for name in towpath.__all__ if name[0].isupper() and not name.isupper()]
    functions = [name for name in towpath.__all__ if name[0].islower()]
    assert towpath.__all__ == sorted(constants) + sorted(classes) + sorted(functions)


@pytest.mark.parametrize("name", towpath.__all__)
def test_public_names_exist_and_have_docstrings(name: str) -> None:
    export = getattr(towpath, name)
    if inspect.isclass(export) and export.__module__.startswith("towpath"):
        assert export.__doc__


def test_public_names_are_those_that_a_type_checker_sees() -> None:
    """They are looked up when first used; the imports are only there for type checkers."""
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
    assert [name for name, value in imported.items() if getattr(towpath, name) is not value] == []


PAGE = SOURCE.parents[1] / "docs" / "reference" / "python.md"


def test_public_names_are_on_the_page_of_import_paths() -> None:
    assert set(promised(PAGE.read_text())["towpath"]) == set(towpath.__all__)


def test_every_path_on_the_page_of_import_paths_exists() -> None:
    missing = [
        f"{module}.{name}"
        for module, names in listed(PAGE.read_text()).items()
        for name in names
        if not hasattr(import_module(module), name)
    ]
    assert missing == []


def test_methods_of_public_classes_have_docstrings() -> None:
    """The page of the Python API consists of them."""
    said_nothing: list[str] = []
    for module, names in promised(PAGE.read_text()).items():
        for name in names:
            promised_class = getattr(import_module(module), name)
            if not inspect.isclass(promised_class):
                continue
            for member, offered in members_of(promised_class):
                inner = getattr(offered, "__func__", offered)
                if not inspect.getdoc(inner):
                    said_nothing.append(f"{module}.{name}.{member}")
    assert said_nothing == []


def imports_of(text: str) -> set[tuple[str, str]]:
    """The module and the name of each `from towpath… import …`, also in a block of a page."""
    statement = re.compile(r"^ *from (towpath[\w.]*) import (\([^)]*\)|[^\n#]+)", re.MULTILINE)
    return {
        (module, name.partition(" as ")[0].strip())
        for module, names in statement.findall(text)
        for name in re.sub(r"#[^\n]*", "", names).strip("() \n").split(",")
        if name.strip()
    }


def test_pages_and_examples_import_only_what_the_page_of_import_paths_lists() -> None:
    root = SOURCE.parents[1]
    texts = [root / "README.md", *(root / "docs").rglob("*.md"), *(root / "examples").rglob("*.md")]
    texts = [path for path in texts if "decisions" not in path.parts]
    texts += [*(root / "examples").rglob("*.py")]
    known, seen = listed(PAGE.read_text()), set[tuple[str, str]]()
    for path in texts:
        seen |= (found := imports_of(path.read_text()))
        internal = {
            f"{module}.{name}"
            for module, name in found
            if name not in known.get(module, []) and not module.endswith(".errors")
        }
        assert internal == set(), path
    assert len(seen) > 80
    assert imports_of("from towpath.engine.leases import (\n    a,  # why\n    b,\n)") == {
        ("towpath.engine.leases", "a"),
        ("towpath.engine.leases", "b"),
    }


def test_importing_a_public_name_loads_no_application() -> None:
    code = "import sys; from towpath import Towpath; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    parts = loaded.stdout.split()
    assert [
        module for module in parts if module.startswith(("towpath.apps", "towpath.ledger.ledger"))
    ] == []
