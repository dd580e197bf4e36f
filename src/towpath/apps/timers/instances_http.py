"""Service mode over HTTP: instances register, send heartbeats, leave, and settle their timers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import BeforeValidator, Field

from towpath.apps.timers.balancer import BreakerState
from towpath.apps.timers.errors import InstanceNotFound
from towpath.apps.timers.instances import MOST_TYPES, MOST_WEIGHT, Instance
from towpath.apps.timers.model import TypeKey
from towpath.apps.timers.service import TimerService
from towpath.apps.timers.service_mode import InstanceInfo
from towpath.apps.timers.types import queue_of
from towpath.clock import seconds
from towpath.engine.states import State
from towpath.errors import InvalidOption
from towpath.ledger.keys.key import KeyInfo, Scope
from towpath.web.audit import audited, not_audited
from towpath.web.auth import CanRead, CanWork, require
from towpath.web.bodies import BodyRoute
from towpath.web.dependencies import service
from towpath.web.fields import Answer, Body, LeaseSeconds, Token, decoded, example
from towpath.web.problems import documented

instances_router = APIRouter(
    prefix="/api/v1/apps/{app}/instances", tags=["timers"], route_class=BodyRoute
)
settle_router = APIRouter(
    prefix="/api/v1/timers/{task_type}/{task_id}", tags=["timers"], route_class=BodyRoute
)
TheTimers = Annotated[TimerService, Depends(service("timers"))]
Name = Annotated[str, Field(min_length=1, max_length=128)]
App = Annotated[Name, BeforeValidator(decoded), Path(examples=["shop"])]
InstanceId = Annotated[
    str, Path(min_length=32, max_length=32, pattern="^[0-9a-f]+$", examples=["0" * 32])
]
TaskType = Annotated[Name, BeforeValidator(decoded), Path(examples=["order.timeout"])]
TaskId = Annotated[
    str, Field(max_length=512), BeforeValidator(decoded), Path(examples=["order-17"])
]


# ── instances ────────────────────────────────────────────────────────────────────────────


class InstanceIn(Body):
    """An instance of an application: where to call it, and for which types."""

    model_config = example(address="http://10.0.0.7:8000/timers", task_types=["order.timeout"])

    address: Annotated[str, Field(min_length=1, max_length=2048)]
    """The URL to call: http or https. Private addresses must be allowed by the setting
    `timers.allow`."""
    task_types: Annotated[list[Name], Field(min_length=1, max_length=MOST_TYPES)]
    """The types of timers that it wants to be called for."""
    weight: Annotated[int, Field(ge=1, le=MOST_WEIGHT, strict=True)] = 1
    """Share of the calls: an instance of weight 2 gets twice as many as one of weight 1."""


class RegisteredOut(Answer):
    """What a registered instance needs to know."""

    instance_id: str
    """The id of the instance, for heartbeats."""
    secret: str
    """The secret that signs the calls (Standard Webhooks). The instances of an app that belong to
    one owner share it."""
    heartbeat_s: float
    """Seconds between heartbeats. An instance without a heartbeat for 30 s gets no calls."""


class InstanceOut(Answer):
    """An instance as it is now."""

    instance_id: str
    app: str
    address: str
    """The URL that is called, without its query."""
    task_types: list[str]
    weight: int
    alive: bool
    """Whether a heartbeat came within the last 30 seconds."""
    breaker: BreakerState
    """`open` while a scheduler avoids the instance because calls failed."""
    avoided_by: list[str]
    """Schedulers that avoid it now."""
    last_heartbeat: datetime

    @classmethod
    def of(cls, info: InstanceInfo) -> InstanceOut:
        its = info.instance
        return cls(
            instance_id=its.id,
            app=its.app,
            address=its.address.partition("?")[0],
            task_types=list(its.types),
            weight=its.weight,
            alive=info.alive,
            breaker=info.breaker,
            avoided_by=list(info.avoided_by),
            last_heartbeat=its.last_heartbeat,
        )


class InstancesOut(Answer):
    """The instances of an app."""

    instances: list[InstanceOut]


@instances_router.post(
    "",
    status_code=201,
    response_model=RegisteredOut,
    responses=documented(409),
)
@audited("address", "task_types", "weight", answer=("instance_id",))
async def register(app: App, body: InstanceIn, timers: TheTimers, key: CanWork) -> RegisteredOut:
    """Register an instance: it is called when timers of these types are due. The same address of
    the same owner again replaces it. Needs the scope `work` for the types, with and without the
    app, and for those that it replaces. 409 for a type that another app owns, 429 for too many
    instances; `limit` says whether of the app, of the owner or in total.
    """
    access = timers.access(key)
    _require_types(key, app, body.task_types)
    if (before := await timers.instances.at(app, body.address, access)) is not None:
        _require_types(key, app, before.types)
    registered = await timers.instances.register(
        app, body.address, body.task_types, weight=body.weight, access=access
    )
    return RegisteredOut(
        instance_id=registered.instance_id,
        secret=registered.secret,
        heartbeat_s=registered.heartbeat.total_seconds(),
    )


@instances_router.put("/{instance_id}/heartbeat", status_code=204, responses=documented(404, 409))
@instances_router.post("/{instance_id}/heartbeat", status_code=204, responses=documented(404, 409))
@not_audited("it changes nothing but the time of the last heartbeat")
async def heartbeat(app: App, instance_id: InstanceId, timers: TheTimers, key: CanWork) -> Response:
    """Send a heartbeat: the instance is alive for another 30 seconds. 404 if it has to register
    again."""
    await timers.instances.beat(await _require_instance(timers, app, instance_id, key))
    return Response(status_code=204)


@instances_router.delete("/{instance_id}", status_code=204, responses=documented(404))
@audited()
async def leave(app: App, instance_id: InstanceId, timers: TheTimers, key: CanWork) -> Response:
    """Deregister an instance: it gets no more calls. Running calls still count."""
    await timers.instances.leave(await _require_instance(timers, app, instance_id, key))
    return Response(status_code=204)


@instances_router.get("", response_model=InstancesOut, responses=documented())
async def instances(app: App, timers: TheTimers, key: CanRead) -> InstancesOut:
    """List the owner's instances of the app; dead ones stay listed for ten minutes."""
    found = await timers.instances.all(app, timers.access(key))
    return InstancesOut(
        instances=[InstanceOut.of(info) for info in found if _covers(key, info.instance)]
    )


