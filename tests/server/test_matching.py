"""The index of routes: a request gets the same route as from the list, without going through it."""

import re
from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from tests.server.in_process import build_server
from towpath.ledger.ledger import Ledger
from towpath.server.build import RouteIndex

VALUES = ("one", "search", "%C3%A9")
"""Values of the parameters of a path; `search` is also a fixed segment of other paths."""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    ledger = Ledger(f"sqlite:///{tmp_path_factory.mktemp('ledger')}/ledger.db")
    return build_server("redis://127.0.0.1", ledger, {})


def scope_of(method: str, path: str) -> Scope:
    return {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}


def requests_of(app: FastAPI) -> Iterator[Scope]:
    """A request for each method and path of the server, with some values of its parameters."""
    for route in app.router.routes:
        if isinstance(route, Route):
            for value in VALUES:
                path = re.sub(r"\{[^}]*\}", value, route.path)
                for method in sorted(route.methods or {"GET"}):
                    yield scope_of(method, path)


def in_list(app: FastAPI, scope: Scope) -> BaseRoute:
    for route in app.router.routes:
        if isinstance(route, Route) and route.matches(scope)[0] is Match.FULL:
            return route
    raise AssertionError(scope)


def test_the_index_finds_the_first_route_of_the_list(app: FastAPI) -> None:
    index = app.router.routes[0]
    assert isinstance(index, RouteIndex)
    for scope in requests_of(app):
        match, found = index.matches(scope)
        assert (match, found["route"]) == (Match.FULL, in_list(app, scope)), scope


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/nothing"),
        ("GET", "/api/v1/"),
        ("GET", "/nothing"),
        ("GET", ""),
        ("OPTIONS", "*"),
        ("PATCH", "/api/v1/reviews"),
    ],
)
def test_the_index_leaves_what_no_route_takes_to_the_list(
    app: FastAPI, method: str, path: str
) -> None:
    assert app.router.routes[0].matches(scope_of(method, path)) == (Match.NONE, {})
