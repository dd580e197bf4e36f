"""Small files, small functions, names that say something. Over budget needs a written reason."""

import re
from statistics import median

import pytest

from tests.architecture.sources import (
    ROOT,
    SOURCE,
    TESTS,
    functions,
    lua_files,
    project_files,
    python_files,
    shown,
)

FILE_LINES = 400
FUNCTION_LINES = 40
MEDIAN_FUNCTION_LINES = 10
LUA_CODE_LINES = 60

# "path" or "path::function" -> why it may be longer.
EXEMPT: dict[str, str] = {
    "src/towpath/errors.py": "the catalogue of errors: its tree and its classes are one page",
    "src/towpath/telemetry/events.py": "the catalogue of log events is one page",
}

NAMELESS = {"utils", "util", "common", "helpers", "helper", "manager", "base", "misc"}

# Written apart, so that this file does not name them itself.
MACHINE_PATH = re.compile(
    r"(?<![\w.~/-])/(?:" + "|".join(["work", "home", "root", "Users"]) + r")/\w"
)
REGISTRY_HOST = re.compile(
    r"\b(?:" + "|".join(["pypi", "pythonhosted", "npmjs", "deb[.]debian"]) + r")[.](?:org|com)\b"
)


def test_files_are_short() -> None:
    lengths = {
        shown(path): len(path.read_text().splitlines()) for path in python_files(SOURCE, TESTS)
    }
    assert over(lengths, FILE_LINES) == {}


def test_functions_are_short() -> None:
    lengths = {
        function.name: function.lines
        for path in python_files(SOURCE, TESTS)
        for function in functions(path)
    }
    assert over(lengths, FUNCTION_LINES) == {}


def test_most_functions_are_very_short() -> None:
    lengths = [function.lines for path in python_files(SOURCE) for function in functions(path)]
    assert median(lengths) < MEDIAN_FUNCTION_LINES


def test_scripts_are_short() -> None:
    lengths = {shown(path): code_lines(path.read_text()) for path in lua_files()}
    assert over(lengths, LUA_CODE_LINES) == {}


def test_exemptions_are_needed_and_have_a_reason() -> None:
    files = {shown(path) for path in [*python_files(SOURCE, TESTS), *lua_files()]}
    for name, reason in EXEMPT.items():
        assert name.partition("::")[0] in files
        assert len(reason.split()) > 3


def test_modules_are_named_for_what_they_know() -> None:
    modules = python_files(SOURCE, TESTS) + lua_files()
    assert [shown(path) for path in modules if path.stem in NAMELESS] == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="an unpacked archive is no repository")
def test_no_file_names_a_machine_or_a_registry() -> None:
    texts = {shown(path): path.read_text(errors="replace") for path in project_files()}
    named = {name: found for name, text in texts.items() if (found := places(text))}
    assert named == {}


def over(lengths: dict[str, int], budget: int) -> dict[str, int]:
    return {name: lines for name, lines in lengths.items() if lines > budget and name not in EXEMPT}


def code_lines(lua: str) -> int:
    lines = (line.strip() for line in lua.splitlines())
    return sum(1 for line in lines if line and not line.startswith("--"))


def places(text: str) -> list[str]:
    return MACHINE_PATH.findall(text) + REGISTRY_HOST.findall(text)
