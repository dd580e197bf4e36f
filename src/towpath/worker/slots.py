"""Slots: how many jobs a worker runs at once, and which queue gets the next free one.

Weights are kept by strides: every slot a queue takes moves it on by 1/weight, and the queue that
is least far on comes first. A queue that had nothing to do does not save up turns.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heapreplace, nsmallest


class Share:
    """One queue's claim to the slots."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.weight, self.most, self.wake = 1, 1, wake
        self.held = 0
        """Slots it has: jobs that run, and those it has asked the server for."""
        self.turn = 0.0


class Slots:
    """The free slots of a worker, shared by its queues."""

    def __init__(self, total: int) -> None:
        self.total = self.free = total
        self.lost = 0
        self._turn = 0.0
        """How far the one was on who took a slot last."""
        self._wanting: dict[Share, None] = {}
        """Those that would take more. Not all: a worker may have a thousand idle queues."""

    def give(self, share: Share, *, weight: int, most: int | None) -> None:
        """Let *share* have that part in the slots from now on, whatever it holds already."""
        share.weight, share.most = weight, min(most or self.total, self.total)

    def want(self, share: Share) -> None:
        """*share* would take more: it is woken when there may be some."""
        self._wanting[share] = None

    def take(self, share: Share, at_most: int) -> int:
        """As many slots as *share* may have now, up to *at_most*; they are its own from now on."""
        wanted = min(at_most, self.free, share.most - share.held)
        rivals = [
            rival for rival in self._wanting if rival is not share and rival.held < rival.most
        ]
        # Who comes back from a pause begins where the others are.
        share.turn = max(share.turn, self._turn)
        taken = self._in_turn(share, rivals, wanted) if rivals else max(wanted, 0)
        if taken:
            self._turn = share.turn
        share.turn += taken / share.weight
        share.held += taken
        self.free -= taken
        return taken

    def give_back(self, share: Share, count: int) -> None:
        """These slots are free again."""
        share.held -= count
        self.free += count
        self._wake()

    def content(self, share: Share) -> None:
        """*share* has no use for more: what it was owed is for the others."""
        if share in self._wanting:
            del self._wanting[share]
            self._wake()

    def lose(self) -> None:
        """A slot is gone: something that can't be ended sits in it."""
        self.total -= 1
        self.free -= 1
        self.lost += 1

    def regain(self) -> None:
        """What sat in a lost slot has ended."""
        self.total += 1
        self.free += 1
        self.lost -= 1
        self._wake()

    def _wake(self) -> None:
        """Wake as many as there are slots for, in their turn: the others would find none. With a
        thousand queues that all begin to ask, waking each of them each time takes seconds.
        """
        if self._wanting and self.free > 0:
            able = [share for share in self._wanting if share.held < share.most]
            if len(able) > self.free:
                able = nsmallest(self.free, able, key=lambda share: share.turn)
            for share in able:
                share.wake()

    def _in_turn(self, share: Share, rivals: list[Share], wanted: int) -> int:
        """How many of the free slots fall to *share* if everybody who wants takes his turn."""
        # A tie goes to who asks: he is here.
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
