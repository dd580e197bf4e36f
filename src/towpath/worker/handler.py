"""A handler: the function for a queue's jobs, what it takes and returns, and how it may run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from towpath.clock import (
    DurationField,
    OptionalDuration,
    default_duration,
    duration,
    hours,
    milliseconds,
)
from towpath.engine.check import integer
from towpath.engine.retry import RetryPolicy, own_attempts, retry_policy
from towpath.errors import HandlerInvalid
from towpath.ids import QueueName, queue_name
from towpath.worker.context import Context, Discard
from towpath.worker.lifespan import Lifespan
from towpath.worker.payload import PayloadForm, WithDefault, form

if TYPE_CHECKING:
    from towpath.worker.attempt import SettledAttempt

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")
OnSettled = Callable[[Sequence["SettledAttempt"]], None]
"""Called in the worker's event loop with attempts of a handler that were settled together."""
_MAKE_ASYNC = "make it an `async def` that awaits"


class Place(StrEnum):
    """Where a handler runs."""

    LOOP = "loop"
    """An async function, in the worker's event loop."""
    THREAD = "thread"
    """A plain function, in a thread."""
    PROCESS = "process"
    """A plain function that computes, in a process of its own."""


class HandlerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a handler runs. Every field has a default that suits most handlers."""

    name: str | None = None
    """Distinguishes the handlers of one queue; jobs name theirs in the header `handler`. Jobs
    without that header go to the handler without a name."""
    retry: RetryPolicy | None = None
    """How long to wait before the next attempt; None = as the queue says."""
    max_attempts: int | None = None
    """Maximum number of attempts before a job is dead; None = the length of a Listed policy, else
    as the queue says."""
    keep: OptionalDuration = default_duration(None)
    """How long a finished job and its result are kept; None = an hour, unless the queue is
    configured otherwise."""
    time_limit: DurationField = default_duration(hours(1))
    """Maximum duration of one attempt."""
    processes: int = 0
    """Number of processes to run in instead of threads; for plain functions that compute."""
    concurrency: int | None = None
    """Maximum number of jobs of this handler that run at once in one worker; None = as many as the
    worker has slots."""
    weight: int = 1
    """Share of the free slots that its queue gets, relative to the other queues of the worker."""
    record: bool = False
    """Whether each job is stored as a row of the app's ledger first, so that it survives the loss
    of Redis."""

    def __post_init__(self) -> None:
        if self.name is not None:
            queue_name(self.name)
        if self.retry is not None:
            retry_policy(self.retry)
        if self.max_attempts is not None:
            integer("max_attempts", self.max_attempts, 1, 1_000_000)
        if self.concurrency is not None:
            integer("concurrency", self.concurrency, 1, 100_000)
        integer("processes", self.processes, 0, 1_000)
        integer("weight", self.weight, 1, 1_000)
        if self.keep is not None:
            msgspec.structs.force_setattr(self, "keep", duration("keep", self.keep))
        limit = duration("time_limit", self.time_limit, least=milliseconds(1))
        msgspec.structs.force_setattr(self, "time_limit", limit)

    def completed(self) -> HandlerOptions:
        """Internal: the same options, with the number of attempts that the retry policy implies."""
        if self.max_attempts is not None:
            return self
        return msgspec.structs.replace(self, max_attempts=own_attempts(self.retry))

    @property
    def most(self) -> int | None:
        """Internal: the maximum number of jobs of the handler that run at once."""
        return self.processes or self.concurrency


class Handler(Generic[T, R, C]):
    """A function for the jobs of a queue. Calling it runs the function here and now.

    A worker calls *on_settled* after each exchange with the attempts of this handler that the
    exchange has settled, or whose settlement Redis refused. It must neither block nor raise.
    Attempts that the worker's heartbeat settles, because their handler did not end in time, are
    left out.
    """

    def __init__(
        self,
        queue: str,
        function: Callable[..., C],
        options: HandlerOptions | None = None,
        *,
        on_settled: OnSettled | None = None,
    ) -> None:
        self.queue: QueueName = queue_name(queue)
        self.function = function
        self.options = (options or HandlerOptions()).completed()
        self.named = self.options.name
        self.name = self.named or _name(function)
        self.place = _place(self, function)
        self.time_limit_s = self.options.time_limit.total_seconds()
        signature = _Signature.of(self.name, function)
        self.takes_payload, self.context_name = signature.takes_payload, signature.context
        self.context_first = signature.context_first
        self.needs_context = signature.needs_context
        self.payload: PayloadForm[Any] = _payload_form(
            self.name, signature.payload, f"payload of {self.name}"
        )
        if signature.default is not inspect.Parameter.empty:
            self.payload = WithDefault(self.payload, signature.default)
        self.result: PayloadForm[Any] = _payload_form(
            self.name, signature.result, f"result of {self.name}"
        )
        self.lifespan: Lifespan | None = None
        """The lifespan of its app, which each process enters to make `ctx.state`."""
        self.on_settled = on_settled
        self.__doc__, self.__name__ = function.__doc__, _name(function)
        self.__module__ = function.__module__
        self.__wrapped__ = function

    @cached_property
    def digest(self) -> str:
        """Internal: a short hash of the payload's type, the same in every process; empty = any."""
        return self.payload.digest()

    def __call__(self, *args: Any, **kwargs: Any) -> C:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<handler {self.name} of {self.queue}>"

    def invoke(self, payload: Any, ctx: Context) -> C:
        """Call the function with the arguments that it takes. Raises Discard if a plain function
        returns an awaitable.
        """
        args = (payload,) if self.takes_payload else ()
        if self.context_name is None:
            value = self.function(*args)
        elif self.context_first:
            value = self.function(ctx, *args)
        else:
            value = self.function(*args, **{self.context_name: ctx})
        if self.place is not Place.LOOP and inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise Discard(
                f"{self.name} is a plain function and returned an awaitable: {_MAKE_ASYNC}"
            )
        return value


