"""Slots: how many jobs a worker runs at once, and which queue gets the next free one.

Weights work by stride scheduling: every slot that a queue takes adds 1/weight to its `turn`, and
the queue with the lowest `turn` comes first. A queue that was idle does not save up turns.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heapreplace, nsmallest


class Share:
    """One queue's share of the slots."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.weight, self.most, self.wake = 1, 1, wake
        self.held = 0
        """Slots that it holds: for running jobs, and for jobs that its exchange claims."""
        self.turn = 0.0


class Slots:
    """The free slots of a worker, shared by its queues."""

    def __init__(self, total: int) -> None:
        self.total = self.free = total
        self.lost = 0
        self._turn = 0.0
        """The `turn` of the share that took a slot last."""
        self._wanting: dict[Share, None] = {}
        """The shares that want more slots. A worker may have a thousand others that are idle."""

    def give(self, share: Share, *, weight: int, most: int | None) -> None:
        """Set weight and limit of *share*. It keeps the slots that it holds."""
        share.weight, share.most = weight, min(most or self.total, self.total)

    def want(self, share: Share) -> None:
        """*share* wants more slots: wake it when there may be some."""
        self._wanting[share] = None

    def take(self, share: Share, at_most: int) -> int:
        """Give *share* as many slots as it may have now, up to *at_most*. Returns how many."""
        wanted = min(at_most, self.free, share.most - share.held)
        rivals = [
            rival for rival in self._wanting if rival is not share and rival.held < rival.most
        ]
        # A share that was idle continues where the others are.
        share.turn = max(share.turn, self._turn)
        taken = self._in_turn(share, rivals, wanted) if rivals else max(wanted, 0)
        if taken:
            self._turn = share.turn
        share.turn += taken / share.weight
        share.held += taken
        self.free -= taken
        return taken

    def give_back(self, share: Share, count: int) -> None:
        """Free *count* slots of *share*."""
        share.held -= count
        self.free += count
        self._wake()

    def stop_wanting(self, share: Share) -> None:
        """*share* wants no more slots: its turns go to the others."""
        if share in self._wanting:
            del self._wanting[share]
            self._wake()

    def lose(self) -> None:
        """Remove a slot: an attempt that can't be ended keeps it."""
        self.total -= 1
        self.free -= 1
        self.lost += 1

    def regain(self) -> None:
        """Add a lost slot again: its attempt has ended after all."""
        self.total += 1
        self.free += 1
        self.lost -= 1
        self._wake()

    def _wake(self) -> None:
        """Wake as many shares as there are free slots, lowest turns first. Waking all of a thousand
        queues each time would take seconds.
        """
        if self._wanting and self.free > 0:
            able = [share for share in self._wanting if share.held < share.most]
            if len(able) > self.free:
                able = nsmallest(self.free, able, key=lambda share: share.turn)
            for share in able:
                share.wake()

    def _in_turn(self, share: Share, rivals: list[Share], wanted: int) -> int:
        """Returns how many free slots *share* gets if it and all *rivals* take turns."""
        # On a tie, the calling share wins.
        turns = [
            (contender.turn, contender is not share, n)
            for n, contender in enumerate([share, *rivals])
        ]
        room = [contender.most - contender.held for contender in [share, *rivals]]
        heapify(turns)
        mine = 0
        for _ in range(max(self.free, 0)):
            while turns and room[turns[0][2]] <= 0:
                heappop(turns)
            if mine == wanted or not turns:
                break
            turn, is_rival, n = turns[0]
            weight = rivals[n - 1].weight if is_rival else share.weight
            heapreplace(turns, (turn + 1 / weight, is_rival, n))
            room[n] -= 1
            mine += not is_rival
        return mine
