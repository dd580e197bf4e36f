"""One word per idea: the glossary is in order, and public classes have names of their own."""

import ast
import inspect
import re
from collections import defaultdict

from docs.reference.api import promised
from tests.architecture.sources import ROOT, SOURCE, python_files
from tests.architecture.test_public import PAGE
from towpath.engine.engine import Engine
from towpath.engine.inspect import Inspector
from towpath.engine.queues import Queues
from towpath.ledger.records.jobs import Jobs


def test_the_glossary_is_in_order_and_has_each_word_once() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text()
    words = re.findall(r"^\| ([a-z][a-z ]*) \|", page, re.MULTILINE)[1:]
    assert words
    assert words == sorted(set(words))


def test_no_two_promised_classes_share_a_name() -> None:
    homes: dict[str, set[str]] = defaultdict(set)
    for module, names in promised(PAGE.read_text()).items():
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


READS = {"get", "find", "find_everywhere", "find_oldest"}
"""What the ledger alone is asked: `Engine.inspect.job` gives a job, `get` a row, `find` several."""


def test_the_ledger_has_the_verbs_of_the_engine() -> None:
    parts = (Engine, Queues, Inspector)
    verbs = {name for part in parts for name, _ in inspect.getmembers(part, inspect.isfunction)}
    offered = {name for name in vars(Jobs) if not name.startswith("_")} - READS
    stems = {re.sub("(_new|_in|ting)$", "", name) for name in offered}
    assert stems - verbs == {"begin", "close", "decide", "queue", "tell"}
