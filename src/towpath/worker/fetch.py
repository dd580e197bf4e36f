"""Fetching: one queue's jobs for one worker, settled and claimed with one exchange in flight.

While an exchange is on its way, the jobs of the one before run: at most half of the slots are
asked for at once, so that neither the server nor this process waits for the other.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from random import uniform

from towpath.clock import Duration, seconds, steady
from towpath.engine.batcher import LARGEST_BATCH
from towpath.engine.engine import Engine
from towpath.engine.model import Bury, Call, Complete, Exchanged, Lease, Outcome, Settlement
from towpath.errors import PayloadTooLarge, ServerError
from towpath.ids import QueueName
from towpath.worker.attempt import Attempt
from towpath.worker.report import Ended
from towpath.worker.slots import Slots

_LONGEST_WAIT = seconds(5)
_LONGEST_BACKOFF = 5.0

Settled = Callable[[Sequence[Ended], Sequence[Outcome]], None]


class Feeder:
    """Keeps a queue's share of the slots full, and hands in what has ended."""

    def __init__(
        self,
        queue: QueueName,
        engine: Engine,
        slots: Slots,
        *,
        worker: str,
        lease: Duration,
        weight: int,
        most: int | None,
        start: Callable[[Feeder, Lease], None],
        settled: Settled,
        trouble: Callable[[ServerError | None, float], None],
        rested: Callable[[], None],
    ) -> None:
        self.queue = queue
        self._engine, self._slots = engine, slots
        self._worker, self._lease = worker, lease
        self._start, self._settled = start, settled
        self._trouble, self._rested = trouble, rested
        self._wake = asyncio.Event()
        self._share = slots.share(weight=weight, most=most, wake=self._wake.set)
        self._outbox: deque[Ended] = deque()
        self._sending: Sequence[Ended] = ()
        # Not by the worker's name: another may have had it, and its calls are remembered.
        self._channel, self._numbers = secrets.token_hex(8), itertools.count(1)
        self._hungry = True
        """There may be more to claim."""
        self._looking: asyncio.Task[None] | None = None
        self._stopping = False
        self.asked_at = steady()
        """When the claim was sent that was answered last."""

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

    def stop(self) -> None:
        """Claim no more; what runs is still settled."""
        self._stopping = True
        self._wake.set()

    def look(self) -> None:
        """There may be work."""
        self._hungry = True
        self._wake.set()

    async def run(self) -> None:
        """Until it was stopped and nothing is left to settle."""
        try:
            while not self._finished():
                self._wake.clear()
                batch, count = self._next()
                if not batch and not count:
                    if self.idle:
                        self._rested()
                    await self._wake.wait()
                    continue
                self._sending = batch
                exchanged = await self._exchange(batch, count)
                self._sending = ()
                self._take(count, batch, exchanged)
        finally:
            self._share.wants = False
            self._look_no_more()

    def _finished(self) -> bool:
        return self._stopping and not self._outbox and not self._share.held

    def _next(self) -> tuple[list[Ended], int]:
        """What to settle and how many to claim."""
        batch = [self._outbox.popleft() for _ in range(min(len(self._outbox), LARGEST_BATCH))]
        if self._stopping or not (self._hungry or batch):
            return batch, 0
        half = -(-self._slots.total // 2)
        count = self._slots.take(self._share, min(half, LARGEST_BATCH))
        self._share.wants = self._hungry
        if not count:
            # Who can't take a job must not be called for one.
            self._look_no_more()
        return batch, count

    def _take(self, count: int, batch: list[Ended], exchanged: Exchanged) -> None:
        # If it only settled, whether there is more to claim is not known.
        self._hungry = len(exchanged.leases) == count
        for lease in exchanged.leases:
            self._start(self, lease)
        if short := count - len(exchanged.leases):
            self._slots.content(self._share)
            self._slots.give_back(self._share, short)
            self._look_out(exchanged.due_in)
        self._settled(batch, exchanged.outcomes)

    # ── the exchange ─────────────────────────────────────────────────────────────────────

    async def _exchange(self, batch: list[Ended], count: int) -> Exchanged:
        """Settle and claim. Repeated under the same name until it is answered: one effect."""
        settlements = [settlement for _, settlement in batch]
        call, self.asked_at = self._named(), steady()
        for tries in itertools.count():
            sent = steady()
            try:
                exchanged = await self._engine.exchange(
                    self.queue, settlements, worker=self._worker, lease=self._lease,
                    count=count, call=call,
                )  # fmt: skip
            except PayloadTooLarge as error:
                # The queue's limit was lowered since the result was checked.
                settlements = [_fitting(it, error.limit) for it in settlements]
                call = self._named()
            except ServerError as error:
                self._trouble(error, sent)
                self._slots.content(self._share)
                wait = min(0.1 * 2 ** min(tries, 10), _LONGEST_BACKOFF)
                await asyncio.sleep(wait * uniform(0.5, 1))  # noqa: S311 -- jitter
            else:
                self._trouble(None, sent)
                return exchanged
        raise AssertionError("unreachable")

    def _named(self) -> Call:
        return Call(self._channel, next(self._numbers))

    # ── waiting for work ─────────────────────────────────────────────────────────────────

    def _look_out(self, due_in: Duration | None) -> None:
        """Be woken when there may be work, or something falls due."""
        self._look_no_more()
        if not self._stopping:
            wait = _LONGEST_WAIT if due_in is None else min(due_in, _LONGEST_WAIT)
            self._looking = asyncio.create_task(self._until_work(wait))

    def _look_no_more(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def _until_work(self, wait: Duration) -> None:
        await self._engine.wait_for_work(self.queue, within=wait)
        self._looking = None
        self.look()


def _fitting(settlement: Settlement, limit: int) -> Settlement:
    if isinstance(settlement, Complete) and len(settlement.result) > limit:
        reason = f"ResultTooLarge: {len(settlement.result)} bytes, at most {limit} are kept"
        return Bury(settlement.lease, reason)
    return settlement
