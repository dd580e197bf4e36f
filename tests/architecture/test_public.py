"""The public names: listed, there, documented."""

import inspect

import pytest

import towpath


def test_are_listed_in_order() -> None:
    constants = [name for name in towpath.__all__ if name.isupper()]
    classes = [name for name in towpath.__all__ if name[0].isupper() and not name.isupper()]
    functions = [name for name in towpath.__all__ if name[0].islower()]
    assert towpath.__all__ == sorted(constants) + sorted(classes) + sorted(functions)


@pytest.mark.parametrize("name", towpath.__all__)
def test_are_there_and_say_what_they_are(name: str) -> None:
    it = getattr(towpath, name)
    if inspect.isclass(it) and it.__module__.startswith("towpath"):
        assert it.__doc__
