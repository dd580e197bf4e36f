"""Which instance is called: one that is alive and has not failed lately, by weight and load.

Breakers are local to this process. Another scheduler may reach an instance that this one can't, and
reading shared breakers before each call would cost more than the calls that fail.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple

from towpath.apps.timers.instances import Instance
from towpath.backoff import Backoff
from towpath.clock import steady

THRESHOLD = 5
"""Failures in a row that open a breaker."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds that a breaker stays open; the pause doubles each time a trial call fails."""


class BreakerState(StrEnum):
    """Whether an instance is called."""

    CLOSED = "closed"
    HALF_OPEN = "half-open"
    """One trial call at a time is allowed."""
    OPEN = "open"


class Breaker:
    """Counts failures in a row, and stops calls for a pause after too many of them.

    After the pause, one trial call at a time is allowed: its success closes the breaker, its
    failure opens it for longer.
    """

    __slots__ = ("_backoff", "_blamed", "_failures", "_trying", "_until")

    def __init__(self) -> None:
        self._failures = 0
        self._blamed: set[str] = set()
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._until = 0.0
        self._trying = False

    def state(self, now: float) -> BreakerState:
        if not self.pause:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if now >= self._until else BreakerState.OPEN

    def permits(self, now: float) -> bool:
        """Whether a call may begin."""
        return not self.pause or (now >= self._until and not self._trying)

    @contextmanager
    def trying(self) -> Generator[None]:
        """Enclose a call. If it is a trial call, no other call may begin meanwhile."""
        is_trial = bool(self.pause)
        self._trying = self._trying or is_trial
        try:
            yield
        finally:
            if is_trial:
                self._trying = False

    def succeeded(self) -> bool:
        """Close the breaker after a call that worked. Returns whether it was open."""
        was_open = bool(self.pause)
        self._failures = 0
        self._backoff.reset()
        self._blamed.clear()
        return was_open

    def failed(self, now: float, timer: str = "") -> bool:
        """Count a failed call. Returns whether the breaker opened.

        With *timer*, the instance answered, and the timer may be at fault: only the first of
        several failures in a row of the same timer counts.
        """
        if self.pause:
            # Ignore calls that began before the breaker opened; only trial calls count.
            if now < self._until:
                return False
        elif timer:
            self._blamed.add(timer)
        else:
            self._failures += 1
        if not self.pause and self._failures + len(self._blamed) < THRESHOLD:
            return False
        self._until = now + self._backoff.next_pause()
        return True

    @property
    def pause(self) -> float:
        """Seconds of the current pause; 0 = closed."""
        return self._backoff.pause


class BreakerChange(NamedTuple):
    """A breaker that has opened or closed."""

    instance: Instance
    task_type: str
    """'' = all types."""
    pause: float
    """Seconds that it stays open; 0 = it has closed."""


class Balancer:
    """Chooses instances, by weight, load and the outcome of earlier calls.

    `succeeded`, `failed` and `refused` return the breakers that the outcome has opened or closed.
    """

    def __init__(self, *, clock: Callable[[], float] = steady) -> None:
        self._clock = clock
        self._breakers: dict[tuple[str, str], Breaker] = {}
        """By instance and type; type '' is for all calls to the instance."""
        self._calls: dict[str, int] = {}

    def choose(
        self, instances: Sequence[Instance], task_type: str, *, excluded: Collection[str] = ()
    ) -> Instance | None:
        """Returns the instance with the fewest calls under way for its weight; of several, a random
        one, by weight. None if no instance may be called.
        """
        fit = [
            instance
            for instance in instances
            if instance.id not in excluded and self.permits(instance, task_type)
        ]
        if not fit:
            return None
        load = {instance.id: self._calls.get(instance.id, 0) / instance.weight for instance in fit}
        least = min(load.values())
        idle = [instance for instance in fit if load[instance.id] == least]
        return random.choices(idle, [instance.weight for instance in idle])[0]  # noqa: S311 -- no secret

    def permits(self, instance: Instance, task_type: str) -> bool:
        """Whether a call of *instance* for *task_type* may begin."""
        now = self._clock()
        return all(breaker.permits(now) for breaker in self._of(instance, task_type))

    @contextmanager
    def calling(self, instance: Instance, task_type: str) -> Generator[None]:
        """Enclose a call of *instance*, to count it as under way."""
        one, typed = self._of(instance, task_type)
        self._calls[instance.id] = self._calls.get(instance.id, 0) + 1
        try:
            with one.trying(), typed.trying():
                yield
        finally:
            self._calls[instance.id] -= 1

    def succeeded(self, instance: Instance, task_type: str) -> list[BreakerChange]:
        """Close the breakers of an instance that took a call."""
        return [
            BreakerChange(instance, of, 0.0)
            for of in ("", task_type)
            if self._breaker(instance, of).succeeded()
        ]

    def failed(self, instance: Instance, *, timer: str = "") -> list[BreakerChange]:
        """Count a call that *instance* did not answer; with *timer*, one that it answered with a
        failure of that timer.
        """
        breaker = self._breaker(instance, "")
        opened = breaker.failed(self._clock(), timer)
        return [BreakerChange(instance, "", breaker.pause)] if opened else []

    def refused(self, instance: Instance, task_type: str) -> list[BreakerChange]:
        """Count a call that *instance* refused because of its type; it answers, so it is alive."""
        changes: list[BreakerChange] = []
        if self._breaker(instance, "").succeeded():
            changes.append(BreakerChange(instance, "", 0.0))
        breaker = self._breaker(instance, task_type)
        if breaker.failed(self._clock()):
            changes.append(BreakerChange(instance, task_type, breaker.pause))
        return changes

    def keep(self, ids: Collection[str]) -> None:
        """Forget all instances but *ids*."""
        self._breakers = {key: breaker for key, breaker in self._breakers.items() if key[0] in ids}
        self._calls = {id: n for id, n in self._calls.items() if n or id in ids}

    def open(self) -> set[str]:
        """Returns the ids of instances that have an open breaker, for one type or all."""
        now = self._clock()
        return {
            id
            for (id, _), breaker in self._breakers.items()
            if breaker.state(now) is not BreakerState.CLOSED
        }

    def _of(self, instance: Instance, task_type: str) -> tuple[Breaker, Breaker]:
        return self._breaker(instance, ""), self._breaker(instance, task_type)

    def _breaker(self, instance: Instance, task_type: str) -> Breaker:
        key = (instance.id, task_type)
        if (found := self._breakers.get(key)) is None:
            found = self._breakers[key] = Breaker()
        return found
