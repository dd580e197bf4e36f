"""The names in the pages of explanation exist: modules, classes, functions and scripts."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "explanation").glob("*.md"))
LUA = ROOT / "src" / "towpath" / "engine" / "lua"
NAME = re.compile(r"`(towpath(?:\.\w+)+)`")
SCRIPT = re.compile(r"`lua/([\w/]+\.lua)`")


def found(name: str) -> Any:
    """The object with that *name*. Raises ImportError, AttributeError."""
    module, _, rest = name.partition(".")
    thing = import_module(module)
    for part in rest.split("."):
        module = f"{module}.{part}"
        try:
            thing = getattr(thing, part)
        except AttributeError:
            thing = import_module(module)
    return thing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_of_an_explanation_exists(page: Path) -> None:
    text = page.read_text()
    missing: list[str] = []
    for name in NAME.findall(text):
        try:
            found(name)
        except (ImportError, AttributeError):
            missing.append(name)
    missing += [name for name in SCRIPT.findall(text) if not (LUA / name).is_file()]
    assert missing == []


@pytest.mark.parametrize("topic", ["life-of-a-job", "lanes", "the-ledger", "the-outbox", "engine"])
def test_a_page_names_the_steps_of_its_path(topic: str) -> None:
    text = (ROOT / "docs" / "explanation" / f"{topic}.md").read_text()
    assert len(set(NAME.findall(text))) >= 5


@pytest.mark.parametrize("name", ["towpath.engine.gone", "towpath.engine.engine.Engine.gone"])
def test_a_name_that_does_not_exist_is_found(name: str) -> None:
    with pytest.raises((ImportError, AttributeError)):
        found(name)
