"""Invariants of the engine's answers that need no oracle: they follow from the answers alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from tests.model.values import (
    Exchanged,
    HeldLease,
    JobSpec,
    Options,
    PlacedJob,
    Refusal,
    Renewed,
    Settle,
    SubmittedJob,
)


@dataclass
class _Life:
    """One job of one id, as far as the answers tell."""

    new: JobSpec
    not_before: int
    delivered: int = 0
    released: int = 0
    retried: int = 0
    token: int = 0
    expires: int = 0
    """The end of the lease it is held under; 0 = nobody holds it."""
    counted_by: str = ""
    """The worker whose limit it counts towards."""


class AnswerHistory:
    """Every accepted change, in order."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._most_attempts = options.max_attempts or 20
        self._lives: dict[str, _Life] = {}
        self._submitted: Counter[str] = Counter()
        self._completed: defaultdict[str, set[int]] = defaultdict(set)
        self._last_token = 0

    def reconfigured(self, options: Options) -> None:
        self._options = options
        self._most_attempts = max(self._most_attempts, options.max_attempts or 20)

    def note(self, now: int, verb: str, asked: dict[str, Any], found: Any) -> None:
        """Adds an answer; fails if it contradicts the answers before it."""
        if isinstance(found, Refusal):
            return
        if isinstance(found, Exchanged):
            for settlement, outcome in zip(asked["settlements"], found.outcomes, strict=True):
                self._settled(now, settlement, outcome)
            self._delivered(now, found.leases)
        elif verb == "submit":
            for new, taken in zip(asked["jobs"], found, strict=True):
                self.submitted(now, new, taken)
        elif verb in ("set", "move"):
            self._set(now, asked.get("jobs", []), found)
            self._moved(now, asked.get("moves", {}), found)
        elif verb == "claim":
            self._delivered(now, found)
            self._fits(now, asked, found)
        elif verb == "retry":
            self._lives[asked["id"]].retried += 1
            self._lives[asked["id"]].not_before = 0
        elif "token" in asked:
            rest = tuple(value for name, value in asked.items() if name not in ("id", "token"))
            self._settled(now, Settle(verb, asked["id"], asked["token"], rest), found)

    def submitted(self, now: int, new: JobSpec, taken: Any) -> None:
        if isinstance(taken, SubmittedJob) and not taken.existed:
            self._begun(now, new)

    def _set(self, now: int, jobs: list[JobSpec], found: list[Any]) -> None:
        for new, placed in zip(jobs, found, strict=bool(jobs)):
            if isinstance(placed, PlacedJob):
                self._begun(now, new)

    def _moved(self, now: int, moves: dict[str, tuple[str, int]], found: list[Any]) -> None:
        for (id, (kind, ms)), state in zip(moves.items(), found, strict=bool(moves)):
            if not isinstance(state, Refusal):
                self._lives[id].not_before = max(now, ms if kind == "due" else now + ms)

    def _begun(self, now: int, new: JobSpec) -> None:
        self._submitted[new.id] += 1
        self._lives[new.id] = _Life(new, new.due or now + new.delay)

    def _settled(self, now: int, settlement: Settle, outcome: Any) -> None:
        if isinstance(outcome, Refusal) or settlement.verb == "progress":
            return
        life = self._lives[settlement.id]
        assert life.token == settlement.token, "a stale lease was accepted (I6)"
        if isinstance(outcome, Renewed):
            life.expires = outcome.expires
            return
        if settlement.verb == "complete":
            self._completed[settlement.id].add(settlement.token)
            most = self._submitted[settlement.id]
            assert len(self._completed[settlement.id]) <= most, "completed twice (I4)"
        life.released += settlement.verb == "release"
        life.expires = 0
        if outcome == "delayed":
            delay = settlement.rest[0]
            wait = delay if delay is not None else life.new.retry
            life.not_before = now + (self._options.retry if wait is None else wait)

    def _delivered(self, now: int, leases: list[HeldLease]) -> None:
        priorities = [lease.priority for lease in leases]
        assert priorities == sorted(priorities, reverse=True), "a lower priority came first (I10)"
        for lease in leases:
            life = self._lives[lease.id]
            assert lease.token > self._last_token, "a token did not grow (I5)"
            assert life.expires <= now, "leased twice at once (I7)"
            assert life.not_before <= now, "claimed before its time (I9)"
            assert not self._lane_mates(now, lease), "two of one lane in flight (I11)"
            life.delivered += 1
            attempts = life.new.max_attempts or self._most_attempts
            most = attempts * (1 + life.retried) + life.released
            assert life.delivered <= most, "delivered too often (I13)"
            life.token, life.expires, life.counted_by = lease.token, lease.expires, ""
            self._last_token = lease.token

    def _fits(self, now: int, asked: dict[str, Any], leases: list[HeldLease]) -> None:
        """Checks a claimed job: it has one of the selectors, and its worker holds no more than its
        limit.
        """
        most, named = asked.get("max_held"), asked.get("selectors")
        for lease in leases:
            self._lives[lease.id].counted_by = asked["worker"] if most else ""
            assert not named or lease.selector in named, "a selector that nobody asked for (K16)"
        held = [life for life in self._lives.values() if life.expires > now]
        mine = [life for life in held if life.counted_by == asked["worker"]]
        assert not (leases and most) or len(mine) <= most, "holds more than it may (K16)"

    def _lane_mates(self, now: int, lease: HeldLease) -> list[str]:
        return [
            id
            for id, life in self._lives.items()
            if id != lease.id and lease.lane is not None
            if life.new.lane == lease.lane and life.expires > now
        ]
