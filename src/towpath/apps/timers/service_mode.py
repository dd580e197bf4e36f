"""Service mode: instances register and leave, and settle timers that were handed over to them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from towpath.apps.owners import ALL, Access
from towpath.apps.timers.balancer import BreakerState
from towpath.apps.timers.errors import InstanceNotFound, TimerNotFound
from towpath.apps.timers.instances import (
    HEARTBEAT,
    MOST_WEIGHT,
    Instance,
    Instances,
    instance_id,
)
from towpath.apps.timers.log import Firing, FiringLog, FiringOutcome, firing_of
from towpath.apps.timers.model import LONGEST_NAME, RECORDED, TypeKey
from towpath.apps.timers.options import TimersOptions
from towpath.apps.timers.types import Types, queue_of
from towpath.calls.errors import CallRefused
from towpath.calls.guard import Guard
from towpath.calls.signature import derive_secret
from towpath.clock import Duration, instant_ms, wall_ms
from towpath.engine.check import integer
from towpath.engine.engine import Engine
from towpath.engine.leases import lease_by_token
from towpath.engine.model import (
    Bury,
    Complete,
    Fail,
    JobInfo,
    JobRef,
    Lease,
    Release,
    Settlement,
    job_ref,
)
from towpath.engine.states import State
from towpath.errors import InvalidOption, JobNotFound, LeaseLost, QueueError, TowpathError
from towpath.ids import text_name
from towpath.ledger.errors import RecordNotFound
from towpath.worker.settlements import with_next_try

if TYPE_CHECKING:
    from towpath.ledger.records.jobs import Jobs
    from towpath.ledger.records.record import Record

_WORKER = "instance"
"""The worker's name in leases that are known only by their fencing token."""


@lru_cache(maxsize=4096)
def secrets_of(app: str, secrets: tuple[str, ...], *, owner: str = "") -> tuple[str, ...]:
    """Returns the secrets that sign calls to the instances of *app* and *owner*, derived from the
    server's *secrets*, in the same order.

    They are not stored. From the secrets of one app and owner, those of another can't be computed.
    """
    whose = f"timers {app}\0{owner}" if owner else f"timers {app}"
    return tuple(derive_secret(secret, whose) for secret in secrets)


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an instance that registers."""

    instance_id: str
    secret: str
    heartbeat: Duration

    def __repr__(self) -> str:
        return f"Registered({self.instance_id})"


class InstanceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An instance as it is at one moment."""

    instance: Instance
    alive: bool
    breaker: BreakerState
    avoided_by: tuple[str, ...]
    """The schedulers that avoid it now."""


