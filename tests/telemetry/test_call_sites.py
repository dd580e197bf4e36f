"""Every call that logs an event passes the fields of the catalogue; read from the source."""

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.sources import SOURCE, TESTS, python_files, shown
from tests.telemetry.test_catalogue import ALL

EVENTS = {event.name.replace(".", "_").upper(): event for event in ALL}
"""Every event by the name of its constant, in whatever module that is."""


def test_all_calls_of_emit_agree_with_the_catalogue() -> None:
    wrong = {
        f"{shown(path)}:{line}": what
        for path in python_files(SOURCE, TESTS / "applications")
        for line, what in disagreements(path.read_text())
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("log.emit(SERVER_BACK, server='s')", "lacks away"),
        ("self._log.emit(events.SERVER_BACK, server='s', away=1, of=2)", "has no of"),
        ("log.emit(SERVER_GONE, server='s')", "SERVER_GONE is not in the catalogue"),
        ("log.emit(SERVER_BACK, payload=1, **more)", "has no payload"),
    ],
)
def test_a_call_that_differs_from_the_catalogue_is_found(source: str, what: str) -> None:
    assert list(disagreements(source)) == [(1, what)]


@pytest.mark.parametrize(
    "source",
    [
        "log.emit(SERVER_BACK, server='s', away=1)",
        "log.emit(events.SERVER_BACK, error, server='s', away=1)",
        "log.emit(SERVER_BACK, away=1, **more)  # the rest is checked when it runs",
        "socket.emit('hello', to=1)",
    ],
)
def test_a_call_that_agrees_with_the_catalogue_passes(source: str) -> None:
    assert list(disagreements(source)) == []


def disagreements(source: str) -> Iterator[tuple[int, str]]:
    """Each call of an `emit` with a constant, and how it differs from the catalogue."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="emit"),
                args=[ast.Name(id=name) | ast.Attribute(attr=name), *_],
                keywords=keywords,
            ) if name.isupper():
                yield from ((node.lineno, what) for what in _compare(name, keywords))
            case _:
                pass


def _compare(name: str, keywords: list[ast.keyword]) -> Iterator[str]:
    event = EVENTS.get(name)
    if event is None:
        yield f"{name} is not in the catalogue"
        return
    given = {keyword.arg for keyword in keywords if keyword.arg is not None}
    if unknown := given - set(event.fields):
        yield f"has no {', '.join(sorted(unknown))}"
    all_spelled = all(keyword.arg is not None for keyword in keywords)
    if all_spelled and (lacking := set(event.fields) - given):
        yield f"lacks {', '.join(sorted(lacking))}"
