"""One word per idea: the glossary is short, public classes have names of their own."""

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT, SOURCE, TESTS, python_files, shown
from tests.architecture.test_public import promised
from towpath.engine.engine import Engine
from towpath.engine.inspect import Inspector
from towpath.engine.queues import Queues
from towpath.ledger.outbox.outbox import Outbox
from towpath.ledger.records.jobs import Jobs

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
WITHOUT_MEANING = (
    "way gateway taking several turns known patience verdict joining crew notes endings"
)

THEATRE = (
    "clerk climber crowd desk diary fate hands misfortune moody rig roster said scene seen "
    "shelves shifty site speaker speechless stage standing strike strikes told visit visiting "
    "visitor world"
)
"""Words that tell nothing of what a helper of the tests does."""


def test_the_glossary_has_at_most_60_words_in_order() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text()
    words = re.findall(r"^\| ([a-z][a-z ]*) \|", page, re.MULTILINE)[1:]
    assert 40 <= len(words) <= 60
    assert words == sorted(set(words))


def test_no_two_promised_classes_share_a_name() -> None:
    homes: dict[str, set[str]] = defaultdict(set)
    for module, names in promised().items():
        for name in names:
            homes[name].add(module)
    assert {name: its for name, its in homes.items() if len(its) > 1} == {}


def test_no_two_public_classes_share_a_name() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in python_files(SOURCE):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path.relative_to(SOURCE).as_posix())
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


READS = {"get"}
"""What the ledger alone is asked: `Engine.inspect.job` gives a job, `get` a row."""


def test_the_ledger_has_the_verbs_of_the_engine() -> None:
    parts = (Engine, Queues, Inspector)
    verbs = {name for part in parts for name, _ in inspect.getmembers(part, inspect.isfunction)}
    offered = {name for name in vars(Jobs) if not name.startswith("_")} - READS
    stems = {re.sub("(_new|_in|ting)$", "", name) for name in offered}
    assert stems - verbs == {"close", "committed", "tell"}


@pytest.mark.parametrize(
    ("owner", "old", "new"),
    [
        (Jobs, "prune", "trim"),
        (Jobs, "ready", "submitting"),
        (Outbox, "ready", "putting"),
    ],
)
def test_a_verb_that_was_another_says_its_new_name(owner: type[object], old: str, new: str) -> None:
    with pytest.raises(AttributeError, match=rf"\.{old} is now {owner.__name__}\.{new}$"):
        getattr(object.__new__(owner), old)
    assert hasattr(owner, new)


def test_modules_are_named_for_what_they_know() -> None:
    paths = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.lua")]
    assert [path for path in paths if path.stem in WITHOUT_MEANING.split()] == []


def test_helpers_of_the_tests_are_named_by_their_function() -> None:
    paths = [*python_files(TESTS, ROOT / "benchmarks")]
    found = [f"{shown(path)}: {name}" for path in paths for name in _theatre(path)]
    assert len(paths) > 500
    assert found == []


def _theatre(path: Path) -> Iterator[str]:
    """The names of a module and of its classes that have a word that is refused."""
    classes = [
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    ]
    for name in (path.stem, *(node.name for node in classes)):
        words = {word.lower() for word in re.findall("[A-Z]?[a-z]+", name)}
        if words & set(THEATRE.split()) and not name.lower().startswith("test"):
            yield name


def test_nothing_is_called_it() -> None:
    folders = (ROOT / name for name in ("src", "examples", "docs", "benchmarks", "tests"))
    found = {shown(path): list(_called_it(path.read_text())) for path in python_files(*folders)}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_nothing_in_a_document_is_called_it() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    blocks = [(shown(page), block) for page in pages for block in _BLOCK.findall(page.read_text())]
    assert blocks
    assert [page for page, block in blocks if [*_called_it(block)]] == []


def _called_it(source: str) -> Iterator[int]:
    """Lines in which a parameter, a variable or an attribute gets the name."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.arg(arg="it") | ast.Name(id="it", ctx=ast.Store()):
                yield node.lineno
            case ast.Attribute(attr="it" | "_it", ctx=ast.Store()):
                yield node.lineno
            case ast.ExceptHandler(name="it") | ast.MatchAs(name="it") | ast.MatchStar(name="it"):
                yield node.lineno
            case _:
                pass