def _require_types(key: KeyInfo, app: str, task_types: Iterable[str]) -> None:
    """403 unless *key* covers the types, with and without the app: an app that serves a type may
    become the owner of the type without an app.
    """
    for task_type in task_types:
        for of in (app, None):
            require(key, Scope.WORK, queue_of(TypeKey(task_type, of)))


def _covers(key: KeyInfo, instance: Instance) -> bool:
    return all(
        key.covers(queue_of(TypeKey(task_type, instance.app))) for task_type in instance.types
    )


async def _require_instance(timers: TimerService, app: str, id: str, key: KeyInfo) -> Instance:
    """Returns the instance if *key* covers it. Raises InstanceNotFound otherwise, and if there is
    none.
    """
    found = await timers.instances.get(app, id, timers.access(key))
    if not _covers(key, found):
        raise InstanceNotFound(app, id)
    return found


# ── timers that were handed over ─────────────────────────────────────────────────────────


class HandedOverIn(Body):
    """A timer whose call was answered with 202, so that the instance ends it later."""

    model_config = example(token=1794771968716192)

    token: Token
    app: Name | None = None
    """The app that the call named; or pass `?app=`."""


class FailedIn(HandedOverIn):
    """A failed attempt."""

    reason: Annotated[str, Field(min_length=1, max_length=1000)] = "the instance reported a failure"
    """Why it failed."""


class LongerIn(HandedOverIn):
    """How long to extend the lease."""

    lease_s: LeaseSeconds = 60.0
    """Seconds until the lease ends, from now."""


class SettledOut(Answer):
    """A timer whose attempt has ended."""

    task_id: str
    task_type: str
    state: State
    """The state of the timer after the attempt."""


class HeldTimerOut(Answer):
    """A timer whose lease was extended."""

    task_id: str
    task_type: str
    expires_at: datetime
    """When the attempt fails unless the lease is extended again."""
    cancel_requested: bool
    """Whether the timer was cancelled. If so, stop."""


class HandedOver(NamedTuple):
    """The timer that a path names."""

    task_type: str
    task_id: str
    app: str | None

    def key(self, key: KeyInfo, body: HandedOverIn) -> TypeKey:
        """Returns its type; 403 unless *key* covers it. Query and *body* may both name the app."""
        if self.app and body.app not in (None, self.app):
            raise InvalidOption("app", body.app, rule="must equal the one in the path")
        found = TypeKey(self.task_type, self.app or body.app)
        require(key, Scope.WORK, queue_of(found))
        return found


async def _timer_of_path(
    task_type: TaskType,
    task_id: TaskId,
    app: Annotated[str | None, Query(max_length=128, description="The app, if any.")] = None,
) -> HandedOver:
    return HandedOver(task_type, task_id, app)


TheHandedOver = Annotated[HandedOver, Depends(_timer_of_path)]


@settle_router.post("/complete", response_model=SettledOut, responses=documented(404, 409))
@audited("app", only_people=True)
async def complete(
    timer: TheHandedOver, body: HandedOverIn, timers: TheTimers, key: CanWork
) -> SettledOut:
    """Complete the timer. 409 if the token is no longer valid: another attempt has begun."""
    of = timer.key(key, body)
    access = timers.access(key)
    state = await timers.instances.complete(of, timer.task_id, body.token, access=access)
    return SettledOut(task_id=timer.task_id, task_type=timer.task_type, state=state)


@settle_router.post("/fail", response_model=SettledOut, responses=documented(404, 409))
@audited("app", only_people=True)
async def fail(timer: TheHandedOver, body: FailedIn, timers: TheTimers, key: CanWork) -> SettledOut:
    """Report a failed attempt: the timer is `delayed` until the next one, or `dead` after the
    last."""
    of = timer.key(key, body)
    state = await timers.instances.fail(
        of, timer.task_id, body.token, body.reason, access=timers.access(key)
    )
    return SettledOut(task_id=timer.task_id, task_type=timer.task_type, state=state)


@settle_router.post("/renew", response_model=HeldTimerOut, responses=documented(404, 409))
@audited("app", only_people=True)
async def renew(
    timer: TheHandedOver, body: LongerIn, timers: TheTimers, key: CanWork
) -> HeldTimerOut:
    """Extend the lease of the timer by `lease_s` seconds from now."""
    of = timer.key(key, body)
    lease = await timers.instances.renew(
        of, timer.task_id, body.token, seconds(body.lease_s), access=timers.access(key)
    )
    return HeldTimerOut(
        task_id=timer.task_id,
        task_type=timer.task_type,
        expires_at=lease.expires_at,
        cancel_requested=lease.cancel_requested,
    )
