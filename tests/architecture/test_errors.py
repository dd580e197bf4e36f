"""Errors: all of them can be imported from one place, and say what to do in a traceback."""

import json
import subprocess
import sys
import traceback
from importlib import import_module
from inspect import isclass
from pathlib import Path
from pkgutil import walk_packages

import pytest

import towpath
from towpath import errors
from towpath.engine.model import job_ref
from towpath.errors import JobNotFound, TowpathError

NOT_RAISED = (
    "towpath.engine.refusals",  # between scripts and the engine
    "towpath.server",  # of the HTTP server alone: clients see their codes
    "towpath.apps.timers.forms",
    "towpath.apps.timers.registration",
    "towpath.apps.uploads.http",
    "towpath.apps.issues",
    "towpath.web",
    "towpath.cli",
)
"""Whose errors reach no code of a user's."""


def kinds() -> dict[str, set[type[TowpathError]]]:
    found: dict[str, set[type[TowpathError]]] = {}
    for info in walk_packages(towpath.__path__, "towpath."):
        if info.name.endswith("__main__"):
            continue
        for name, value in vars(import_module(info.name)).items():
            if isclass(value) and issubclass(value, TowpathError) and value.__module__ == info.name:
                found.setdefault(name, set()).add(value)
    return found


def test_all_errors_are_in_one_place() -> None:
    wanted = {
        name: error
        for name, same in kinds().items()
        for error in same
        if not name.startswith("_")
        and (error.__module__.endswith(".errors") or not error.__module__.startswith(NOT_RAISED))
    }
    missing = {name for name, error in wanted.items() if getattr(errors, name, None) is not error}
    assert missing == set()


def test_a_type_checker_sees_every_error_that_can_be_imported(tmp_path: Path) -> None:
    """Errors of other modules are looked up when they are used; type checkers read imports."""
    names = {
        name
        for module in ("towpath.errors", *errors.HOMES)
        for name, value in vars(import_module(module)).items()
        if isclass(value) and issubclass(value, TowpathError) and getattr(errors, name) is value
    }
    program = tmp_path / "program.py"
    lines = (f"from towpath.errors import {name}" for name in sorted(names))
    program.write_text("\n".join(lines) + "\n")
    checker = Path(sys.executable).parent / "basedpyright"
    words = [checker, "--outputjson", "--pythonpath", sys.executable, program]
    checked = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = json.loads(checked.stdout)["generalDiagnostics"]
    unseen = [each["range"]["start"]["line"] for each in found if each["severity"] == "error"]
    assert [sorted(names)[line] for line in unseen] == []


def test_no_two_errors_share_a_name() -> None:
    assert {name: same for name, same in kinds().items() if len(same) > 1} == {}


def test_an_unknown_name_of_an_error_is_refused() -> None:
    with pytest.raises(AttributeError, match="JobNotFoudn"):
        getattr(errors, "JobNotFoudn")  # noqa: B009 -- the very mistake


def test_a_traceback_says_what_to_do() -> None:
    error = JobNotFound(job_ref("mails", "m-1"))
    shown = "".join(traceback.format_exception(error))
    assert JobNotFound.remedy in shown
    assert JobNotFound.remedy not in str(error)
