"""Tests wait for facts, not for time; and never without a limit."""

import ast
import re
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests import programs
from tests.architecture.sources import ROOT, TESTS, python_files, shown
from tests.programs import Bounded, Program
from tests.waiting import HANGS

THE_ONE_PLACE = TESTS / "waiting.py"
PROGRAMS = TESTS / "programs.py"
"""Where programs are started."""
ENDS_BY_ITSELF = TESTS / "worker" / "process_handlers.py"
"""Its programs are `sleep 60`, left behind on purpose."""


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
def test_a_sleep_is_found(text: str) -> None:
    assert sleeps(text) == [1]


def test_yielding_to_other_tasks_is_no_sleep() -> None:
    assert sleeps("asyncio.sleep(0)") == []


def test_the_one_file_that_may_sleep_does_sleep() -> None:
    assert sleeps(Path(THE_ONE_PLACE).read_text())


def test_no_program_is_waited_for_without_a_limit() -> None:
    """At the end of a `with` block, `Popen` waits for ever; `Bounded` and `Program` do not."""
    files = {*python_files(TESTS)} - {PROGRAMS, ENDS_BY_ITSELF}
    bare = [shown(path) for path in files if re.search(r"Popen\b(\[\w+\])?[(]", path.read_text())]
    assert bare == []


def test_a_fixture_exists_once() -> None:
    """A fixture of two folders is in `tests/fixtures.py`. One that only renames another may
    recur.
    """
    places: dict[str, list[str]] = defaultdict(list)
    for path in python_files(TESTS):
        for fixture, body in fixtures(path.read_text()):
            places[body].append(f"{shown(path)}::{fixture}")
    assert [names for names in places.values() if len(names) > 1] == []


def test_a_copied_fixture_is_found() -> None:
    text = "@pytest.fixture\ndef {name}():\n    'Said.'\n    with a() as b:\n        yield b\n"
    [(one, body), (other, same)] = fixtures(text.format(name="one") + text.format(name="other"))
    assert (one, other, body) == ("one", "other", same)


def test_signals_reach_programs_where_a_shell_had_them_ignored() -> None:
    """Background processes of a shell ignore SIGINT, and so would the tests' programs."""
    inside = "tests/architecture/test_tests.py::test_an_interruption_reaches_a_program"
    command = f"trap '' INT QUIT HUP; exec {sys.executable} -m pytest -q -n 0 {inside}"
    shell = ["sh", "-c", command]
    ran = subprocess.run(shell, cwd=ROOT, capture_output=True, timeout=HANGS, check=False)
    assert ran.returncode == 0, ran.stdout.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGHUP])
def test_an_interruption_reaches_a_program(number: signal.Signals) -> None:
    with Bounded[bytes](["sleep", "60"]) as process:
        process.send_signal(number)
        assert process.wait(HANGS) == -number


def test_a_program_that_hangs_fails_its_test_and_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_LONGEST", 0.1)
    hangs = [sys.executable, "-c", "import signal; signal.pause()"]
    for kind in (Bounded[bytes], Program[bytes]):
        process = kind(hangs)
        with pytest.raises(subprocess.TimeoutExpired), process:
            pass
        assert process.wait(HANGS) == -signal.SIGKILL


def fixtures(text: str) -> list[tuple[str, str]]:
    """The fixtures in a file that are longer than a line, by name: their parameters and bodies."""
    found: list[tuple[str, str]] = []
    if "pytest.fixture" not in text:
        return found
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.decorator_list:
            marks = ast.unparse(node.decorator_list[0])
            body = node.body[ast.get_docstring(node) is not None :]
            if marks.startswith("pytest.fixture") and not isinstance(body[0], ast.Return):
                words = [ast.unparse(statement) for statement in body]
                found.append((node.name, "\n".join([marks, ast.unparse(node.args), *words])))
    return found


def sleeps(text: str) -> list[int]:
    """The lines that let time pass: a call of any `sleep`, or an import of it."""
    if "sleep" not in text:  # parsing all tests takes seconds
        return []
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
