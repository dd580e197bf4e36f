"""What handlers and middleware see of an attempt: `Context`, and exceptions that end the attempt.

A handler may store progress notes. To decide how its attempt ends, it raises an `AttemptEnd`; any
other exception is a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Self, cast

import msgspec

from towpath.clock import (
    Duration,
    DurationLike,
    days,
    duration,
    instant_ms,
    milliseconds,
    seconds,
    wall_ms,
)
from towpath.engine.check import LARGEST_NOTE, check_size
from towpath.engine.model import JobRef, Lease
from towpath.errors import HandlerInvalid, PayloadInvalid
from towpath.ids import JobId, LaneKey, QueueName, Token, queue_name

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from towpath.worker.attempt import StopReason

    S = TypeVar("S", default=Any)
else:
    from typing import TypeVar

    S = TypeVar("S")

NO_STATE: Any = object()
"""The state if the app has no lifespan."""
SendNote = Callable[[bytes], None]
"""Sends a progress note."""


def _drop_note(note: bytes) -> None:
    """Drop *note*."""


class Context(Generic[S]):
    """One attempt at one job. A handler gets it by a parameter annotated `Context`; annotate
    `Context[State]` if the app's `lifespan` yields a `State`.
    """

    __slots__ = (
        "_cancelled",
        "_lease",
        "_send_note",
        "_state",
        "_time_limit",
        "_waited",
        "called",
        "handler",
        "noted",
        "noticed",
        "stopped",
    )  # fmt: skip

    def __init__(
        self,
        lease: Lease,
        *,
        handler: str,
        time_limit: Duration,
        send_note: SendNote,
        waited: float = 0.0,
        state: Any = NO_STATE,
    ) -> None:
        self._lease, self._time_limit, self._send_note = lease, time_limit, send_note
        self._waited, self._state = waited, state
        self.stopped: StopReason | None = None
        """Why the attempt has to end before its handler does; None = it may go on."""
        self.handler = handler
        self.called = ""
        """Internal: the address that the handler called last, for the `on_settled` of the handler;
        '' = none."""
        self._cancelled = False
        self.noticed = False
        """Whether `cancelled` was read since the attempt has to end."""
        self.noted = False
        """Whether the handler has stored a progress note."""

    @classmethod
    def here(cls, queue: str, *, handler: str) -> Self:
        """A Context for a direct call of a handler: without job and lease, and with notes that go
        nowhere.
        """
        job = JobRef(queue_name(queue), JobId("here"))
        now = wall_ms()
        lease = Lease(job, b"", Token(now * 1000), 1, "here", 0, now, now)
        return cls(lease, handler=handler, time_limit=days(36_500), send_note=_drop_note)

    def close(self) -> None:
        """Internal: the attempt has ended. Notes from now on are dropped."""
        self._send_note = _drop_note

    @property
    def cancelled(self) -> bool:
        """Whether the attempt has to end: the job was cancelled, the lease is lost, the time is
        over, or the worker stops. If the job was cancelled, a handler that sees this and returns
        has not completed it, whatever it returns: the job is cancelled.
        """
        if self._cancelled:
            self.noticed = True
        return self._cancelled

    @cancelled.setter
    def cancelled(self, value: bool) -> None:
        self._cancelled = value

    @property
    def state(self) -> S:
        """What the app's `lifespan` yielded: one object for all attempts in this process. Raises
        HandlerInvalid if the app has no lifespan.
        """
        if self._state is NO_STATE:
            raise HandlerInvalid(self.handler, rule="uses ctx.state, but its app has no lifespan=")
        return cast("S", self._state)

    @property
    def job(self) -> JobRef:
        """The job as the methods of `engine` take it. A job with a record may have another id there
        than `ctx.id` after it was retried, moved or replaced.
        """
        return self._lease.job

    @property
    def id(self) -> JobId:
        """The id that the job was submitted under. It stays the same for all attempts."""
        return self._lease.id

    @property
    def queue(self) -> QueueName:
        """The queue of the job."""
        return self._lease.job.queue

    @property
    def lane(self) -> LaneKey | None:
        """The lane of the job, if it has one."""
        return self._lease.lane

    @property
    def priority(self) -> int:
        """0 to 100; higher runs first."""
        return self._lease.priority

    @property
    def attempt(self) -> int:
        """Number of the attempt, from 1; releases do not count."""
        return self._lease.attempt

    @property
    def token(self) -> Token:
        """A number that rises with every lease of the job. Pass it to the systems that the handler
        changes, so that they can refuse changes with a lower one.
        """
        return self._lease.token

    @property
    def worker(self) -> str:
        """The name of the worker."""
        return self._lease.worker

    @property
    def headers(self) -> Mapping[str, str]:
        """Data beside the payload, such as a trace."""
        return self._lease.headers

    @property
    def submitted_at(self) -> datetime:
        """When the job was submitted, by Redis's clock."""
        return self._lease.submitted_at

    @property
    def due_at(self) -> datetime | None:
        """When the job was due, if it was delayed."""
        return self._lease.due_at

    @property
    def claimed_at(self) -> datetime:
        """When the job was claimed, by Redis's clock."""
        return self._lease.claimed_at

    @property
    def deadline(self) -> datetime:
        """When the handler's time limit ends this attempt, by Redis's clock.

        The limit counts from the start of the handler, which may be later than the claim.
        """
        return self.claimed_at + seconds(self._waited) + self._time_limit

    def progress(self, note: Any) -> None:
        """Store a progress note with the job, in place of the last one: bytes, or any JSON value.

        Returns at once, also in a thread or a process; the note is stored shortly after. Raises
        PayloadInvalid, PayloadTooLarge.
        """
        if not isinstance(note, bytes):
            try:
                note = msgspec.json.encode(note)
            except (TypeError, ValueError, RecursionError) as error:
                raise PayloadInvalid("progress", str(error)) from error
        self.noted = True
        self._send_note(check_size("progress", note, LARGEST_NOTE))


