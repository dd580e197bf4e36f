"""What code of the user's sees of an attempt.

A handler may leave notes meanwhile, and raise how its attempt ends; anything else that it raises is
a failure.
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
"""Of an app without a lifespan."""
Tell = Callable[[bytes], None]
"""Where a progress note goes."""


class Context(Generic[S]):
    """One attempt at one job. Ask for it with a parameter annotated `Context`, or `Context[State]`
    where the app has a `lifespan` that gives a `State`.
    """

    __slots__ = (
        "_lease", "_state", "_tell", "_time_limit", "_waited", "cancelled", "handler", "noted",
        "stopped",
    )  # fmt: skip

    def __init__(
        self,
        lease: Lease,
        *,
        handler: str,
        time_limit: Duration,
        tell: Tell,
        waited: float = 0.0,
        state: Any = NO_STATE,
    ) -> None:
        self._lease, self._time_limit, self._tell = lease, time_limit, tell
        self._waited, self._state = waited, state
        self.stopped: StopReason | None = None
        """Why it has to end before its handler does, once it has to."""
        self.handler = handler
        self.cancelled = False
        """Whether somebody wants this attempt to end: cancelled, lease lost, or out of time."""
        self.noted = False
        """Whether there was any progress."""

    @classmethod
    def here(cls, queue: str, *, handler: str) -> Self:
        """A Context for a handler that is called directly: no job, no lease, notes go nowhere."""
        job = JobRef(queue_name(queue), JobId("here"))
        now = wall_ms()
        lease = Lease(job, b"", Token(now * 1000), 1, "here", 0, now, now)
        return cls(lease, handler=handler, time_limit=days(36_500), tell=lambda _: None)

    @property
    def state(self) -> S:
        """What the app's `lifespan` gave: the same object for all attempts of this process."""
        if self._state is NO_STATE:
            raise HandlerInvalid(self.handler, rule="uses ctx.state, but its app has no lifespan=")
        return cast("S", self._state)

    @property
    def job(self) -> JobRef:
        """The job: its queue and its id."""
        return self._lease.job

    @property
    def id(self) -> JobId:
        """The job's id."""
        return self._lease.job.id

    @property
    def queue(self) -> QueueName:
        """The queue that the job is in."""
        return self._lease.job.queue

    @property
    def lane(self) -> LaneKey | None:
        """The job's lane, if it has one."""
        return self._lease.lane

    @property
    def priority(self) -> int:
        """0 to 100; higher runs first."""
        return self._lease.priority

    @property
    def attempt(self) -> int:
        """1 at the first delivery; releases do not count."""
        return self._lease.attempt

    @property
    def token(self) -> Token:
        """Grows with every delivery: hand it to what the work changes, and refuse lower ones."""
        return self._lease.token

    @property
    def worker(self) -> str:
        """The name of the worker that runs it."""
        return self._lease.worker

    @property
    def headers(self) -> Mapping[str, str]:
        """What travels beside the payload."""
        return self._lease.headers

    @property
    def submitted_at(self) -> datetime:
        """When it was submitted, by the server's clock."""
        return self._lease.submitted_at

    @property
    def due_at(self) -> datetime | None:
        """When it was due, if it was delayed."""
        return self._lease.due_at

    @property
    def claimed_at(self) -> datetime:
        """By the server's clock."""
        return self._lease.claimed_at

    @property
    def deadline(self) -> datetime:
        """When the handler's time limit ends this attempt, by the server's clock.

        Counted from the handler's start, which may be later than the claim.
        """
        return self.claimed_at + seconds(self._waited) + self._time_limit

    def progress(self, note: Any) -> None:
        """Leave a note on the job, in place of the last one: bytes, or any JSON value.

        Returns at once, also in a thread or a process; the note is on the server a moment later.
        Raises PayloadInvalid, PayloadTooLarge.
        """
        if not isinstance(note, bytes):
            try:
                note = msgspec.json.encode(note)
            except (TypeError, ValueError, RecursionError) as error:
                raise PayloadInvalid("progress", str(error)) from error
        self.noted = True
        self._tell(check_size("progress", note, LARGEST_NOTE))


class AttemptEnd(Exception):
    """How the attempt ends, in the handler's own words."""


class Retry(AttemptEnd):
    """Try again after *after*; without it the retry policy decides. The attempt counts.

    `raise Retry("the printer is out of paper", after=minutes(5))`
    """

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
    """No other attempt can help: the job is dead, with this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = str(reason or "")


class Snooze(AttemptEnd):
    """Not now: come back at this time, or after this long. The attempt does not count."""

    def __init__(self, until: datetime | DurationLike) -> None:
        super().__init__(f"until {until}")
        if isinstance(until, datetime):
            instant_ms("until", until)
            self.until: datetime | Duration = until
        else:
            self.until = duration("until", until)


class HandOver(AttemptEnd):
    """Somebody else ends this attempt: whoever has `ctx.token`, within *lease*.

    The lease is renewed for that long and the slot is free; nothing is settled, and nothing renews
    the lease from here. The one with the token completes, fails or renews it (`lease_by_token`);
    if nobody does in time, the attempt has failed and the job comes back.
    """

    def __init__(self, lease: DurationLike) -> None:
        super().__init__(f"for {lease}")
        self.lease = duration("lease", lease, least=milliseconds(1))


class AttemptStopped(Exception):
    """The attempt had to end before its handler: *why* is its time limit, somebody who cancelled
    the job, a lost lease, or the worker's end.
    """

    def __init__(self, why: StopReason) -> None:
        super().__init__(f"the attempt was stopped: {why}")
        self.why = why
