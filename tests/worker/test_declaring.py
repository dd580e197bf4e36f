"""Declaring handlers: what can be one, and what is refused before any job comes."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from tests.worker.running import SOON, ended, working
from towpath.app.app import Towpath
from towpath.clock import Duration, seconds
from towpath.engine.states import State
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


@functools.wraps(plain)
def around(a: int) -> Any:
    return plain(a)


REFUSED: list[tuple[Any, str]] = [
    (two, "takes one payload and at most one Context"),
    (two_contexts, "takes one payload and at most one Context"),
    (by_name, "takes its payload first"),
    (before_a_slash, "takes its Context by name"),
    (unknown, "an annotation can't be resolved"),
    (several, "must return a value, not yield several"),
    (around, "is a plain function that wraps an async one"),
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
        {"time_limit": "5"},
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


class TestWhereAContextMayStand:
    async def test_behind_the_payload_before_it_or_by_name(self, app: Towpath) -> None:
        @app.handler("shop", name="behind")
        async def behind(n: int, ctx: Context) -> str:
            return f"{n} {ctx.queue}"

        @app.handler("shop", name="before")
        async def before(ctx: Context, n: int) -> str:
            return f"{n} {ctx.queue}"

        @app.handler("shop", name="by-name")
        def by_name(n: int, *, ctx: Context) -> str:
            return f"{n} {ctx.queue}"

        async with working(app):
            for handler in (behind, before, by_name):
                assert await (await handler.submit(3)).result(within=SOON) == "3 shop"
        assert await before(3) == await behind(3) == by_name(3) == "3 shop"

    async def test_and_be_optional(self, app: Towpath) -> None:
        """A worker gives one; who calls the function gives one or does not."""

        @app.handler("shop")
        async def sell(n: int, ctx: Context | None = None) -> str:
            return f"{n} {ctx and ctx.queue}"

        async with working(app):
            assert await (await sell.submit(3)).result(within=SOON) == "3 shop"
        assert await sell(3) == await sell(3, None) == "3 None"


class TestAPlainFunctionThatReturnsAnAwaitable:
    async def test_is_dead_at_once_with_what_to_do(self, app: Towpath) -> None:
        """Nothing tells that it will, before it does."""

        def sell(n: int) -> Any:
            return plain(n)

        handler = app.add("shop", sell, HandlerOptions())
        async with working(app):
            dead = await ended(await handler.submit(3))
        assert (dead.state, dead.attempts) == (State.DEAD, 1)
        assert dead.reason is not None
        assert dead.reason.startswith("sell is a plain function and returned an awaitable")
