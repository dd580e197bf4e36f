"""Declaring handlers: which functions are accepted, and what is refused before any job comes."""

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.worker.in_process_worker import SOON, LogLines, ended, working
from towpath.app.app import Towpath
from towpath.clock import Duration, seconds
from towpath.engine.states import State
from towpath.errors import HandlerInvalid, InvalidName, InvalidOption
from towpath.worker.context import Context
from towpath.worker.handler import HandlerOptions


class Shop:
    """An object with a method, and one that can be called."""

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


REFUSED: list[tuple[Any, str, type[Exception] | None]] = [
    (two, "two", None),
    (two_contexts, "two_contexts", None),
    (by_name, "by_name", None),
    (before_a_slash, "before_a_slash", None),
    (unknown, "unknown", NameError),
    (several, "several", None),
    (around, "plain", None),
    (Shop(), "Shop", TypeError),
    (functools.partial(two, 1), "partial", TypeError),
    (7, "7", None),
]


@pytest.mark.parametrize(("function", "name", "cause"), REFUSED)
def test_a_function_that_cannot_be_a_handler_is_refused(
    function: Callable[..., Any], name: str, cause: type[Exception] | None
) -> None:
    with pytest.raises(HandlerInvalid) as refusal:
        Towpath("redis://nowhere").add("shop", function, HandlerOptions())
    assert refusal.value.handler == name
    assert isinstance(refusal.value.__cause__, cause or type(None))


def test_processes_are_for_plain_functions_of_a_module() -> None:
    app, nameless = Towpath("redis://nowhere"), lambda: None
    for function, name in ((plain, "plain"), (nameless, "<lambda>")):
        with pytest.raises(HandlerInvalid, match="processes=") as refusal:
            app.add("shop", function, HandlerOptions(processes=1))
        assert refusal.value.handler == name


def test_a_method_may_be_a_handler() -> None:
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


def test_names_of_handlers_and_queues_are_checked() -> None:
    with pytest.raises(InvalidName):
        Towpath("redis://nowhere").handler("shop", name="Not A Name")
    with pytest.raises(InvalidName):
        Towpath("redis://nowhere").handler("Not A Queue")(plain)


def test_a_handler_keeps_the_name_and_docstring_of_its_function() -> None:
    @Towpath("redis://nowhere").handler("shop")
    def sell(n: int) -> int:
        """Sells."""
        return n

    assert (sell.__name__, sell.__doc__, repr(sell)) == ("sell", "Sells.", "<handler sell of shop>")


class TestTheContextParameter:
    async def test_may_come_after_the_payload_before_it_or_by_keyword(self, app: Towpath) -> None:
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

    async def test_may_be_optional(self, app: Towpath) -> None:
        """A worker passes a context; a caller of the function passes one or not."""

        @app.handler("shop")
        async def sell(n: int, ctx: Context | None = None) -> str:
            return f"{n} {ctx and ctx.queue}"

        async with working(app):
            assert await (await sell.submit(3)).result(within=SOON) == "3 shop"
        assert await sell(3) == await sell(3, None) == "3 None"


class TestAPlainFunctionThatReturnsAnAwaitable:
    async def test_ends_its_job_dead_at_once_with_a_remedy(
        self, app: Towpath, lines: LogLines
    ) -> None:
        """Only the return value shows that it is awaitable, so the declaration cannot refuse it."""

        def sell(n: int) -> Any:
            return plain(n)

        handler = app.add("shop", sell, HandlerOptions())
        async with working(app):
            dead = await ended(await handler.submit(3))
        assert (dead.state, dead.attempts) == (State.DEAD, 1)
        assert dead.reason is not None
        assert {"sell", "`async def`"} <= set(re.findall(r"`.*?`|\w+", dead.reason))
        assert [line["job"] for line in lines.of("job.discarded")] == [dead.id]
