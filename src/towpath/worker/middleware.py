"""Middleware: functions around every attempt, and how they may change its outcome."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from towpath.errors import MiddlewareInvalid
from towpath.worker.attempt import Attempt
from towpath.worker.context import AttemptEnd, AttemptStopped, Context
from towpath.worker.settlements import reason_of

_LAST_WORDS = 1.0
"""Seconds that all middleware of an attempt has together after the attempt was stopped."""
CallNext = Callable[[], Coroutine[Any, Any, Any]]
"""What middleware calls, exactly once, to run the next middleware and finally the handler."""
AttemptMiddleware = Callable[[Context[Any], CallNext], Awaitable[object]]
"""`async def timed(ctx, call_next)`: runs around every attempt, in the worker's event loop."""


class Middleware:
    """Attempt middleware as a class: override the methods that you need.

    After `before`, either `after` or `error` is called, unless the process is killed. What a method
    raises counts as if the handler had raised it.
    """

    async def before(self, ctx: Context[Any]) -> None:
        """Called before the handler."""

    async def after(self, ctx: Context[Any], result: Any) -> None:
        """Called after the handler returned *result*."""

    async def error(self, ctx: Context[Any], error: Exception) -> None:
        """Called after the handler raised *error*; this includes Retry, Discard, Snooze and
        HandOver.

        If the attempt was ended from outside, *error* is AttemptStopped; for SystemExit and the
        like it is a RuntimeError. Then the end of the attempt is decided: what is raised here is
        only logged, and all middleware together has one second.
        """

    async def __call__(self, ctx: Context[Any], call_next: CallNext) -> Any:
        await self.before(ctx)
        try:
            value = await call_next()
            await self.after(ctx, value)
        except Exception as error:
            await self.error(ctx, error)
            raise
        except asyncio.CancelledError:
            if ctx.stopped is not None:
                await self.error(ctx, AttemptStopped(ctx.stopped))
            raise
        return value


def middleware_name(middleware: object) -> str:
    """Returns the name of a middleware for messages and log lines."""
    return getattr(middleware, "__qualname__", None) or type(middleware).__qualname__


def require_callable(middleware: Sequence[object]) -> None:
    """Refuse middleware that every attempt or submit would fail with. Raises MiddlewareInvalid."""
    for each in middleware:
        rule = _broken_rule(each)
        if rule is not None:
            raise MiddlewareInvalid(middleware_name(each), rule=rule)


def _broken_rule(middleware: object) -> str | None:
    """Returns why *middleware* can't be called as middleware, or None if it can."""
    if isinstance(middleware, type):
        return "is a class; pass an object of it"
    if not callable(middleware):
        return "can't be called"
    try:
        inspect.signature(middleware).bind(None, None)
    except TypeError:
        return "must take two arguments, the second of which is call_next"
    except ValueError:
        return None  # a function written in C may have no signature
    return None


class InnerCall:
    """The `call_next` of one middleware. It may be called exactly once."""

    __slots__ = ("_call", "_name", "called", "raised", "value")

    def __init__(self, middleware: object, call: Callable[[], Awaitable[Any]]) -> None:
        self._name, self._call = middleware_name(middleware), call
        self.called = False
        self.value: Any = None
        self.raised: BaseException | None = None

    async def __call__(self) -> Any:
        if self.called:
            raise MiddlewareInvalid(self._name, rule="called call_next a second time")
        self.called = True
        try:
            self.value = await self._call()
        except BaseException as error:
            self.raised = error
            raise
        return self.value


def _require_called(middleware: object, inner: InnerCall) -> None:
    if not inner.called:
        rule = "returned without calling call_next: the handler did not run"
        raise MiddlewareInvalid(middleware_name(middleware), rule=rule)


class MiddlewareRun:
    """The middleware around one attempt.

    The attempt ends with what the outermost middleware returns or raises, with three exceptions. A
    middleware that returns None leaves the result as it is. If the attempt was stopped, that stop,
    or what the handler raised after it, counts. If the handler was never called, the attempt fails.
    """

    def __init__(
        self,
        middleware: Sequence[AttemptMiddleware],
        attempt: Attempt,
        ctx: Context[Any],
        *,
        call: Callable[[], Awaitable[Any]],
        failed: Callable[[object, Exception], None],
    ) -> None:
        self._middleware, self._attempt, self._ctx = middleware, attempt, ctx
        self._call, self._failed = call, failed
        self._final_error: BaseException | None = None
        """The error that ends the attempt, whatever middleware returns or raises."""
        self._is_over = False
        """Whether the time for middleware after a stop is over."""

    async def run(self) -> Any:
        """Run middleware and handler. Returns the result of the attempt, or raises its error."""
        chain = asyncio.create_task(self._call_from(0))
        try:
            await asyncio.wait((chain,))
        except asyncio.CancelledError:
            chain.cancel()
            try:
                await asyncio.wait((chain,), timeout=_LAST_WORDS)
            finally:
                self._is_over = True
                chain.cancel()
                chain.add_done_callback(lambda task: task.cancelled() or task.exception())
            raise
        value = None if chain.cancelled() or chain.exception() else chain.result()
        if self._final_error is not None:
            raise self._final_error
        if chain.cancelled():
            raise asyncio.CancelledError
        if (error := chain.exception()) is not None:
            raise error
        return value

    async def _call_from(self, at: int) -> Any:
        if at == len(self._middleware):
            return await self._call_handler()
        middleware = self._middleware[at]
        inner = InnerCall(middleware, lambda: self._show_stop(self._call_from(at + 1)))
        try:
            value = await middleware(self._ctx, inner)
            _require_called(middleware, inner)
        except Exception as error:
            if error is not inner.raised and not isinstance(error, AttemptEnd):
                self._failed(middleware, error)
            raise
        return inner.value if value is None else value

    async def _call_handler(self) -> Any:
        try:
            return await self._call()
        except Exception as error:
            if self._attempt.stop is not None:
                self._final_error = error
            raise
        except asyncio.CancelledError as error:
            self._final_error = error
            raise
        except GeneratorExit:
            raise  # the loop is closed: nothing can be awaited any more
        except BaseException as error:
            self._final_error = error
            raise RuntimeError(f"the handler raised {reason_of(error)}") from error

    async def _show_stop(self, inside: Coroutine[Any, Any, Any]) -> Any:
        """Await *inside*, and raise a stop as an exception that middleware can handle."""
        try:
            return await inside
        except asyncio.CancelledError as error:
            if self._is_over:
                raise
            if self._attempt.stop is not None:
                raise AttemptStopped(self._attempt.stop) from None
            raise RuntimeError(f"the handler raised {reason_of(error)}") from error