class ServiceMode:
    """Instances, and the timers handed over to them. *jobs* are the ledger's jobs, for recorded
    timers; None = there is no ledger.
    """

    def __init__(
        self,
        engine: Engine,
        options: TimersOptions,
        types: Types,
        *,
        jobs: Jobs | None = None,
        log: FiringLog,
    ) -> None:
        self._engine, self._options, self._types, self._log = engine, options, types, log
        self._instances, self._jobs = Instances(engine, options), jobs
        self._guard = Guard(options.allow)

    # ── instances ────────────────────────────────────────────────────────────────────────

    async def register(
        self,
        app: str,
        address: str,
        task_types: Sequence[str],
        *,
        weight: int = 1,
        access: Access = ALL,
    ) -> Registered:
        """Register an instance of *app*; it is called for these types within a second.

        It replaces an instance at the same address of the same owner. Raises InvalidName;
        InvalidOption for an address that may not be called; TimerTypeTaken, TimerTypesFull,
        TooManyInstances.
        """
        text_name("app", app, longest=LONGEST_NAME)
        integer("weight", weight, 1, MOST_WEIGHT)
        if not self._options.secrets:
            rule = "the server has no secret for signing calls; set calls.secrets"
            raise InvalidOption("calls.secrets", "none", rule=rule)
        try:
            self._guard.target(address)
        except CallRefused as error:
            raise InvalidOption("address", "…", rule=error.reason) from error
        owner = access.owner
        before = await self.at(app, address, access)
        instance = await self._instances.register(
            app, address, task_types, weight=weight, owner=owner
        )
        try:
            await self._types.serve(app, instance.types, who=instance.id)
        except QueueError:
            await self._undo(instance, before)
            raise
        if before is not None and (dropped := set(before.types) - set(instance.types)):
            await self._types.leave(app, sorted(dropped), who=instance.id)
        return Registered(
            instance_id=instance.id,
            secret=secrets_of(app, self._options.secrets, owner=owner)[0],
            heartbeat=HEARTBEAT,
        )

    async def _undo(self, instance: Instance, before: Instance | None) -> None:
        """Restore the state before a registration that was refused."""
        if before is None:
            await self._instances.leave(instance.app, instance.id, owner=instance.owner)
        else:
            its = before.app, before.address, before.types
            await self._instances.register(*its, weight=before.weight, owner=before.owner)

    async def at(self, app: str, address: str, access: Access) -> Instance | None:
        """Returns the instance that a registration of this address would replace, or None."""
        return await self._instances.find(app, instance_id(app, address, access.owner))

    async def beat(self, instance: Instance) -> None:
        """Keep *instance* alive for another 30 seconds. Raises InstanceNotFound, TimerTypeTaken."""
        await self._instances.beat(instance.app, instance.id, owner=instance.owner)
        await self._types.serve(instance.app, instance.types, who=instance.id)

    async def leave(self, instance: Instance) -> None:
        """Delete *instance*: it gets no more calls, but running calls may end. Raises
        InstanceNotFound.
        """
        await self._instances.leave(instance.app, instance.id, owner=instance.owner)
        await self._types.leave(instance.app, instance.types, who=instance.id)

    async def get(self, app: str, id: str, access: Access = ALL) -> Instance:
        """Returns an instance. Raises InstanceNotFound if it is missing, or has another owner."""
        found = await self._instances.find(app, id)
        if found is None or not access.owns(found.owner):
            raise InstanceNotFound(app, id)
        return found

    async def all(self, app: str | None = None, access: Access = ALL) -> list[InstanceInfo]:
        """Returns the instances of *app*, or of all apps, sorted by app and address. Dead instances
        are included for ten minutes.
        """
        instances = self._instances
        roster, avoided = await instances.roster(), await instances.breakers()
        return [
            InstanceInfo(
                instance=instance,
                alive=roster.is_alive(instance),
                breaker=BreakerState.OPEN if instance.id in avoided else BreakerState.CLOSED,
                avoided_by=tuple(avoided.get(instance.id, ())),
            )
            for instance in sorted(
                roster.all(), key=lambda instance: (instance.app, instance.address)
            )
            if (app is None or instance.app == app) and access.owns(instance.owner)
        ]

    async def are_all_avoided(self, app: str, task_type: str) -> bool:
        """Whether there are live instances for a type, and all of them are avoided."""
        found = [
            info for info in await self.all(app) if info.alive and task_type in info.instance.types
        ]
        return bool(found) and all(info.breaker is BreakerState.OPEN for info in found)

    # ── timers that were handed over ─────────────────────────────────────────────────────

    # Fencing tokens can be guessed. So a caller must own the timer, or have an instance that serves
    # its type.

    async def complete(
        self, key: TypeKey, task_id: str, token: int, *, access: Access = ALL
    ) -> State:
        """Complete a timer under its fencing token. Raises TimerNotFound; LeaseLost if the token is
        no longer valid.
        """
        held = await self._find_held(key, task_id, token, access)
        return await self._settle(held, Complete(held.lease))

    async def fail(
        self, key: TypeKey, task_id: str, token: int, reason: str, *, access: Access = ALL
    ) -> State:
        """Fail the attempt: another one follows, or the timer is dead. Raises as `complete`."""
        held = await self._find_held(key, task_id, token, access)
        # Decided here as in a worker, because the record counts the attempts of a recorded timer,
        # not Redis.
        options = await self._engine.queues.known_options(held.lease.queue)
        settlement = with_next_try(
            Fail(held.lease, reason, keep_turn=True),
            held.lease.retry or options.retry,
            attempt=held.attempt,
            most=held.max_attempts or options.attempts_of(held.lease.lane),
        )
        return await self._settle(held, settlement)

    async def renew(
        self, key: TypeKey, task_id: str, token: int, lease: Duration, *, access: Access = ALL
    ) -> Lease:
        """Extend the lease to *lease* from now. Raises what `complete` does."""
        held = await self._find_held(key, task_id, token, access)
        return await self._engine.renew(held.lease, lease)

    async def _find_held(self, key: TypeKey, task_id: str, token: int, access: Access) -> _Held:
        """Returns a lease made from the fencing token, and the timer's job and record, if any."""
        ref = asked = job_ref(queue_of(key), task_id)
        try:
            job = await self._engine.inspect.job(ref)
        except JobNotFound:
            job = None
        record = None
        if job is None or job.headers.get("handler") == RECORDED:
            record = await self._record(ref)
            ref = job_ref(record.queue, record.job)
        timer = record or job
        if timer is not None and not access.may_use(timer.owner):
            await self._require_instance(asked, key, access)
        retry = job.retry if job is not None else None
        lease = lease_by_token(ref, token, worker=_WORKER, retry=retry)
        return _Held(key, task_id, lease, job, record)

    async def _require_instance(self, ref: JobRef, key: TypeKey, access: Access) -> None:
        """Raises TimerNotFound unless the caller has an instance that serves the type."""
        for info in await self.all(key.app, access):
            if key.task_type in info.instance.types:
                return
        raise TimerNotFound(ref)

    async def _record(self, ref: JobRef) -> Record:
        if self._jobs is None:
            raise TimerNotFound(ref)
        try:
            return await self._jobs.get(ref.queue, ref.id)
        except RecordNotFound as error:
            raise TimerNotFound(ref) from error

    async def _settle(self, held: _Held, settlement: Settlement) -> State:
        """Settle the lease, log it, and return the new state. For a recorded timer, the record
        decides first, then the lease is settled in Redis.
        """
        lease, record, was_done = held.lease, held.record, held.is_done
        if record is not None and self._jobs is not None:
            from towpath.ledger.records.recorder import LedgerRecorder  # noqa: PLC0415 -- an extra

            by_record = await LedgerRecorder(self._jobs).end(lease, settlement, cancelled=False)
            if by_record is None:
                now, state = record.fence, record.state
                raise LeaseLost(lease.job, held=lease.token, current=now, worker="", state=state)
            settlement = by_record
        [outcome] = await self._engine.settle([settlement])
        if isinstance(outcome, TowpathError) and record is None:
            raise outcome
        # If the record has the outcome, a refusal by Redis does not matter.
        state = outcome if isinstance(outcome, State) else _STATE_AFTER[type(settlement)]
        reason = settlement.reason if isinstance(settlement, Fail | Bury) else None
        if not was_done:  # a repeat: whoever completed the timer first has logged it
            self._log.add(held.key, [held.firing(state, reason)])
        return state


