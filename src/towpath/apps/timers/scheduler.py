"""The scheduler of service mode: handlers in a worker that call the applications' instances.

It has a handler for each type that a live instance serves, so timers are claimed only while one can
be called. Any number of schedulers run side by side; Redis gives each timer to one of them.

A timer goes one way: the worker claims it and runs `TypeCalls.call`, which calls an instance; the
worker settles the attempt, and its handler's `on_settled` is the log (`FiringLog.add_called`).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from towpath.app.app import Towpath
from towpath.app.submitting import AppHandler
from towpath.apps.timers.balancer import Balancer, BreakerChange
from towpath.apps.timers.instances import Instance, Instances, Roster, serving
from towpath.apps.timers.local_types import HANDLER_OPTIONS
from towpath.apps.timers.log import FiringLog
from towpath.apps.timers.log_events import INSTANCE_AVOIDED, INSTANCE_RECOVERED
from towpath.apps.timers.measures import BREAKERS_OPEN, CALLS, INSTANCES
from towpath.apps.timers.model import RECORDED, TimerPayload, TypeKey, due_of, task_id_of
from towpath.apps.timers.options import TimersOptions
from towpath.apps.timers.service_mode import secrets_of
from towpath.apps.timers.types import Types, queue_of
from towpath.calls.answer import CallAnswer, Next, advice_among
from towpath.calls.caller import Caller
from towpath.calls.errors import AnswerTooLarge, CallFailed, CallRefused
from towpath.calls.guard import parse_target
from towpath.calls.signature import message_id
from towpath.clock import ZERO, Duration, instant_ms, seconds
from towpath.engine.engine import Engine
from towpath.errors import ServerError
from towpath.supervise import Background, detached
from towpath.telemetry.logs import Log
from towpath.worker.context import Context, Discard, HandOver, Retry, Snooze

if TYPE_CHECKING:
    from towpath.telemetry.metrics import Metrics

READ_EVERY_S = 0.5
"""Seconds between two reads of the instances: a new type is served within a second."""
HANDED_OVER = seconds(60)
"""The lease after a 202, unless the answer has `lease_s`."""
_LONGEST_HANDED_OVER = 86_400
_MOST_CALLED = 4
"""Maximum number of instances that one attempt calls, one after the other."""
_SLACK = seconds(10)
_LARGEST_ANSWER = 64 * 1024
_JSON = {"content-type": "application/json"}

TypeHandlers = list[AppHandler[Any, Any, Any]]
"""The handlers of one type: for its timers, and for those with a record."""


class Scheduler:
    """The handlers of service mode, which run beside a server."""

    def __init__(self, options: TimersOptions) -> None:
        self._options = options

    @asynccontextmanager
    async def added(self, app: Towpath) -> AsyncGenerator[None]:
        """Keep a handler in *app* for each type that live instances serve, while the body runs."""
        if not self._options.secrets:  # without them, no instance can register
            yield
            return
        caller = Caller(
            allow=self._options.allow,
            timeout=self._options.call_within,
            largest_answer=_LARGEST_ANSWER,
            connections=1000,
        )
        async with caller:
            follow = partial(self._follow_instances, app, caller)
            following = Background("timers: scheduler", follow).start()
            try:
                yield
            finally:
                await following.stop()

    async def _follow_instances(self, app: Towpath, caller: Caller) -> None:
        """Serve what live instances register, until cancelled."""
        async with app:
            known = KnownInstances(app.engine, self._options, app.metrics)
            log = FiringLog(app.engine, self._options, app.metrics)
            handlers: dict[TypeKey, TypeHandlers] = {}
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_read_instances(known, log))
                    while True:
                        known.changed.clear()
                        callable_types = known.callable_types()
                        for key in callable_types - handlers.keys():
                            calls = TypeCalls(key, known, caller, self._options)
                            handlers[key] = self._add_handlers(app, calls, log)
                        for key in handlers.keys() - callable_types:
                            _remove_handlers(app, handlers.pop(key))
                        known.set_gauges()
                        await known.changed.wait()
            finally:
                for of_type in handlers.values():
                    _remove_handlers(app, of_type)
                await log.close()

    def _add_handlers(self, app: Towpath, calls: TypeCalls, log: FiringLog) -> TypeHandlers:
        queue, on_settled = queue_of(calls.key), partial(log.add_called, calls.key)
        options = msgspec.structs.replace(
            HANDLER_OPTIONS,
            time_limit=self._options.call_within * _MOST_CALLED + _SLACK,
            concurrency=self._options.calls_per_type,
        )
        handlers = [app.add(queue, calls.call, options, on_settled=on_settled)]
        if app.keeps_records:
            recorded = msgspec.structs.replace(options, name=RECORDED, record=True)
            handlers.append(app.add(queue, calls.call, recorded, on_settled=on_settled))
        return handlers


def _remove_handlers(app: Towpath, handlers: Iterable[AppHandler[Any, Any, Any]]) -> None:
    for handler in handlers:
        app.remove(handler)


async def _read_instances(known: KnownInstances, log: FiringLog) -> None:
    """Read the instances again and again, and log handed-over timers whose lease has ended. Waits
    while Redis is away.
    """
    while True:
        with suppress(ServerError):
            await known.refresh()
        # even if the read failed, because the pause of a breaker may have ended
        known.changed.set()
        with suppress(ServerError):
            await log.log_lost_leases()
        await asyncio.sleep(READ_EVERY_S)


class KnownInstances:
    """The live instances as of the last `refresh`, and which of them may be called now."""

    def __init__(self, engine: Engine, options: TimersOptions, metrics: Metrics) -> None:
        self._instances, self._types = Instances(engine), Types(engine, options)
        self._roster = Roster(self._instances)
        self._version = -1
        """The version of the types that `_owners` is of."""
        self._owners: dict[TypeKey, str] = {}
        """The types without an app that an app owns, with that app."""
        self._alive: list[Instance] = []
        self.balancer = Balancer()
        self.changed = asyncio.Event()
        """Set when other types may be callable than before."""
        self._metrics, self._log = metrics, Log()
        self._scheduler = f"{socket.gethostname()}:{os.getpid()}"
        """The name of this scheduler in the list of its open breakers."""

    async def refresh(self) -> None:
        """Read the instances, and the owners of types if they have changed. Raises ServerError."""
        await self._roster.refresh()
        version = await self._types.version()
        if version != self._version:
            found = await self._types.all()
            self._owners = {
                info.key: info.owner.app
                for info in found
                if info.key.app is None and info.owner is not None and info.owner.app is not None
            }
            self._version = version
        self._alive = self._roster.alive()
        self.balancer.keep({instance.id for instance in self._roster.all()})

    def app_of(self, key: TypeKey) -> str:
        """Returns the app whose instances serve a type; '' = none."""
        return key.app or self._owners.get(key, "")

    def serving(self, key: TypeKey) -> list[Instance]:
        """Returns the live instances that serve a type."""
        return serving(self._alive, self.app_of(key), key.task_type)

    def callable_types(self) -> set[TypeKey]:
        """Returns the types for which an instance may be called now."""
        found = {
            TypeKey(task_type, instance.app)
            for instance in self._alive
            for task_type in instance.types
            if self.balancer.permits(instance, task_type)
        }
        return found | {
            bare for bare, app in self._owners.items() if TypeKey(bare.task_type, app) in found
        }

    def set_gauges(self) -> None:
        """Set the metrics of live instances and open breakers."""
        self._metrics.own(INSTANCES).set(len(self._alive))
        self._metrics.own(BREAKERS_OPEN).set(len(self.balancer.open()))

    def count_call(self, outcome: str) -> None:
        self._metrics.own(CALLS).labels(outcome).inc()

    def report(self, changes: Iterable[BreakerChange]) -> None:
        """Log and publish breakers that have opened or closed."""
        for instance, task_type, pause in changes:
            where = str(parse_target(instance.address))
            about = {"app": instance.app, "instance": where, "task_type": task_type or "all"}
            if pause:
                self._log.emit(INSTANCE_AVOIDED, **about, avoided=pause)
            else:
                self._log.emit(INSTANCE_RECOVERED, **about)
            publishing = self._publish_breaker(instance, seconds(pause))
            detached("timers: breaker", publishing, log=self._log)
            self.changed.set()

    async def _publish_breaker(self, instance: Instance, pause: Duration) -> None:
        if not pause and instance.id in self.balancer.open():
            return  # it is still avoided for another type
        with suppress(ServerError):  # breakers are published only for display
            await self._instances.publish_breaker(instance.id, self._scheduler, pause)


class TypeCalls:
    """The calls for the timers of one type."""

    def __init__(
        self, key: TypeKey, known: KnownInstances, caller: Caller, options: TimersOptions
    ) -> None:
        self.key, self._known, self._caller, self._options = key, known, caller, options

    async def call(self, payload: bytes, ctx: Context) -> None:
        """Call instances one after the other, until one takes the timer or ends the attempt.

        This is the function of the handlers: it returns, or raises the AttemptEnd by which the
        attempt ends.
        """
        known, balancer, task_type = self._known, self._known.balancer, self.key.task_type
        app, body = known.app_of(self.key), msgspec.json.encode(_call_body(self.key, payload, ctx))
        refusals: dict[str, _Refusal] = {}
        while len(refusals) < _MOST_CALLED:
            instance = balancer.choose(known.serving(self.key), task_type, excluded=refusals)
            if instance is None:
                break
            ctx.called = str(parse_target(instance.address))
            with balancer.calling(instance, task_type):
                if not balancer.permits(instance, task_type):
                    known.changed.set()  # a trial call: claim no other timers meanwhile
                try:
                    answer = await self._caller.post(
                        instance.address,
                        body,
                        headers=_JSON,
                        message=message_id(f"{ctx.queue}/{ctx.id}"),
                        secrets=secrets_of(app, self._options.secrets, owner=instance.owner),
                    )
                except AnswerTooLarge as large:
                    answer = CallAnswer(large.status, {}, b"")  # only its status counts
                except (CallFailed, CallRefused) as error:
                    known.report(balancer.failed(instance))
                    if isinstance(error, CallFailed) and error.sent:
                        known.count_call("later")
                        raise _RetryInTurn(f"instance {error}") from error
                    known.count_call("unreached")
                    refusals[instance.id] = _Refusal(f"instance {error}", sent=False)
                    continue
            advice = advice_among(answer)
            reason = f"instance {ctx.called} answered {answer.status}"
            if advice.next is Next.ELSEWHERE:
                known.report(balancer.refused(instance, task_type))
                known.count_call("elsewhere")
                refusals[instance.id] = _Refusal(reason, after=advice.after)
                continue
            if advice.next is Next.LATER:
                known.report(balancer.failed(instance, timer=ctx.id))
                known.count_call("later")
                raise _RetryInTurn(reason, after=advice.after or None)
            known.report(balancer.succeeded(instance, task_type))
            if advice.next is Next.NEVER:
                known.count_call("dead")
                raise Discard(reason)
            if advice.next is Next.ACCEPTED:
                known.count_call("handed_over")
                raise HandOver(_lease_asked_for(answer.body))
            known.count_call("done")
            return
        if any(refusal.sent for refusal in refusals.values()):
            after = max(refusal.after for refusal in refusals.values())
            raise _RetryInTurn(
                "; ".join(refusal.reason for refusal in refusals.values()), after=after or None
            )
        # No instance was reached, so the attempt does not count. The timer goes back to its place
        # in the order of due times. Failed calls open breakers: soon no instance may be called, and
        # the type is not claimed any more.
        known.changed.set()
        raise Snooze(ZERO)


class _RetryInTurn(Retry):
    """The timer is tried again before timers that were due later."""

    keep_turn = True


class _Refusal(msgspec.Struct, frozen=True):
    """Why an instance did not take a call that another one may take."""

    reason: str
    sent: bool = True
    """Whether anything was sent; otherwise the attempt does not count."""
    after: Duration = ZERO


def _call_body(key: TypeKey, payload: bytes, ctx: Context) -> dict[str, Any]:
    """Returns the body of the call."""
    packed = TimerPayload.read(payload)
    return {
        "task_id": task_id_of(ctx.id, recorded=ctx.headers.get("handler") == RECORDED),
        "task_type": key.task_type,
        "app": key.app,
        "params": packed.params,
        "attempt": ctx.attempt,
        "delay_time": instant_ms("due", ctx.due_at or due_of(packed, ctx.submitted_at)),
        "token": ctx.token,
    }


class _Accepted(msgspec.Struct, frozen=True):
    """The body of an answer of 202."""

    lease_s: Annotated[float, msgspec.Meta(ge=1, le=_LONGEST_HANDED_OVER)] = 60.0


def _lease_asked_for(body: bytes) -> Duration:
    """Returns the lease that an answer of 202 asks for; HANDED_OVER if it can't be read."""
    try:
        return seconds(msgspec.json.decode(body, type=_Accepted).lease_s)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return HANDED_OVER
