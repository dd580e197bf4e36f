"""Errors: all of them can be imported from one place, and say what to do in a traceback."""

import traceback
from importlib import import_module
from inspect import isclass
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


def test_all_are_in_one_place() -> None:
    wanted = {
        name: error
        for name, same in kinds().items()
        for error in same
        if not name.startswith("_")
        and (error.__module__.endswith(".errors") or not error.__module__.startswith(NOT_RAISED))
    }
    missing = {name for name, error in wanted.items() if getattr(errors, name, None) is not error}
    assert missing == set()


def test_no_two_share_a_name() -> None:
    assert {name: same for name, same in kinds().items() if len(same) > 1} == {}


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(AttributeError, match="JobNotFoudn"):
        getattr(errors, "JobNotFoudn")  # noqa: B009 -- the very mistake


def test_a_traceback_says_what_to_do() -> None:
    error = JobNotFound(job_ref("mails", "m-1"))
    shown = "".join(traceback.format_exception(error))
    assert f"What to do: {JobNotFound.remedy}" in shown
    assert "What to do" not in str(error)
