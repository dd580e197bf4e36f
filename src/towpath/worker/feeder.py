"""A worker's feeders: each settles and claims the jobs of one queue, with one exchange in flight.

While an exchange is on its way, the jobs of the previous one run: each exchange claims at most half
of the slots, so that neither Redis nor this process waits for the other.

If an exchange is not answered soon, the slots that it claims for are lent to other queues. It is
repeated under the same name with a count of 0: the answer then has the jobs that the first call
claimed, and no new ones. Jobs that arrive when all slots are taken are released at once, so that
another worker can run them.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from towpath.backoff import Backoff
from towpath.clock import ZERO, Duration, milliseconds, seconds, steady
from towpath.engine.batcher import LARGEST_BATCH, settlement_portions
from towpath.engine.model import Bury, Call, Complete, Exchanged, Lease, Release, Settlement
from towpath.engine.wakeups import WorkWatch
from towpath.errors import PayloadTooLarge, ServerError, ServerUnreachable
from towpath.ids import QueueName
from towpath.worker.attempt import Attempt, StopReason
from towpath.worker.report import Ended
from towpath.worker.settlements import keep_unhandled
from towpath.worker.slots import Share

if TYPE_CHECKING:
    from towpath.worker.execution import Execution

_LONGEST_WAIT = seconds(60)
"""Longest wait for work before the feeder claims again. The engine checks more often than that."""
_COURTESY, _YIELDS_S = milliseconds(50), 30.0
"""For `_YIELDS_S` seconds after it released a job that it cannot run, a worker claims due jobs
`_COURTESY` later than others. Otherwise it would be the first to get the job again."""
LOOK_EVERY = 0.25
"""Seconds between two checks of exchanges that are not answered."""
_PATIENCE = 4
"""Number of checks after which the slots of an unanswered exchange are lent. Not a time: a blocked
loop reads no answers, and makes no checks either."""


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
        # Not named after the worker: Redis may remember calls of an earlier worker of that name.
        self._channel, self._numbers = secrets.token_hex(8), itertools.count(1)
        self._asked = self._checks = 0
        """Slots kept for the exchange on its way, and how often it was checked."""
        self._backoff = Backoff(0.1, 5.0, jitter=0.5)
        """The pauses after claims that failed."""
        self._on_hold = self.stopping = False
        self._pause: asyncio.TimerHandle | None = None
        """The pause after a failed claim; None = claims may be sent."""
        self._may_have_more = True
        """Whether the queue may have more jobs to claim."""
        self._yields_until = 0.0
        self._was_called = False
        """Whether a wake-up meant for one waiter came to this feeder."""
        self._watch: WorkWatch | asyncio.Handle | None = None
        """Wakes this feeder when there may be work; a Handle = the watch is about to begin."""
        self.asked_at = steady()
        """When the current or last exchange was first sent."""
        self.unanswered: UnansweredExchange | None = None
        """The exchange whose answer is not processed yet. From any thread."""
        self.read_ahead: Call | None = None
        """The last exchange that the heartbeat repeated while this loop was blocked."""

    @property
    def held(self) -> int:
        """Slots in use."""
        return self._share.held

    @property
    def idle(self) -> bool:
        """Whether nothing runs, nothing waits to be settled, and the queue had no more jobs."""
        return not (self._may_have_more or self._outbox or self._share.held)

    @property
    def unsettled(self) -> list[Ended]:
        """Attempts that have ended and whose settlement is not answered. From any thread."""
        return [*self._sending, *self._outbox]

    def hand_in(self, attempt: Attempt, settlement: Settlement | None) -> None:
        """Free the slot of an attempt that has ended, and settle it with the next exchange."""
        if settlement is not None:
            self._outbox.append((attempt, settlement))
        self._slots.give_back(self._share, 1)
        self._wake.set()

    def claim(self, *, weight: int, most: int | None) -> None:
        """Claim with *weight* and at most *most* slots. Takes back a `stop`, until `run` ends."""
        self._slots.give(self._share, weight=weight, most=most)
        self.stopping = False
        self.claim_soon()

    def stop(self) -> None:
        """Claim no more. Running attempts are still settled; jobs that arrive now are released."""
        self.stopping = True
        self._slots.stop_wanting(self._share)
        self._stop_watch()
        self._wake.set()

    def hold(self) -> None:
        """Claim nothing until `go_on`."""
        self._on_hold = True

    def go_on(self) -> None:
        """Claim again."""
        self._on_hold = False
        self.claim_soon()

    def claim_soon(self) -> None:
        """Claim soon: there may be work."""
        self._may_have_more = True
        self._wake.set()

    def lend_if_late(self) -> None:
        """Lend the slots of an exchange to other queues if it has not been answered for long."""
        self._checks += 1
        if self._checks > _PATIENCE:
            self._lend()

    async def run(self) -> None:
        """Claim and settle, until `stop` was called and nothing is left to settle."""
        loop = asyncio.get_running_loop()
        try:
            while not self.stopping or self._outbox or self._share.held:
                self._wake.clear()
                batch = self._next_batch()
                self._asked = self._next_claim(batch)
                self._pass_wake_up_on()
                if not batch and not self._asked:
                    if self.idle:
                        self._execution.feeders.rested.set()
                    await self._wake.wait()
                    continue
                self._sending = batch
                # Done while the exchange is on its way, so that no handler waits for it.
                loop.call_soon(self._execution.check_tracing)
                exchanged = await self._exchange(batch, self._asked)
                self._sending = ()
                if batch and exchanged is not None:
                    self._execution.settled(batch, exchanged.outcomes)
        finally:
            self._slots.stop_wanting(self._share)
            self._pass_wake_up_on()
            self._stop_watch()

    def _pass_wake_up_on(self) -> None:
        """Pass a wake-up on to another waiter if this feeder can't claim now."""
        if self._was_called and not self._asked:
            self._engine.hand_on(self.queue)
        self._was_called = False

    def _next_batch(self) -> list[Ended]:
        """Take as many ended attempts from the outbox as one call carries."""
        if not self._outbox:
            return []
        batch = next(settlement_portions(self._outbox, lambda ended: ended[1]), list[Ended]())
        for _ in batch:
            self._outbox.popleft()
        return batch

    def _next_claim(self, batch: list[Ended]) -> int:
        """Take slots for the next claim. Returns how many jobs to claim."""
        waits = self._on_hold or self._pause is not None
        if waits or self.stopping or not (self._may_have_more or batch):
            self._slots.stop_wanting(self._share)
            return 0
        most = -(-self._slots.total // 2)
        if batch and all(_is_unhandled(settlement) for _, settlement in batch):
            # Jobs that are released at once need no slots, so the claim may use all of them.
            most, self._yields_until = self._slots.total, steady() + _YIELDS_S
        count = self._slots.take(self._share, min(most, LARGEST_BATCH))
        if self._may_have_more:
            self._slots.want(self._share)
        else:
            self._slots.stop_wanting(self._share)
        if not count:
            # Without free slots, wake-ups must go to other workers.
            self._stop_watch()
        return count

    def _start_jobs(self, count: int, exchanged: Exchanged) -> None:
        """Start the claimed jobs. *count* were asked for; their slots may be lent by now."""
        leases, kept, self._asked = exchanged.leases, self._asked, 0
        # Claim again if the answer does not say that the queue is empty: it has as many jobs as
        # were asked for (0 if the exchange only settled), slots were lent meanwhile, Redis says
        # that more are due, or the heartbeat's repeat, which claims nothing, came first.
        self._may_have_more = (
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
            self._slots.stop_wanting(self._share)
            self._slots.give_back(self._share, short)
            self._start_watch(exchanged.due_in)

    def _decline(self, lease: Lease, now_ms: int) -> None:
        """Release a job whose slot was lent to another queue, for another worker to run."""
        attempt = Attempt(lease, None, since=self.asked_at, now_ms=now_ms)
        attempt.stop, attempt.over = StopReason.CROWDED, True
        self._outbox.append((attempt, keep_unhandled(Release(lease))))

    def _lend(self) -> None:
        lent, self._asked = self._asked, 0
        if lent:
            self._slots.stop_wanting(self._share)
            self._slots.give_back(self._share, lent)

    # ── the exchange ─────────────────────────────────────────────────────────────────────

    async def _exchange(self, batch: list[Ended], count: int) -> Exchanged | None:
        """Settle *batch*, claim *count* jobs and start them. The call is repeated under the same
        name until it is answered, so it has one effect. Returns None if it was refused and there
        is nothing to settle.
        """
        settlements = [settlement for _, settlement in batch]
        call, self.asked_at = Call(self._channel, next(self._numbers)), steady()
        failed = unknown = False
        while True:
            sent, self._checks, asked = steady(), 0, self._asked
            self.unanswered = UnansweredExchange(call, settlements, self.asked_at)
            try:
                exchanged = await self._engine.exchange(
                    self.queue, settlements, worker=self._execution.name,
                    lease=self._execution.lease,
                    count=asked, call=call,
                )  # fmt: skip
            except PayloadTooLarge as error:
                # The queue's limit was lowered since the result was checked. The call keeps its
                # name: if an earlier try had an effect, its answer counts.
                settlements = [_fit_limit(settlement, error.limit) for settlement in settlements]
            except ServerError as error:
                self._lend()
                wait = self._back_off(error, sent)
                failed, unknown = True, unknown or isinstance(error, ServerUnreachable)
                if not unknown and not batch:
                    self.unanswered = None
                    return None
                await asyncio.sleep(wait)
            else:
                # An exchange that only settled does not show that claims work again.
                if asked or unknown or (failed and not count):
                    self._backoff.reset()
                    self._end_pause()
                    self._execution.report_trouble(self.queue, None, sent)
                self._start_jobs(count, exchanged)
                self.unanswered = None
                return exchanged

    def _back_off(self, error: ServerError, sent: float) -> float:
        """Stop claiming for a while, longer after each failure. Returns how many seconds."""
        self._execution.report_trouble(self.queue, error, sent)
        wait = self._backoff.next_pause()
        self._end_pause()
        self._pause = asyncio.get_running_loop().call_later(wait, self._end_pause)
        return wait

    def _end_pause(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
            self._wake.set()

    # ── waiting for work ─────────────────────────────────────────────────────────────────

    def _start_watch(self, due_in: Duration | None) -> None:
        """Wait for a wake-up, or until a job is due.

        The watch begins after the handlers of this answer have begun: while one of them blocks the
        loop, wake-ups go to other workers.
        """
        self._stop_watch()
        if not self.stopping:
            wait = _LONGEST_WAIT if due_in is None else min(due_in, _LONGEST_WAIT)
            if due_in and steady() < self._yields_until:
                wait += _COURTESY
            loop = asyncio.get_running_loop()
            self._watch = loop.call_soon(self._watch_for, wait, steady())

    def _watch_for(self, wait: Duration, since: float) -> None:
        self._watch = self._engine.watch_for_work(
            self.queue, self._on_wake_up, within=wait, since=since
        )

    def _stop_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _on_wake_up(self, was_called: bool) -> None:  # noqa: FBT001 -- a callback
        self._watch, self._was_called = None, was_called
        self.claim_soon()


def _is_unhandled(settlement: Settlement) -> bool:
    return isinstance(settlement, Release) and bool(settlement.unhandled)


def _fit_limit(settlement: Settlement, limit: int) -> Settlement:
    if isinstance(settlement, Complete) and len(settlement.result) > limit:
        reason = f"ResultTooLarge: {len(settlement.result)} bytes, at most {limit} are kept"
        return Bury(settlement.lease, reason)
    return settlement


class Feeders:
    """The feeders of a worker, one per queue that it serves; queues may be added and removed."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._feeders: dict[QueueName, Feeder] = {}
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._no_more = asyncio.Event()
        self.rested = asyncio.Event()
        """Set when a feeder may have become idle."""

    @property
    def all(self) -> list[Feeder]:
        """The feeders of all queues. From any thread."""
        return list(self._feeders.values())

    @property
    def unsettled(self) -> list[Ended]:
        """Attempts of all queues that have ended and are not settled yet. From any thread."""
        return [ended for feeder in self.all for ended in feeder.unsettled]

    @property
    def ending(self) -> bool:
        """Whether claiming has stopped for all queues, for good."""
        return self._no_more.is_set()

    def claim(self, queue: QueueName, *, weight: int, most: int | None) -> None:
        """Claim from *queue*, with *weight* and at most *most* slots from now on."""
        if self.ending:
            return
        feeder = self._feeders.get(queue)
        if feeder is None:
            feeder = self._feeders[queue] = Feeder(queue, self._execution)
            if self._group is not None:
                self._begin(self._group, feeder)
        feeder.claim(weight=weight, most=most)

    def stop(self, queue: QueueName) -> None:
        """Claim no more from *queue*. Its feeder ends when all its attempts are settled."""
        if queue in self._feeders:
            self._feeders[queue].stop()

    def hold(self, queue: QueueName) -> None:
        """Claim nothing from *queue* until `go_on`."""
        if queue in self._feeders:
            self._feeders[queue].hold()

    def go_on(self, queue: QueueName) -> None:
        if queue in self._feeders:
            self._feeders[queue].go_on()

    def claim_no_more(self) -> None:
        """Claim from no queue, for good."""
        self._no_more.set()
        self.rested.set()
        for feeder in self.all:
            feeder.stop()

    async def run(self, *, leave_when_empty: bool) -> None:
        """Keep every queue's share of the slots full, until `claim_no_more` is called and all
        attempts are settled.
        """
        async with asyncio.TaskGroup() as group:
            self._group = group
            for feeder in self.all:
                self._begin(group, feeder)
            lending = group.create_task(self._lend_slots())
            if leave_when_empty:
                self.rested.set()
                group.create_task(self._leave_when_empty())
            await self._no_more.wait()
            while self._tasks:
                await asyncio.wait(self._tasks)
            lending.cancel()

    def _begin(self, group: asyncio.TaskGroup, feeder: Feeder) -> None:
        task = group.create_task(self._feed(feeder))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _feed(self, feeder: Feeder) -> None:
        await feeder.run()
        # No await between the feeder's end and this line, so `claim` never finds an ended feeder.
        del self._feeders[feeder.queue]
        self.rested.set()
        self._execution.queue_left(feeder.queue)

    async def _lend_slots(self) -> None:
        """Lend the slots of exchanges that are not answered to other queues, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            for feeder in self._feeders.values():
                feeder.lend_if_late()

    async def _leave_when_empty(self) -> None:
        """Claim no more once all queues were looked at while nothing ran, and none had a job."""
        started = -1
        while not self.ending:
            await self.rested.wait()
            self.rested.clear()
            if not all(feeder.idle for feeder in self.all):
                continue
            if started == self._execution.started:
                self.claim_no_more()
            started = self._execution.started
            for feeder in self.all:
                feeder.claim_soon()
            if not self._feeders:
                self.rested.set()
