"""Declaring handlers: what can be one, and what is refused before any job comes."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from towpath.app import Towpath
from towpath.clock import Duration, seconds
from towpath.errors import HandlerInvalid, InvalidName, InvalidOption
from towpath.worker.context import Context
from towpath.worker.handler import HandlerOptions


class Shop:
    """Something with a method, and something that can be called."""

    async def sell(self, n: int) -> int:
        return n

    async def __call__(self, n: int) -> int:
        return n


def two(a: int, b: int) -> None: ...
def two_contexts(a: Context, b: Context) -> None: ...
def by_name(*, a: int) -> None: ...
def before_a_slash(ctx: Context, /) -> None: ...
def unknown(a: "Nowhere") -> None: ...  # type: ignore[name-defined] # noqa: F821 # pyright: ignore
async def plain(a: int) -> None: ...


def several(a: int) -> Any:
    yield a


REFUSED: list[tuple[Any, str]] = [
    (two, "takes one payload and at most one Context"),
    (two_contexts, "takes one payload and at most one Context"),
    (by_name, "takes its payload first"),
    (before_a_slash, "takes its Context by name"),
    (unknown, "an annotation is not known"),
    (several, "must return a value, not yield several"),
    (Shop(), "must be a function or a method"),
    (functools.partial(two, 1), "must be a function or a method"),
    (7, "must be a function"),
]


@pytest.mark.parametrize(("function", "rule"), REFUSED)
def test_what_nobody_could_call_is_refused(function: Callable[..., Any], rule: str) -> None:
    with pytest.raises(HandlerInvalid, match=rule):
        Towpath("redis://nowhere").add("shop", function, HandlerOptions())


def test_processes_are_for_plain_functions_of_a_module() -> None:
    app, nameless = Towpath("redis://nowhere"), lambda: None
    with pytest.raises(HandlerInvalid, match="for plain functions"):
        app.add("shop", plain, HandlerOptions(processes=1))
    with pytest.raises(HandlerInvalid, match="that another process can import"):
        app.add("shop", nameless, HandlerOptions(processes=1))


def test_a_method_may_be_one() -> None:
    handler = Towpath("redis://nowhere").add("shop", Shop().sell, HandlerOptions())
    assert (handler.name, handler.takes_payload) == ("sell", True)


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"concurrency": 0},
        {"processes": -1},
        {"weight": 0},
        {"time_limit": seconds(0)},
        {"time_limit": 5},
        {"keep": Duration(-1)},
        {"retry": "often"},
    ],
)
def test_options_out_of_range_are_refused(options: Any) -> None:
    with pytest.raises(InvalidOption):
        Towpath("redis://nowhere").handler("shop", **options)


def test_names_are_checked() -> None:
    with pytest.raises(InvalidName):
        Towpath("redis://nowhere").handler("shop", name="Not A Name")
    with pytest.raises(InvalidName):
        Towpath("redis://nowhere").handler("Not A Queue")(plain)


def test_a_handler_keeps_the_words_of_its_function() -> None:
    @Towpath("redis://nowhere").handler("shop")
    def sell(n: int) -> int:
        """Sells."""
        return n

    assert (sell.__name__, sell.__doc__, repr(sell)) == ("sell", "Sells.", "<handler sell of shop>")
