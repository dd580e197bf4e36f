"""Fetching: one queue's jobs for one worker, settled and claimed with one exchange in flight.

While an exchange is on its way, the jobs of the one before run: at most half of the slots are
asked for at once, so that neither the server nor this process waits for the other.

An exchange that is not answered soon keeps no slot from other queues: those that it asked for are
lent to them. It is repeated under its name, now with no wish to claim: so it brings what it had
claimed before its answer was lost, and nothing new. What comes then and finds no slot is given
back: no more jobs run than there are slots, and none waits here that could run elsewhere.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import deque
from collections.abc import Sequence
from random import uniform
from typing import TYPE_CHECKING, NamedTuple

from towpath.clock import ZERO, Duration, milliseconds, seconds, steady
from towpath.engine.batcher import LARGEST_BATCH, settling
from towpath.engine.inspect import Counts
from towpath.engine.model import Bury, Call, Complete, Exchanged, Lease, Release, Settlement
from towpath.engine.waiting import WorkWatch
from towpath.errors import EngineClosed, PayloadTooLarge, ServerError, ServerUnreachable
from towpath.ids import QueueName
from towpath.telemetry.metrics import QueueReading, Reading
from towpath.worker.attempt import Attempt, StopReason
from towpath.worker.report import Ended
from towpath.worker.settlements import keep_unhandled
from towpath.worker.slots import Share

if TYPE_CHECKING:
    from towpath.worker.execution import Execution

_LONGEST_WAIT = seconds(60)
"""The engine decides how often it looks before."""
_LONGEST_BACKOFF = 5.0
_COURTESY, _YIELDS_S = milliseconds(50), 30.0
"""A worker that gave back a job which it cannot run looks that much later than others for jobs that
fall due, for so many seconds: otherwise it would be the first to get the job again."""
LOOK_EVERY = 0.25
"""Seconds between two looks at exchanges that are not answered."""
_PATIENCE = 4
"""Looks that slots are kept for. Not seconds: a loop that is blocked reads no answer either."""


class UnansweredExchange(NamedTuple):
    """An exchange on its way: its name, what it settles, and when it was first sent."""

    call: Call
    settlements: Sequence[Settlement]
    sent_at: float


class Feeder:
    """Keeps a queue's share of the slots full, and settles what has ended."""

    def __init__(self, queue: QueueName, execution: Execution) -> None:
        self.queue, self._execution = queue, execution
        self._engine, self._slots = execution.engine, execution.slots
        self._wake = asyncio.Event()
        self._share = Share(self._wake.set)
        self._outbox: deque[Ended] = deque()
        self._sending: Sequence[Ended] = ()
        # Not by the worker's name: another may have had it, and its calls are remembered.
        self._channel, self._numbers = secrets.token_hex(8), itertools.count(1)
        self._asked = self._looks = 0
        """Slots that are kept for the exchange on its way, and how often it was looked at."""
        self._failures = 0
        """Claims that failed one after the other."""
        self._on_hold = self.stopping = False
        self._resting: asyncio.TimerHandle | None = None
        """No claim is sent before this is over."""
        self._hungry = True
        """There may be more to claim."""
        self._yields_until = 0.0
        self._called = False
        """Somebody has work, and called this feeder for it."""
        self._watch: WorkWatch | asyncio.Handle | None = None
        """What wakes this feeder when there may be work, or makes that."""
        self.asked_at = steady()
        """When the claim was sent that was answered last."""
        self.unanswered: UnansweredExchange | None = None
        """The exchange whose answer this loop has not taken yet. From any thread."""
        self.read_ahead: Call | None = None
        """The exchange whose answer the heartbeat has asked for in place of this loop."""

    @property
    def held(self) -> int:
        """Slots in use."""
        return self._share.held

    @property
    def idle(self) -> bool:
        """Nothing runs, nothing waits to be settled, and the server had nothing more."""
        return not (self._hungry or self._outbox or self._share.held)

    @property
    def unsettled(self) -> list[Ended]:
        """Those that have ended and whose settlement is not answered. From any thread."""
        return [*self._sending, *self._outbox]

    def hand_in(self, attempt: Attempt, settlement: Settlement | None) -> None:
        """An attempt has ended: its slot is free, its settlement goes with the next exchange."""
        if settlement is not None:
            self._outbox.append((attempt, settlement))
        self._slots.give_back(self._share, 1)
        self._wake.set()

    def claim(self, *, weight: int, most: int | None) -> None:
        """Claim with that part in the slots, also after `stop` while it runs."""
        self._slots.give(self._share, weight=weight, most=most)
        self.stopping = False
        self.look()

    def stop(self) -> None:
        """Claim no more; what runs is still settled, what a claim on its way brings given back."""
        self.stopping = True
        self._slots.content(self._share)
        self._look_no_more()
        self._wake.set()

    def hold(self) -> None:
        """Claim nothing until `go_on`."""
        self._on_hold = True

    def go_on(self) -> None:
        """Claim again."""
        self._on_hold = False
        self.look()

    def look(self) -> None:
        """There may be work."""
        self._hungry = True
        self._wake.set()

    def lend_if_late(self) -> None:
        """Give the slots to others that an exchange has kept for long without an answer."""
        self._looks += 1
        if self._looks > _PATIENCE:
            self._lend()

    async def run(self) -> None:
        """Until it was stopped and nothing is left to settle."""
        loop = asyncio.get_running_loop()
        try:
            while not self.stopping or self._outbox or self._share.held:
                self._wake.clear()
                batch = self._next_batch()
                self._asked = self._next_claim(batch)
                self._answer_call()
                if not batch and not self._asked:
                    if self.idle:
                        self._execution.queues.rested.set()
                    await self._wake.wait()
                    continue
                self._sending = batch
                # Done while the exchange is on its way, so that no handler waits for it.
                loop.call_soon(self._execution.look_for_traces)
                exchanged = await self._exchange(batch, self._asked)
                self._sending = ()
                if batch and exchanged is not None:
                    self._execution.settled(batch, exchanged.outcomes)
        finally:
            self._slots.content(self._share)
            self._answer_call()
            self._look_no_more()

    def _answer_call(self) -> None:
        """Who was called for work and can't take any lets another one do so."""
        if self._called and not self._asked:
            self._engine.hand_on(self.queue)
        self._called = False

    def _next_batch(self) -> list[Ended]:
        """What has ended, as far as one call carries it."""
        if not self._outbox:
            return []
        batch = next(settling(self._outbox, lambda ended: ended[1]), list[Ended]())
        for _ in batch:
            self._outbox.popleft()
        return batch

    def _next_claim(self, batch: list[Ended]) -> int:
        """How many to claim; the slots for them are taken."""
        waits = self._on_hold or self._resting is not None
        if waits or self.stopping or not (self._hungry or batch):
            self._slots.content(self._share)
            return 0
        most = -(-self._slots.total // 2)
        if batch and all(_is_unhandled(settlement) for _, settlement in batch):
            # Nothing runs here meanwhile that half of the slots would have to be left for.
            most, self._yields_until = self._slots.total, steady() + _YIELDS_S
        count = self._slots.take(self._share, min(most, LARGEST_BATCH))
        if self._hungry:
            self._slots.want(self._share)
        else:
            self._slots.content(self._share)
        if not count:
            # Who can't take a job must not be called for one.
            self._look_no_more()
        return count

    def _take(self, count: int, exchanged: Exchanged) -> None:
        """Start what came. *count* is what was asked for; by now the slots may be lent."""
        leases, kept, self._asked = exchanged.leases, self._asked, 0
        # If it only settled, or was late, whether there is more to claim is not known.
        # If there was more than one answer carries, there is more now. If the heartbeat asked for
        # the answer before the exchange itself was sent, nothing was claimed, whatever there is.
        self._hungry = (
            len(leases) == count
            or kept < count
            or exchanged.due_in == ZERO
            or (self.unanswered is not None and self.unanswered.call == self.read_ahead)
        )
        if len(leases) > kept:
            kept += self._slots.take(self._share, len(leases) - kept)
        for lease in leases[:kept]:
            self._execution.start(self, lease, exchanged.now_ms)
        for lease in leases[kept:]:
            self._decline(lease, exchanged.now_ms)
        if short := kept - len(leases[:kept]):
            self._slots.content(self._share)
            self._slots.give_back(self._share, short)
            self._look_out(exchanged.due_in)

    def _decline(self, lease: Lease, now_ms: int) -> None:
        """Its slot was lent to another queue: somebody else may have one."""
        attempt = Attempt(lease, None, since=self.asked_at, now_ms=now_ms)
        attempt.stop, attempt.over = StopReason.CROWDED, True
        self._outbox.append((attempt, keep_unhandled(Release(lease))))

    def _lend(self) -> None:
        lent, self._asked = self._asked, 0
        if lent:
            self._slots.content(self._share)
            self._slots.give_back(self._share, lent)

    # ── the exchange ─────────────────────────────────────────────────────────────────────

    async def _exchange(self, batch: list[Ended], count: int) -> Exchanged | None:
        """Settle and claim, and start what was claimed. Repeated under the same name until it is
        answered: one effect. None if it was refused and there is nothing to settle.
        """
        settlements = [settlement for _, settlement in batch]
        call, self.asked_at = Call(self._channel, next(self._numbers)), steady()
        failed = unknown = False
        while True:
            sent, self._looks, asked = steady(), 0, self._asked
            self.unanswered = UnansweredExchange(call, settlements, self.asked_at)
            try:
                exchanged = await self._engine.exchange(
                    self.queue, settlements, worker=self._execution.name,
                    lease=self._execution.lease,
                    count=asked, call=call,
                )  # fmt: skip
            except PayloadTooLarge as error:
                # The queue's limit was lowered since the result was checked. The name stays: if an
                # earlier try came through, its answer and its claims are the ones that count.
                settlements = [_fitting(settlement, error.limit) for settlement in settlements]
            except ServerError as error:
                self._lend()
                wait = self._failed(error, sent)
                failed, unknown = True, unknown or isinstance(error, ServerUnreachable)
                if not unknown and not batch:
                    self.unanswered = None
                    return None
                await asyncio.sleep(wait)
            else:
                # That it settled tells nothing of claims that were refused.
                if asked or unknown or (failed and not count):
                    self._failures = 0
                    self._rest_no_more()
                    self._execution.report_trouble(self.queue, None, sent)
                self._take(count, exchanged)
                self.unanswered = None
                return exchanged

    def _failed(self, error: ServerError, sent: float) -> float:
        """No claim is sent for a while, longer each time; how many seconds."""
        self._execution.report_trouble(self.queue, error, sent)
        wait = min(0.1 * 2 ** min(self._failures, 10), _LONGEST_BACKOFF)
        wait *= uniform(0.5, 1)  # noqa: S311 -- jitter
        self._failures += 1
        self._rest_no_more()
        self._resting = asyncio.get_running_loop().call_later(wait, self._rest_no_more)
        return wait

    def _rest_no_more(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
            self._wake.set()

    # ── waiting for work ─────────────────────────────────────────────────────────────────

    def _look_out(self, due_in: Duration | None) -> None:
        """Be woken when there may be work, or something falls due.

        The handlers of this answer begin first: while one of them blocks the loop, wake-ups go to
        other workers.
        """
        self._look_no_more()
        if not self.stopping:
            wait = _LONGEST_WAIT if due_in is None else min(due_in, _LONGEST_WAIT)
            if due_in and steady() < self._yields_until:
                wait += _COURTESY
            loop = asyncio.get_running_loop()
            self._watch = loop.call_soon(self._watch_for, wait, steady())

    def _watch_for(self, wait: Duration, since: float) -> None:
        self._watch = self._engine.watch_for_work(self.queue, self._woken, within=wait, since=since)

    def _look_no_more(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _woken(self, was_called: bool) -> None:  # noqa: FBT001 -- a callback
        self._watch, self._called = None, was_called
        self.look()


def _is_unhandled(settlement: Settlement) -> bool:
    return isinstance(settlement, Release) and bool(settlement.unhandled)


def _fitting(settlement: Settlement, limit: int) -> Settlement:
    if isinstance(settlement, Complete) and len(settlement.result) > limit:
        reason = f"ResultTooLarge: {len(settlement.result)} bytes, at most {limit} are kept"
        return Bury(settlement.lease, reason)
    return settlement


_WITHIN = 2.0


class Readings:
    """Answers a scrape, from the scraper's own thread."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def close(self) -> None:
        """The worker ends: there is nothing to read any more."""
        self._closed = True

    def read(self) -> Reading:
        """How everything stands. Raises TowpathError, TimeoutError."""
        if self._closed:
            raise EngineClosed("the worker has ended")
        asked = asyncio.run_coroutine_threadsafe(self._read(), self._loop)
        return asked.result(_WITHIN)

    async def _read(self) -> Reading:
        slots = self._execution.slots
        return Reading(
            queues=[await self._queue(feeder) for feeder in self._execution.queues.feeders],
            slots={"busy": slots.total - slots.free, "free": slots.free, "lost": slots.lost},
        )

    async def _queue(self, feeder: Feeder) -> QueueReading:
        counts = await self._execution.engine.inspect.counts(feeder.queue)
        return queue_reading(feeder.queue, counts, leases=feeder.held)


def queue_reading(queue: str, counts: Counts, *, leases: int = 0) -> QueueReading:
    """How a queue stands whose jobs were counted just now."""
    return QueueReading(
        queue=queue,
        depth={
            "ready": counts.ready,
            "delayed": counts.delayed,
            "waiting": counts.waiting,
            "leased": counts.leased,
            "dead": counts.dead,
        },
        oldest=counts.oldest.total_seconds() if counts.oldest else 0.0,
        leases=leases,
    )
