"""Import cycles, with the imports that only type checkers read."""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.architecture.sources import SOURCE, python_files

Graph = Mapping[str, set[str]]


def room_of(module: str) -> str:
    """The package below `towpath`, or the application, that *module* is part of."""
    _, *parts = module.split(".")
    return ".".join(parts[: 2 if parts[:1] == ["apps"] else 1])


def modules() -> dict[str, Path]:
    """The modules of the package by name, without the package itself, whose names are lazy."""
    found: dict[str, Path] = {}
    for path in python_files(SOURCE):
        parts = ("towpath", *path.relative_to(SOURCE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    del found["towpath"]
    return found


def imported_at_the_top(tree: ast.Module) -> Iterator[str]:
    """What a module imports when it is loaded, and what it imports for type checkers; a name as
    `module.name`. Imports inside functions do not count.
    """
    below: list[ast.stmt] = [*tree.body]
    while below:
        match below.pop():
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{name.name}" for name in names)
            case ast.If(body=body, orelse=other) | ast.Try(body=body, orelse=other):
                below += [*body, *other]
            case _:
                pass


def imports() -> dict[str, set[str]]:
    """The modules that each module imports."""
    paths = modules()
    found: dict[str, set[str]] = {}
    for module, path in paths.items():
        names = set(imported_at_the_top(ast.parse(path.read_text())))
        names |= {name.rpartition(".")[0] for name in names}
        found[module] = (names & paths.keys()) - {module}
    return found


def between_rooms(graph: Graph) -> dict[str, set[str]]:
    """The rooms that the modules of each room import."""
    found: dict[str, set[str]] = {}
    for module, others in graph.items():
        found.setdefault(room_of(module), set()).update(map(room_of, others))
    return {room: others - {room} for room, others in found.items()}


def cycle_in(graph: Graph) -> list[str]:
    """One cycle of *graph*; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_two_rooms_import_each_other_not_even_for_type_checkers() -> None:
    assert cycle_in(between_rooms(imports())) == []


@pytest.mark.parametrize(
    "line", ["import towpath.ledger.ledger", "from towpath.ledger import ledger"]
)
def test_a_cycle_that_only_type_checkers_see_is_found(line: str) -> None:
    planted = ast.parse(f"if TYPE_CHECKING:\n    {line}\n")
    found = imports()
    assert "towpath.ledger.ledger" in set(imported_at_the_top(planted))
    found["towpath.errors"] |= {"towpath.ledger.ledger"}
    assert set(cycle_in(between_rooms(found))) >= {"errors", "ledger"}