class _Held(NamedTuple):
    """A timer that was handed over to an instance."""

    key: TypeKey
    task_id: str
    lease: Lease
    job: JobInfo | None
    record: Record | None

    @property
    def is_done(self) -> bool:
        """Whether the timer was done already when this was read."""
        if self.record is not None:
            return self.record.state == "completed"
        return self.job is not None and self.job.state is State.DONE

    @property
    def attempt(self) -> int:
        """The number of the attempt."""
        timer = self.record or self.job
        return max(timer.attempts, 1) if timer else 1

    @property
    def max_attempts(self) -> int | None:
        """The timer's own limit of attempts, if it has one."""
        timer = self.record or self.job
        return timer.max_attempts if timer else None

    def firing(self, state: State, reason: str | None) -> Firing:
        """Returns its log entry."""
        now_ms = wall_ms()
        began = self.job.claimed_at if self.job else None
        timer = self.record or self.job
        due = timer.due_at if timer else None
        if due is None and self.job is not None:
            due = self.job.submitted_at
        started_ms = now_ms if began is None else instant_ms("started_at", began)
        return firing_of(
            self.task_id,
            _OUTCOMES.get(state, FiringOutcome.FAILED),
            due_ms=started_ms if due is None else instant_ms("due", due),
            started_ms=started_ms,
            ran=max(now_ms - started_ms, 0) / 1000,
            attempt=self.attempt,
            worker=_WORKER,
            reason=reason,
            owner=(timer.owner or "") if timer else "",
        )


_STATE_AFTER: dict[type, State] = {
    Complete: State.DONE,
    Bury: State.DEAD,
    Fail: State.DELAYED,
    Release: State.CANCELLED,
}
_OUTCOMES = {State.DONE: FiringOutcome.DONE, State.DEAD: FiringOutcome.DEAD}
