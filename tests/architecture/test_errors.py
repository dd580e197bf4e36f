"""Errors: each has a name of its own and a module, and says what to do in a traceback."""

import traceback
from importlib import import_module
from inspect import isclass
from pkgutil import walk_packages

import towpath
from towpath import errors
from towpath.engine.model import job_ref
from towpath.errors import JobNotFound, TowpathError


def kinds() -> dict[str, set[type[TowpathError]]]:
    found: dict[str, set[type[TowpathError]]] = {}
    for info in walk_packages(towpath.__path__, "towpath."):
        if info.name.endswith("__main__"):
            continue
        for name, value in vars(import_module(info.name)).items():
            if isclass(value) and issubclass(value, TowpathError) and value.__module__ == info.name:
                found.setdefault(name, set()).add(value)
    return found


def test_only_errors_of_the_core_are_in_the_module_of_the_core() -> None:
    """An application, or another part beside the core, adds its errors without an edit there."""
    others = {
        name
        for name, value in vars(errors).items()
        if isclass(value)
        and issubclass(value, TowpathError)
        and value.__module__ != "towpath.errors"
    }
    assert others == set()
    assert not hasattr(errors, "__getattr__")


def test_no_two_errors_share_a_name() -> None:
    assert {name: same for name, same in kinds().items() if len(same) > 1} == {}


def test_a_traceback_says_what_to_do() -> None:
    error = JobNotFound(job_ref("mails", "m-1"))
    shown = "".join(traceback.format_exception(error))
    assert JobNotFound.remedy in shown
    assert JobNotFound.remedy not in str(error)
