"""Options classes are the one place for names, defaults and sentences: no other code repeats
them.
"""

import ast
from collections.abc import Iterator
from typing import Any

import pytest

from tests.architecture.sources import SOURCE, python_files
from towpath import clock
from towpath.cli.config import groups
from towpath.options import Options, fields_of
from towpath.settings import Core, leaves
from towpath.settings.sources import Leaf

LEAVES = {leaf.name: leaf for leaf in leaves(groups(Core()))}
UNITS = {name: getattr(clock, name) for name in ("milliseconds", "seconds", "minutes", "hours")}
TRIVIAL = (None, True, False, "", 0, 1, ())
OTHER_THINGS = {
    "testing/proxy.py": ["host"],  # a proxy of tests listens where they are
    "apps/reviews/options.py": ["reviews.within"],  # the constant that the option uses
}
"""The same name and value for something else."""
PLAIN = (ast.Constant, ast.BinOp, ast.Call, ast.Name, ast.Tuple)


def literal(node: ast.expr) -> Any:
    """The literal value of a default; None if it is taken from elsewhere."""
    parts = [
        part for part in ast.walk(node) if not isinstance(part, ast.expr_context | ast.operator)
    ]
    named = {part.id for part in parts if isinstance(part, ast.Name)}
    if not all(isinstance(part, PLAIN) for part in parts) or not named <= set(UNITS):
        return None
    return eval(compile(ast.Expression(node), "default", "eval"), dict(UNITS))  # noqa: S307 -- our own source


def said(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, str, Any]]:
    """Every default in a source: in which class, of what, and its value."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.ClassDef(name=name):
                yield from said(node, name)
                continue
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield inside, name.lower().strip("_"), literal(value)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield inside, name.lower().strip("_"), literal(value)
            case ast.arguments(args=args, kwonlyargs=named):
                plain = zip(reversed(args), reversed(node.defaults), strict=False)
                for arg, value in [*plain, *zip(named, node.kw_defaults, strict=True)]:
                    if value is not None:
                        yield inside, arg.arg, literal(value)
            case _:
                pass
        yield from said(node, inside)


def repeated(source: str) -> list[str]:
    """The settings whose default is repeated in *source*, outside of the class that has it."""
    options = {(leaf.field.name, repr(leaf.field.default)): leaf for leaf in LEAVES.values()}
    owners = {leaf.owner.__name__ for leaf in LEAVES.values()}
    return [
        options[name, repr(value)].name
        for inside, name, value in said(ast.parse(source))
        if value not in TRIVIAL and inside not in owners and (name, repr(value)) in options
    ]


def test_no_default_is_written_twice() -> None:
    found = {
        str(path.relative_to(SOURCE)): names
        for path in python_files(SOURCE)
        if (names := repeated(path.read_text()))
    }
    assert found == OTHER_THINGS


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def work(*, concurrency: int = 100): ...", ["worker.concurrency"]),
        ("def work(app, lease=seconds(15)): ...", ["worker.lease"]),
        ("class Limits:\n    rate: int = 2_000", ["http.rate"]),
        ("_KAFKA_TOPIC = 'towpath.events'", ["outbox.kafka_topic"]),
        ("def work(*, concurrency: int = DEFAULTS.concurrency): ...", []),
        ("def work(*, concurrency: int = 7): ...", []),
    ],
)
def test_a_planted_default_is_found(source: str, names: list[str]) -> None:
    assert repeated(source) == names


@pytest.mark.parametrize("leaf", LEAVES.values(), ids=list(LEAVES))
def test_a_setting_is_an_option_with_a_sentence(leaf: Leaf) -> None:
    assert issubclass(leaf.owner, Options)
    assert leaf.field in fields_of(leaf.owner)
    assert leaf.about.endswith((".", "`"))


def test_a_shared_option_is_a_setting() -> None:
    owners = [leaf.owner for leaf in LEAVES.values()]
    shared = {field.info.shared for owner in owners for field in fields_of(owner)} - {""}
    assert shared == {"calls.allow", "calls.secrets"}
    assert shared <= set(LEAVES)
