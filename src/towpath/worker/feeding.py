"""The feeders of a worker: one per queue that it serves; queues may be added and removed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from towpath.ids import QueueName
from towpath.worker.fetch import LOOK_EVERY, Feeder
from towpath.worker.report import Ended

if TYPE_CHECKING:
    from towpath.worker.execution import Execution


class Feeding:
    """Starts and stops the feeders of a worker's queues, and runs them until the worker ends."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._feeders: dict[QueueName, Feeder] = {}
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._no_more = asyncio.Event()
        self.rested = asyncio.Event()
        """Set when a feeder may have become idle."""

    @property
    def feeders(self) -> list[Feeder]:
        """The feeders of all queues. From any thread."""
        return list(self._feeders.values())

    @property
    def unsettled(self) -> list[Ended]:
        """Attempts of all queues that have ended and are not settled yet. From any thread."""
        return [ended for feeder in self.feeders for ended in feeder.unsettled]

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
        for feeder in self.feeders:
            feeder.stop()

    async def run(self, *, leave_when_empty: bool) -> None:
        """Keep every queue's share of the slots full, until `claim_no_more` is called and all
        attempts are settled.
        """
        async with asyncio.TaskGroup() as group:
            self._group = group
            for feeder in self.feeders:
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
            if not all(feeder.idle for feeder in self.feeders):
                continue
            if started == self._execution.started:
                self.claim_no_more()
            started = self._execution.started
            for feeder in self.feeders:
                feeder.look()
            if not self._feeders:
                self.rested.set()
