"""`@app.handler(…)`: turns a function into a handler, and keeps its types."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar, cast, overload

import msgspec

from towpath.app.submission import NotGiven
from towpath.app.submitting import AppHandler
from towpath.worker.context import Context
from towpath.worker.handler import HandlerOptions

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")
T_contra = TypeVar("T_contra", contravariant=True)
C_co = TypeVar("C_co", covariant=True)
Async = Coroutine[Any, Any, R]


class _ContextByName(Protocol[T_contra, C_co]):
    def __call__(self, payload: T_contra, /, *, ctx: Context) -> C_co: ...


class _OnlyContextByName(Protocol[C_co]):
    def __call__(self, *, ctx: Context) -> C_co: ...


class _Default(Protocol[T_contra, C_co]):
    def __call__(self, payload: T_contra = ..., /) -> C_co: ...


class _DefaultAndContext(Protocol[T_contra, C_co]):
    def __call__(self, payload: T_contra = ..., /, *, ctx: Context) -> C_co: ...


_ContextElsewhere = Callable[[Context, T], C] | _ContextByName[T, C]
_OnlyContext = Callable[[Context], C] | _OnlyContextByName[C]
"""A function that accepts any object as its payload also fits these types, so its overloads come
first.
"""


class Decorator:
    """Turns a function into a handler and keeps its types."""

    def __init__(
        self,
        add: Callable[[str, Callable[..., Any], HandlerOptions], AppHandler[Any, Any, Any]],
        queue: str,
        options: HandlerOptions,
        plan: Callable[[AppHandler[Any, Any, Any]], None] | None = None,
    ) -> None:
        self._add, self._queue, self._options, self._plan = add, queue, options, plan

    @overload
    def __call__(
        self, function: Callable[[T, Context], Async[R]]
    ) -> AppHandler[T, R, Async[R]]: ...
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload] -- the same
        self, function: _DefaultAndContext[T, Async[R]]
    ) -> AppHandler[T | NotGiven, R, Async[R]]: ...
    @overload
    def __call__(self, function: _ContextElsewhere[T, Async[R]]) -> AppHandler[T, R, Async[R]]: ...
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload] -- see _OnlyContext
        self, function: Callable[[object], Async[R]]
    ) -> AppHandler[object, R, Async[R]]: ...
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload] -- the same
        self, function: _OnlyContext[Async[R]]
    ) -> AppHandler[None, R, Async[R]]: ...
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload] -- see _OnlyContext
        self, function: _Default[T, Async[R]]
    ) -> AppHandler[T | NotGiven, R, Async[R]]: ...
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload] -- the same
        self, function: Callable[[T], Async[R]]
    ) -> AppHandler[T, R, Async[R]]: ...
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload] -- the same
        self, function: Callable[[], Async[R]]
    ) -> AppHandler[None, R, Async[R]]: ...
    @overload
    def __call__(self, function: Callable[[T, Context], R]) -> AppHandler[T, R, R]: ...
    @overload
    def __call__(self, function: _DefaultAndContext[T, R]) -> AppHandler[T | NotGiven, R, R]: ...
    @overload
    def __call__(self, function: _ContextElsewhere[T, R]) -> AppHandler[T, R, R]: ...
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload] -- see _OnlyContext
        self, function: Callable[[object], R]
    ) -> AppHandler[object, R, R]: ...
    @overload
    def __call__(self, function: _OnlyContext[R]) -> AppHandler[None, R, R]: ...
    @overload
    def __call__(self, function: _Default[T, R]) -> AppHandler[T | NotGiven, R, R]: ...
    @overload
    def __call__(self, function: Callable[[T], R]) -> AppHandler[T, R, R]: ...
    @overload
    def __call__(self, function: Callable[[], R]) -> AppHandler[None, R, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Any:
        if self._plan is None:
            return cast("Any", self._add(self._queue, function, self._options))
        # Named, so that many of them can share a queue.
        named = self._options.name or function.__name__
        options = msgspec.structs.replace(self._options, name=named)
        handler = self._add(self._queue, function, options)
        self._plan(handler)
        return cast("Any", handler)
