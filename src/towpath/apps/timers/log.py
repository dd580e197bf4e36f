"""The log of firings: which timer ran when, where, how late, and with what outcome.

Each type has a capped stream in Redis, bounded by age, entries and bytes. Firings are collected and
written a moment later: a process that is killed loses its last firings, but no timers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from towpath.apps.owners import ALL, Access
from towpath.apps.timers.measures import FIRED, LATE
from towpath.apps.timers.model import TypeKey
from towpath.apps.timers.options import TimersOptions
from towpath.apps.timers.types import SCRIPTS, queue_of
from towpath.clock import duration_ms, instant, instant_ms, seconds
from towpath.engine.check import integer
from towpath.engine.engine import Engine
from towpath.engine.space import SpaceRecord
from towpath.errors import InvalidOption, ServerError
from towpath.supervise import Background, LoopLock

if TYPE_CHECKING:
    from towpath.telemetry.metrics import Metrics

LARGEST_PAGE = 1000
_GATHERED_S = 0.2
_BATCH = 200
_LAST = seconds(2)
"""How long `close` waits for a write that is under way."""
_WAITING_MOST = 10_000
"""Maximum number of firings that wait to be written. Beyond it, all firings of the type that
waits longest are dropped."""
_LONGEST_REASON = 200
_LATEST = "+"


class FiringOutcome(StrEnum):
    """How an attempt ended."""

    DONE = "done"
    FAILED = "failed"
    """Another attempt follows."""
    DEAD = "dead"
    CANCELLED = "cancelled"
    LOST = "lost"
    """Its lease ended before it was settled: another attempt decides."""
    RELEASED = "released"
    """The timer was given back; the attempt does not count."""
    HANDED_OVER = "handed_over"
    """The called instance goes on, and settles the timer later with its fencing token."""


class Firing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt at a timer."""

    task_id: str
    outcome: FiringOutcome
    due: datetime
    started_at: datetime
    late: float
    """Seconds from the due time to the start."""
    ran: float = 0.0
    """Seconds from the start to the end."""
    attempt: int = 1
    worker: str = ""
    """The worker, or the instance that was called."""
    reason: str | None = None
    owner: str = ""
    """The owner of the timer."""


class FiringPage(msgspec.Struct, frozen=True):
    """Firings, the latest first; give *after* to get the next page. None = this was the last."""

    firings: list[Firing]
    after: str | None


class FiringLog:
    """The logs of all types. `add` takes no round trip: entries are written together, later."""

    def __init__(
        self,
        connect: Callable[[], Engine],
        options: TimersOptions,
        metrics: Callable[[], Metrics] | None = None,
    ) -> None:
        self._connect, self._options, self._metrics = connect, options, metrics
        self._age = duration_ms("log_age", options.log_age)
        self._waiting: dict[TypeKey, list[bytes]] = {}
        self._count = 0
        self._flushing = LoopLock()
        self._writing = Background("log of timers", self._write)

    def add(self, key: TypeKey, firings: Sequence[Firing]) -> None:
        """Log attempts at timers of one type. To be called in the engine's event loop."""
        if self._metrics is not None:
            queue, metrics = queue_of(key), self._metrics()
            late = metrics.own(LATE).labels(queue)
            fired = metrics.own(FIRED)
            for firing in firings:
                if firing.outcome is not FiringOutcome.HANDED_OVER:  # its end is observed instead
                    late.observe(max(firing.late, 0.0))
                fired.labels(queue, firing.outcome).inc()
        if self._options.log_entries:
            rows = self._waiting.setdefault(key, [])
            rows += [_packed(firing) for firing in firings]
            self._count += len(firings)
            self._give_up_oldest()
            self._writing.start()

    async def read(
        self,
        key: TypeKey,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        after: str | None = None,
        size: int = 100,
        access: Access = ALL,
    ) -> FiringPage:
        """Returns a page of a type's firings, latest first; *since* and *until* compare their ends.

        Firings of other owners are left out, so a page may have fewer than *size*.
        """
        size = integer("size", size, 1, LARGEST_PAGE)
        before = None if until is None else f"{instant_ms('until', until)}-0"
        if after is not None:
            if re.fullmatch(r"\d{1,15}-\d{1,15}", after) is None:
                raise InvalidOption(
                    "after", after, rule="must be the `after` value returned with the previous page"
                )
            before = after
        from_ms = 0 if since is None else instant_ms("since", since)
        if before is not None and not before.strip("0-"):
            return FiringPage([], None)  # Redis refuses a range that ends before its first id
        upto = _LATEST if before is None else f"({before}"
        rows = await self._record(key).read(
            "firings", since=from_ms, upto=upto, log_age=self._age, size=size
        )
        firings = [msgspec.json.decode(row, type=Firing) for _, row in rows]
        firings = [firing for firing in firings if access.owns(firing.owner)]
        return FiringPage(firings, rows[-1][0].decode() if len(rows) == size else None)

    async def delete(self, key: TypeKey) -> None:
        """Delete the log of a type."""
        await self._record(key).run("delete_log")

    async def flush(self) -> None:
        """Write all firings that wait. Raises ServerError."""
        async with self._flushing:
            await self._flush()

    async def _flush(self) -> None:
        while self._waiting:
            key, rows = next(iter(self._waiting.items()))
            some = rows[:_BATCH]
            await self._record(key).run(
                "append",
                entries=some,
                log_age=self._age,
                log_entries=self._options.log_entries,
                log_bytes=self._options.log_bytes,
                limit=_BATCH * 2,
            )
            del rows[: len(some)]
            if not rows:
                self._waiting.pop(key, None)
            self._count = sum(map(len, self._waiting.values()))

    async def close(self) -> None:
        """Write all firings that wait, unless Redis is away, and stop writing."""
        await self._writing.stop(grace=_LAST)
        with suppress(ServerError):
            await self.flush()

    async def _write(self) -> None:
        while self._waiting:
            await asyncio.sleep(_GATHERED_S)
            with suppress(ServerError):  # the engine logs it; they are written when Redis is back
                await self.flush()
        self._writing.retire()  # until `add` starts it again

    def _give_up_oldest(self) -> None:
        while self._count > _WAITING_MOST:
            key = next(iter(self._waiting))
            self._count -= len(self._waiting.pop(key))

    def _record(self, key: TypeKey) -> SpaceRecord:
        return self._connect().space("timers", SCRIPTS).at(f"log/{queue_of(key)}")


def _packed(firing: Firing) -> bytes:
    if firing.reason is not None and len(firing.reason) > _LONGEST_REASON:
        short = firing.reason[: _LONGEST_REASON - 1] + "…"
        firing = msgspec.structs.replace(firing, reason=short)
    return msgspec.json.encode(firing)


def firing_of(
    task_id: str,
    outcome: FiringOutcome,
    *,
    due_ms: int,
    started_ms: int,
    ran: float,
    attempt: int,
    worker: str,
    reason: str | None = None,
    owner: str = "",
) -> Firing:
    """Returns a firing, from times in milliseconds by Redis's clock."""
    return Firing(
        task_id=task_id,
        outcome=outcome,
        due=instant(due_ms),
        started_at=instant(started_ms),
        late=(started_ms - due_ms) / 1000,
        ran=round(ran, 6),
        attempt=attempt,
        worker=worker,
        reason=reason,
        owner=owner,
    )