class _Signature(msgspec.Struct, frozen=True):
    """The parameters and the result of a handler's function."""

    takes_payload: bool
    payload: Any
    default: Any
    """The default of the payload's parameter; Parameter.empty = it has none."""
    context: str | None
    context_first: bool
    needs_context: bool
    result: Any

    @classmethod
    def of(cls, name: str, function: Callable[..., Any]) -> _Signature:
        """Raises HandlerInvalid if *function* has parameters that a worker can't fill."""
        try:
            hints = get_type_hints(function)
        except NameError as error:
            raise HandlerInvalid(name, rule=f"an annotation can't be resolved: {error}") from error
        except TypeError as error:
            raise HandlerInvalid(name, rule="must be a function or a method") from error
        parameters = list(inspect.signature(function).parameters.values())
        asked = {name for name, hint in hints.items() if _asks_for_context(hint)}
        contexts = [parameter.name for parameter in parameters if parameter.name in asked]
        others = [parameter for parameter in parameters if parameter.name not in contexts]
        needed = [
            parameter
            for parameter in others
            if parameter.default is parameter.empty and _one_value(parameter)
        ]
        if len(contexts) > 1 or len(needed) > 1:
            raise HandlerInvalid(name, rule="takes one payload and at most one Context")
        if any(
            parameter.kind is parameter.POSITIONAL_ONLY and parameter.name in contexts
            for parameter in parameters
        ):
            raise HandlerInvalid(name, rule="takes its Context by name: put no `/` after it")
        payload = next((parameter for parameter in others if _one_value(parameter)), None)
        if payload is not None and payload.kind is payload.KEYWORD_ONLY:
            raise HandlerInvalid(name, rule="takes its payload first, not by name only")
        return cls(
            takes_payload=payload is not None,
            payload=hints.get(payload.name, Any) if payload else Any,
            default=payload.default if payload else inspect.Parameter.empty,
            context=contexts[0] if contexts else None,
            context_first=bool(contexts) and parameters[0].name in contexts and payload is not None,
            needs_context=any(
                parameter.name in contexts and parameter.default is parameter.empty
                for parameter in parameters
            ),
            result=hints.get("return", Any),
        )


def _asks_for_context(hint: Any) -> bool:
    """Whether *hint* is `Context`, `Context[State]`, or a union with one of them."""
    return (get_origin(hint) or hint) is Context or any(map(_asks_for_context, get_args(hint)))


def _one_value(parameter: inspect.Parameter) -> bool:
    return parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)


def _place(handler: Handler[Any, Any, Any], function: Callable[..., Any]) -> Place:
    if not callable(function):
        raise HandlerInvalid(repr(function), rule="must be a function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise HandlerInvalid(handler.name, rule="must return a value, not yield several")
    if inspect.iscoroutinefunction(function):
        if handler.options.processes:
            raise HandlerInvalid(handler.name, rule="processes= is for plain functions")
        return Place.LOOP
    if inspect.iscoroutinefunction(inspect.unwrap(function)):
        rule = f"is a plain function that wraps an async one: {_MAKE_ASYNC}"
        raise HandlerInvalid(handler.name, rule=rule)
    if handler.options.processes:
        if "<" in getattr(function, "__qualname__", "<unknown>"):
            rule = "processes= needs a function of a module, that another process can import"
            raise HandlerInvalid(handler.name, rule=rule)
        return Place.PROCESS
    return Place.THREAD


def _payload_form(name: str, kind: Any, what: str) -> PayloadForm[Any]:
    try:
        return form(kind, what)
    except TypeError as error:
        raise HandlerInvalid(name, rule=f"{what} can't be written as JSON: {error}") from error


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
