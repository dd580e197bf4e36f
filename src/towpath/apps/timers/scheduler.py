"""The scheduler of service mode: handlers in a worker that call the applications' instances.

It has a handler for each type that a live instance serves, so timers are claimed only while one can
be called. Any number of schedulers run side by side; Redis gives each timer to one of them.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Annotated, Any

import msgspec

from towpath.app.app import Towpath
from towpath.app.submitting import AppHandler
from towpath.apps.timers.balancer import Balancer
from towpath.apps.timers.handed_over import HandedOverTimers
from towpath.apps.timers.instances import Instance, Instances, Roster, serving
from towpath.apps.timers.local_types import HANDLER_OPTIONS, firing_from
from towpath.apps.timers.log import Firing, FiringLog
from towpath.apps.timers.measures import BREAKERS_OPEN, CALLS, INSTANCES
from towpath.apps.timers.model import RECORDED, Packed, TypeKey, due_of, task_id_of
from towpath.apps.timers.options import TimersOptions
from towpath.apps.timers.service_mode import secrets_of
from towpath.apps.timers.types import Types, queue_of
from towpath.calls.answer import CallAnswer, Next, advice_among
from towpath.calls.caller import Caller
from towpath.calls.errors import AnswerTooLarge, CallFailed, CallRefused
from towpath.calls.guard import parse_target
from towpath.calls.signature import message_id
from towpath.clock import ZERO, Duration, instant_ms, seconds
from towpath.engine.model import Lease
from towpath.errors import ServerError
from towpath.supervise import Background, detached
from towpath.telemetry import events
from towpath.telemetry.logs import Log
from towpath.worker.attempt import SettledAttempt
from towpath.worker.context import Context, Discard, HandOver, Retry, Snooze

LOOK_EVERY = 0.5
"""Seconds between two reads of the instances: a new type is served within a second."""
HANDED_OVER = seconds(60)
"""The lease after a 202, unless the answer has `lease_s`."""
_LONGEST_HANDED_OVER = 86_400
_MOST_TRIED = 4
"""Maximum number of instances that one attempt calls, one after the other."""
_SLACK = seconds(10)
_LARGEST_ANSWER = 64 * 1024
_JSON = {"content-type": "application/json"}


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
            served = _InstanceHandlers(app, caller, self._options)
            following = Background("timers: scheduler", served.follow).start()
            try:
                yield
            finally:
                await following.stop()


class _InstanceHandlers:
    """Follows the instances, and calls them when timers are due."""

    def __init__(self, app: Towpath, caller: Caller, options: TimersOptions) -> None:
        self._app, self._caller, self._options = app, caller, options
        self._log = Log()
        self._instances: Instances | None = None
        self._alive: list[Instance] = []
        self._owned: dict[TypeKey, str] = {}
        """The types without an app that an app owns, with that app."""
        self._version = -1
        self._handlers: dict[TypeKey, list[AppHandler[Any, Any, Any]]] = {}
        self._balancer = Balancer(self._breaker_changed)
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        """The name of this scheduler in the list of its open breakers."""
        self._firings = FiringLog(lambda: app.engine, options, lambda: app.metrics)
        self._handed_over = HandedOverTimers(self._firings)

    # ── following ────────────────────────────────────────────────────────────────────────

    async def follow(self) -> None:
        """Serve what live instances register, until cancelled. Waits while Redis is away."""
        async with self._app:
            types = Types(lambda: self._app.engine, self._options)
            self._instances = Instances(self._app.engine)
            roster = Roster(self._instances)
            try:
                while True:
                    with suppress(ServerError):
                        await roster.refresh()
                        await self._refresh_owned(types)
                        self._alive = roster.alive()
                        self._balancer.keep({instance.id for instance in roster.all()})
                    self._update_handlers()
                    with suppress(ServerError):
                        await self._handed_over.log_ended(self._app.engine)
                    await asyncio.sleep(LOOK_EVERY)
            finally:
                await self._firings.close()

    async def _refresh_owned(self, types: Types) -> None:
        version = await types.version()
        if version != self._version:
            found = await types.all()
            self._owned = {
                info.key: info.owner.app
                for info in found
                if info.key.app is None and info.owner is not None and info.owner.app is not None
            }
            self._version = version

    def _update_handlers(self) -> None:
        """Add a handler for each type that an instance may be called for; remove the others."""
        wanted = {
            TypeKey(task_type, instance.app)
            for instance in self._alive
            for task_type in instance.types
            if self._balancer.permits(instance, task_type)
        }
        wanted |= {
            bare for bare, app in self._owned.items() if TypeKey(bare.task_type, app) in wanted
        }
        for key in wanted - self._handlers.keys():
            self._handlers[key] = self._add_handlers(key)
        for key in self._handlers.keys() - wanted:
            for handler in self._handlers.pop(key):
                self._app.remove(handler)
        self._app.metrics.own(INSTANCES).set(len(self._alive))
        self._app.metrics.own(BREAKERS_OPEN).set(len(self._balancer.open()))

    def _add_handlers(self, key: TypeKey) -> list[AppHandler[Any, Any, Any]]:
        async def call(payload: bytes, ctx: Context) -> None:
            await self._fire(key, payload, ctx)

        queue, most = queue_of(key), self._options.calls_per_type
        within = self._options.call_within * _MOST_TRIED + _SLACK
        options = msgspec.structs.replace(HANDLER_OPTIONS, time_limit=within, concurrency=most)
        on_settled = partial(self._log_settled, key)
        handlers = [self._app.add(queue, call, options, on_settled=on_settled)]
        if self._app.keeps_records:
            recorded = msgspec.structs.replace(options, name=RECORDED, record=True)
            handlers.append(self._app.add(queue, call, recorded, on_settled=on_settled))
        return handlers

    def _log_settled(self, key: TypeKey, attempts: Sequence[SettledAttempt]) -> None:
        """Log the outcomes of attempts that called an instance."""
        firings: list[Firing] = []
        for settled in attempts:
            ctx = settled.attempt.ctx
            where = ctx.called if ctx is not None else ""
            if not where or (firing := firing_from(settled, worker=where)) is None:
                continue
            firings.append(firing)
            if isinstance(settled.outcome, Lease):
                self._handed_over.add(key, firing, settled.outcome)
        if firings:
            self._firings.add(key, firings)

    # ── calling ──────────────────────────────────────────────────────────────────────────

    async def _fire(self, key: TypeKey, payload: bytes, ctx: Context) -> None:
        """Call instances one after the other, until one takes the timer or ends the attempt."""
        app = key.app or self._owned.get(key, "")
        call = _Call(app, key.task_type, ctx, msgspec.json.encode(_call_body(key, payload, ctx)))
        refusals: dict[str, _Refusal] = {}
        while len(refusals) < _MOST_TRIED:
            instance = self._balancer.choose(
                self._instances_for(call), call.task_type, without=refusals
            )
            if instance is None:
                break
            refusal = await self._call_instance(instance, call)
            if refusal is None:
                return
            refusals[instance.id] = refusal
        if any(refused.sent for refused in refusals.values()):
            after = max(refused.after for refused in refusals.values())
            raise _RetryInTurn(
                "; ".join(refused.reason for refused in refusals.values()), after=after or None
            )
        # No instance was reached, so the attempt does not count. The timer goes back to its place
        # in the order of due times. Failed calls open breakers: soon no instance may be called, and
        # the type is not claimed any more.
        self._update_handlers()
        raise Snooze(ZERO)

    def _instances_for(self, call: _Call) -> list[Instance]:
        return serving(self._alive, call.app, call.task_type)

    async def _call_instance(self, instance: Instance, call: _Call) -> _Refusal | None:
        """Call *instance*. Returns None if it took the timer, else why to call another one.

        Raises an AttemptEnd if the answer decides how the attempt ends.
        """
        call.ctx.called = str(parse_target(instance.address))
        with self._balancer.calling(instance, call.task_type):
            if not self._balancer.permits(instance, call.task_type):
                self._update_handlers()  # a trial call: claim no other timers meanwhile
            try:
                answer = await self._post(instance, call)
            except CallFailed as error:
                self._balancer.failed(instance)
                if error.sent:
                    self._count("later")
                    raise _RetryInTurn(f"instance {error}") from error
                self._count("unreached")
                return _Refusal(f"instance {error}", sent=False)
            except CallRefused as error:
                self._balancer.failed(instance)
                self._count("unreached")
                return _Refusal(f"instance {error}", sent=False)
        return self._judge_answer(instance, call, answer)

    async def _post(self, instance: Instance, call: _Call) -> CallAnswer:
        """Send the call and return the answer. Of an answer that is too large, only the status
        counts.
        """
        try:
            return await self._caller.post(
                instance.address,
                call.body,
                headers=_JSON,
                message=message_id(f"{call.ctx.queue}/{call.ctx.id}"),
                secrets=secrets_of(call.app, self._options.secrets, owner=instance.owner),
            )
        except AnswerTooLarge as large:
            return CallAnswer(large.status, {}, b"")

    def _judge_answer(self, instance: Instance, call: _Call, answer: CallAnswer) -> _Refusal | None:
        advice = advice_among(answer)
        reason = f"instance {parse_target(instance.address)} answered {answer.status}"
        if advice.next is Next.ELSEWHERE:
            self._balancer.refused(instance, call.task_type)
            self._count("elsewhere")
            return _Refusal(reason, after=advice.after)
        if advice.next is Next.LATER:
            self._balancer.failed(instance, timer=call.ctx.id)
            self._count("later")
            raise _RetryInTurn(reason, after=advice.after or None)
        self._balancer.succeeded(instance, call.task_type)
        if advice.next is Next.NEVER:
            self._count("dead")
            raise Discard(reason)
        if advice.next is Next.ACCEPTED:
            self._count("handed_over")
            raise HandOver(_lease(answer.body))
        self._count("done")
        return None

    def _count(self, outcome: str) -> None:
        self._app.metrics.own(CALLS).labels(outcome).inc()

    def _breaker_changed(self, instance: Instance, task_type: str, pause: float) -> None:
        """Log and publish that a breaker opened or closed, and update the handlers."""
        where = str(parse_target(instance.address))
        about = {"app": instance.app, "instance": where, "task_type": task_type or "all"}
        if pause:
            self._log.emit(events.INSTANCE_AVOIDED, **about, avoided=pause)
        else:
            self._log.emit(events.INSTANCE_RECOVERED, **about)
        self._update_handlers()
        if self._instances is not None:
            publishing = self._publish_breaker(self._instances, instance, seconds(pause))
            detached("timers: breaker", publishing, log=self._log)

    async def _publish_breaker(
        self, instances: Instances, instance: Instance, pause: Duration
    ) -> None:
        if not pause and instance.id in self._balancer.open():
            return  # it is still avoided for another type
        with suppress(ServerError):  # breakers are published only for display
            await instances.tell_breaker(instance.id, self._name, pause)


class _RetryInTurn(Retry):
    """The timer is tried again before timers that were due later."""

    keep_turn = True


class _Call(msgspec.Struct, frozen=True):
    """The call for a timer that is due."""

    app: str
    task_type: str
    ctx: Context
    body: bytes


class _Refusal(msgspec.Struct, frozen=True):
    """Why an instance did not take a call that another one may take."""

    reason: str
    sent: bool = True
    """Whether anything was sent; otherwise the attempt does not count."""
    after: Duration = ZERO


def _call_body(key: TypeKey, payload: bytes, ctx: Context) -> dict[str, Any]:
    """Returns the body of the call."""
    packed = Packed.read(payload)
    return {
        "task_id": task_id_of(ctx.id, recorded=ctx.headers.get("handler") == RECORDED),
        "task_type": key.task_type,
        "app": key.app,
        "params": packed.params,
        "attempt": ctx.attempt,
        "delay_time": instant_ms("due", ctx.due_at or due_of(packed, ctx.submitted_at)),
        "token": ctx.token,
    }


class _HandedOver(msgspec.Struct, frozen=True):
    lease_s: Annotated[float, msgspec.Meta(ge=1, le=_LONGEST_HANDED_OVER)] = 60.0


def _lease(body: bytes) -> Duration:
    """Returns the lease that an answer of 202 asks for; HANDED_OVER if it can't be read."""
    try:
        return seconds(msgspec.json.decode(body, type=_HandedOver).lease_s)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return HANDED_OVER