class AttemptEnd(Exception):
    """What a handler raises to say how its attempt ends."""


class Retry(AttemptEnd):
    """Raise it to fail the attempt and try again after *after*. Without *after*, the retry policy
    decides.

    `raise Retry("the printer is out of paper", after=minutes(5))`. The attempt counts: after the
    last one, the job is dead.
    """

    keep_turn = False
    """Whether the job comes back at the place that it had among the ready jobs, not behind them."""

    def __init__(
        self,
        reason: str = "the handler asked for another attempt",
        *,
        after: DurationLike | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = str(reason or "")
        self.after = None if after is None else duration("after", after)


class Discard(AttemptEnd):
    """Raise it if no other attempt can help: the job is dead now, with this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = str(reason or "")


class Snooze(AttemptEnd):
    """Raise it to run the job later: at a time, or after a duration. The attempt does not count."""

    def __init__(self, until: datetime | DurationLike) -> None:
        super().__init__(f"until {until}")
        if isinstance(until, datetime):
            instant_ms("until", until)
            self.until: datetime | Duration = until
        else:
            self.until = duration("until", until)


class HandOver(AttemptEnd):
    """Raise it if somebody else will end this attempt, with `ctx.token`, within *lease*.

    The worker renews the lease once, for that long, and frees the slot. Whoever has the token
    completes, fails or renews the attempt (`lease_by_token`). If nobody does in time, the attempt
    has failed and the job is delivered again.
    """

    def __init__(self, lease: DurationLike) -> None:
        super().__init__(f"for {lease}")
        self.lease = duration("lease", lease, least=milliseconds(1))


class AttemptStopped(Exception):
    """What middleware sees if an attempt was ended from outside. *why* says by what: the time
    limit, a cancelled job, a lost lease, or a worker that stops.
    """

    def __init__(self, why: StopReason) -> None:
        super().__init__(f"the attempt was stopped: {why}")
        self.why = why
