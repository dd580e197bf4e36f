"""The state machine: random programs, run by the engine on a real Redis and by the oracle."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.model import oracle_questions, plain_values, programs
from tests.model.history import AnswerHistory
from tests.model.keyspace import Keyspace, ModelTarget
from tests.model.oracle import Oracle
from tests.model.plain_engine import PlainEngine
from tests.model.programs import LARGE, LONGEST_KEEP, LONGEST_LEASE, LONGEST_MEMORY, REST
from tests.model.values import (
    OPEN,
    WAITS,
    Exchanged,
    HeldLease,
    JobSpec,
    Options,
    Refusal,
    Settle,
    changes_nothing,
)
from towpath.clock import milliseconds
from towpath.engine.options import QueueOptions

FIXED_KEYS = {"meta", "events", "wake", "asked", "history"}
PASSING = ("call:", "wakes:")
FLOOD = 105
"""More than a claim reaps, and than it promotes, in one step."""

_numbers = itertools.count(1)

T = TypeVar("T")


class EngineAgainstOracle(RuleBasedStateMachine):
    """Any interleaving of verbs, repeats and time leaves engine and oracle equal.

    One rule takes a step of any kind. Rules per verb would be left out at random, and most programs
    would have no submits, or no claims.
    """

    target: ClassVar[ModelTarget]

    def __init__(self) -> None:
        super().__init__()
        queue = f"program-{next(_numbers)}"
        self.plain_engine = PlainEngine(
            self.target.url, self.target.address, queue, self.target.scripts
        )
        self.keyspace = Keyspace(self.target.connection, queue)
        self.calls: dict[str, tuple[int, str, dict[str, Any]]] = {}
        self.claiming = itertools.cycle(programs.CLAIMING)
        self.other = itertools.cycle(programs.OTHER)
        self.unnamed = itertools.count(999, -1)  # ids whose order as text is not their age
        self.jobs: list[JobSpec] = []
        self.leases: list[HeldLease] = []
        self.log: list[str] = []
        self.lost: dict[str, Any] | None = None
        """What the next call's reply is lost for: other options of the queue."""
        self.agreed = False

    @initialize(
        options=programs.options,
        rare=programs.rare_options,
        flood=st.integers(0, 14),
        large=st.integers(0, 4),
    )
    def queue(self, options: dict[str, Any], rare: dict[str, Any], flood: int, large: int) -> None:
        self.options = Options(**options, **rare)
        self.usual = itertools.cycle([LARGE, b"x"] if large == 3 else [b"x"])
        self.may_flood = flood == 7 and not self.options.max_length
        self.oracle = Oracle(self.options, self.plain_engine.now)
        self.history = AnswerHistory(self.options)
        self.plain_engine.open(self.options)

    @rule(step=programs.step())
    def step(self, step: tuple[Any, ...]) -> None:
        self.agreed = False
        try:
            self.take(*step)
            self.agree()
        except Exception as error:
            error.add_note("\n".join(["", "What was called, on which channel:", *self.log]))
            raise
        self.agreed = True

    def take(self, verb: str, *rest: Any) -> None:
        if verb in REST:
            self.settle(verb, *rest)
        else:
            getattr(self, verb)(*rest)

    # ── both sides ───────────────────────────────────────────────────────────────────────

    def both(self, verb: str, **asked: Any) -> Any:
        """Makes a new call to engine and oracle: both answer the same, or refuse with the same
        error.
        """
        if self.lost is not None:
            return self.lose(verb, asked)
        channel = next(self.claiming if verb in ("claim", "exchange") else self.other)
        number = self.calls[channel][0] + 1 if channel in self.calls else 1
        self.calls[channel] = (number, verb, asked)
        found = self.compare(channel, number, verb, asked)
        self.history.note(self.plain_engine.now, verb, asked, found)
        return found

    def compare(self, channel: str, number: int, verb: str, asked: dict[str, Any]) -> Any:
        repeated = number <= self.oracle.calls.get(channel, (0, None))[0]
        expected = self.oracle.perform(channel, number, verb, **asked)
        idle = repeated or changes_nothing(expected)
        before = self.keyspace.dump() if idle else None
        found = self.plain_engine.perform(channel, number, verb, **asked)
        self.log.append(f"{self.plain_engine.now} {channel}{number} {verb} {asked} -> {found}")
        assert found == expected, f"{verb} {asked}: engine {found}, oracle {expected}"
        if idle:
            assert self.keyspace.dump() == before, f"{verb} was refused or repeated, and wrote"
        return found

    def lose(self, verb: str, asked: dict[str, Any]) -> Any:
        """The same for a call whose reply is lost: one effect, one answer, by the options of its
        first try.
        """
        options, self.lost = replace(self.options, **self.lost or {}), None
        number = self.oracle.calls.get("lost", (0, None))[0] + 1
        expected = self.oracle.perform("lost", number, verb, **asked)
        self.options = self.oracle.options = options
        found = self.plain_engine.lose_reply(options, verb, **asked)
        self.log.append(f"{self.plain_engine.now} {verb} {asked}, then {options} -> {found}")
        assert found == expected, f"{verb} {asked}: engine {found}, oracle {expected}"
        self.history.note(self.plain_engine.now, verb, asked, found)
        self.history.reconfigured(options)
        return found

    def agree(self) -> None:
        """Checks that every job is where the oracle has it, in the same order, and that the counts
        add up.
        """
        wanted, counted = oracle_questions.census(self.oracle), oracle_questions.counts(self.oracle)
        counts, found = self.plain_engine.survey()
        assert found == wanted, oracle_questions.differences(found, wanted)
        assert counts == counted, f"engine {counts}, oracle {counted}"

    # ── submit ───────────────────────────────────────────────────────────────────────────

    def new(self, wanted: dict[str, Any]) -> JobSpec:
        rest = {name: value for name, value in wanted.items() if name != "when"}
        kind, ms = wanted.get("when", ("delay", 0))
        rest[kind] = self.plain_engine.now + ms if kind == "due" else ms
        named = "id" in wanted
        rest.setdefault("id", f"u{next(self.unnamed)}")
        rest.setdefault("payload", next(self.usual))
        return JobSpec(named=named, **rest)

    def submit(self, wanted: list[dict[str, Any]]) -> None:
        jobs = [self.new(fields) for fields in wanted]
        self.both("submit", jobs=jobs)
        self.jobs += jobs

    def submit_alone(self, wanted: dict[str, Any]) -> None:
        """Submits one job, in a call that the engine names, with a generated id if it has none."""
        new = self.new(wanted)
        id, found = self.plain_engine.submit_alone(new)
        new = replace(new, id=id)
        [expected] = self.oracle.submit([new])
        assert found == expected, f"submit {new}: engine {found}, oracle {expected}"
        self.history.submitted(self.plain_engine.now, new, found)
        self.jobs.append(new)

    def submit_again(self, which: int) -> None:
        """Submits the same job in another call: mostly a job that is gone, also one with a
        generated id.
        """
        gone = [new for new in self.jobs if new.named and self.oracle.find(new.id) is None]
        for new in _pick(gone if which < 3 else self.jobs, which):
            self.both("submit", jobs=[new])

    def come_back(self, kind: str, off: int, crowd: int) -> None:
        """Submits an id that ended, when its job is gone or forgotten; a *crowd* of jobs comes
        first.
        """
        if not self.oracle.seen:
            self.submit([{"id": "9"}])
            self.both("cancel", id="9")
        named = [new for new in self.jobs if new.id in self.oracle.seen]
        for new in _pick(named, 0):
            job = self.oracle.find(new.id)
            gone_at = job.gone_at if job is not None else None
            moment = gone_at if kind == "gone" and gone_at else self.oracle.seen[new.id]
            self.time(max(0, moment + off - self.oracle.now))
            if crowd:
                self.submit([{}] * crowd)
                self.both("submit", jobs=[new])

    def flood(self, when: tuple[str, int], most: int) -> None:
        """Submits more jobs than one step reaps or promotes."""
        if self.may_flood:
            self.may_flood = False
            self.submit([{"when": when, "max_attempts": most}] * FLOOD)
            self.claim("w7", LONGEST_LEASE, FLOOD)

    # ── claim, settle ────────────────────────────────────────────────────────────────────

    def claim(self, worker: str, lease: int, count: int, lane: str | None = None) -> None:
        """Claims. A paused queue gives nothing, and is resumed then."""
        self.leases += self.both("claim", worker=worker, lease=lease, count=count, lane=lane)
        if self.oracle.paused:
            self.both("resume")

    def claim_some(self) -> None:
        self.submit([{}, {"lane": "north"}, {"lane": "north"}])
        self.claim("w6", LONGEST_LEASE, 2)

    def overtake(self) -> None:
        """Releases a plain job and claims it again, so that its first lease is stale."""
        self.submit([{}])
        for verb, which, *rest in (("release", 0, 0, ""), ("complete", -1, b"")):
            self.claim("w8", LONGEST_LEASE, 1)
            self.settle(verb, which, *rest)

    def try_with_others(self, wait: int) -> None:
        """Fails a job that had a due time, so that it is due again together with one of a later due
        time.
        """
        self.submit([{"when": ("delay", 1), "priority": 100, "max_attempts": 2}])
        self.time(1)
        known = len(self.leases)
        self.claim("w10", LONGEST_LEASE, 1)
        for lease in self.leases[known:]:
            asked = {"delay": wait, "reason": "Broken v7", "keep_turn": False}
            self.both("fail", id=lease.id, token=lease.token, **asked)
        self.submit([{"when": ("delay", 1), "priority": 100}])
        self.time(wait)
        self.both("promote", limit=100)

    def leave_to_others(self, pause: int, unhandled: str) -> None:
        """One worker after the other cannot run the job that it gets, and releases it."""
        self.submit([{}])
        for why in ("first", unhandled):
            known = len(self.leases)
            self.claim("w9", LONGEST_LEASE, 1)
            for lease in self.leases[known:]:
                self.both("release", id=lease.id, token=lease.token, delay=0, unhandled=why)
            self.time(pause)

    def claim_selected(self, worker: str, count: int, how: dict[str, Any]) -> None:
        """Claims by selector, with a limit, or both; submits such jobs first if there are none."""
        if not any(job.new.selector for job in self.oracle.ready()):
            self.submit([{"selector": selector} for selector in ("o/n|dev", "{x}:9", "o/n|dev")])
        self.leases += self.both("claim", worker=worker, lease=LONGEST_LEASE, count=count, **how)

    def claim_lane(self, lane: str, lease: int) -> None:
        self.claim("w3", lease, 2, lane)

    def lease(self, which: int) -> HeldLease | None:
        """A lease that is held, or (below 0) one that was held; any lease if there is none such."""
        held = [lease for lease in self.leases if self.oracle.holds(lease.id, lease.token)]
        past = [lease for lease in self.leases if lease not in held]
        wanted = _pick(held, which) if which >= 0 else _pick(past, -1 - which)
        return next(iter(wanted or _pick(self.leases, which)), None)

    def settle(self, verb: str, which: int, *rest: Any) -> None:
        """Settles a lease; if there never was one, claims a job first."""
        if not self.leases:
            self.claim_some()
        lease = self.lease(which)
        if lease is not None:
            asked = dict(zip(REST[verb], rest, strict=True))
            self.both(verb, id=lease.id, token=lease.token, **asked)

    def exchange(self, how: list[tuple[Any, ...]], count: int) -> None:
        if not self.leases:
            self.claim_some()
        settlements = [
            Settle(verb, lease.id, lease.token, tuple(rest))
            for verb, which, *rest in how
            if (lease := self.lease(which)) is not None
        ]
        found: Exchanged = self.both(
            "exchange",
            settlements=settlements,
            worker="w4",
            lease=LONGEST_LEASE,
            count=count,
        )
        self.leases += found.leases

    # ── without a lease ──────────────────────────────────────────────────────────────────

    def cancel(self, which: int) -> None:
        """Cancels a job, often one that is leased."""
        lease = self.lease(which - 1) if 0 < which < 5 else None
        for id in [lease.id] if lease else [new.id for new in _pick(self.jobs, which)]:
            self.both("cancel", id=id)

    def move(self, which: list[int], whens: list[tuple[str, int]]) -> None:
        """Moves jobs, mostly delayed and ready ones, several at once."""
        waiting = [job.new for state in WAITS for job in self.oracle.jobs_in(state)]
        ids = [new.id for n in which for new in _pick(waiting if n < 5 else self.jobs, n)]
        now = self.plain_engine.now
        moves = {
            id: (kind, now + ms if kind == "due" else ms)
            for id, (kind, ms) in zip(ids, itertools.cycle(whens), strict=False)
        }
        if moves:
            self.both("move", moves=moves)

    def set(self, wanted: list[dict[str, Any]], which: int) -> None:
        """Sets jobs, the first often under the id of a job that exists, or that was tried."""
        states = (*WAITS, "dead")
        tried = [job.new for state in states for job in self.oracle.jobs_in(state) if job.attempts]
        there = tried if which in (1, 3) and tried else self.jobs
        known = [{"id": new.id} for new in _pick(there, which) if which < 5]
        jobs = [self.new({**fields, **dict(*known[i : i + 1])}) for i, fields in enumerate(wanted)]
        self.both("set", jobs=jobs)
        self.jobs += jobs

    def retry(self, which: int) -> None:
        self.attend("retry", which)

    def delete(self, which: int) -> None:
        self.attend("delete", which)

    def attend(self, verb: str, which: int) -> None:
        """Changes an ended job, mostly a dead one."""
        dead = [job.new for job in self.oracle.jobs_in("dead")]
        for new in _pick(dead if which < 5 else self.jobs, which):
            self.both(verb, id=new.id)

    def drop(self, lane: str) -> None:
        if self.options.lanes == "park":
            self.both("drop", lane=lane)

    def promote(self, limit: int) -> None:
        self.both("promote", limit=limit)

    def reap(self, limit: int) -> None:
        self.both("reap", limit=limit)

    def trim(self) -> None:
        self.both("trim", limit=100)

    def pause(self) -> None:
        self.both("pause")

    def reconfigure(self, options: dict[str, Any]) -> None:
        """Changes the options, which also affects the existing jobs at once."""
        self.options = self.oracle.options = replace(self.options, **options)
        self.history.reconfigured(self.options)
        self.plain_engine.reconfigure(self.options)

    def declare(self, options: dict[str, Any]) -> None:
        """Declares options for a program that uses the queue, after any changes of an operator."""
        self.hold(self.oracle.declare(options), self.plain_engine.declare(options))

    def reset(self, names: list[str]) -> None:
        """Resets options for an operator: changed ones are as declared again."""
        self.hold(self.oracle.reset(names), self.plain_engine.reset(names))

    def hold(self, wanted: Options, found: QueueOptions) -> None:
        self.options = wanted
        self.history.reconfigured(wanted)
        self.log.append(f"{self.plain_engine.now} options, as declared: {wanted}")
        assert found == plain_values.options(wanted), f"engine {found}, oracle {wanted}"

    def look(self, which: int) -> None:
        for new in _pick(self.jobs, which):
            found, wanted = (
                self.plain_engine.look(new.id),
                oracle_questions.look(self.oracle, new.id),
            )
            assert found == wanted, f"engine {found}, oracle {wanted}"

    # ── time and repeats ─────────────────────────────────────────────────────────────────

    def time(self, ms: int) -> None:
        self.plain_engine.clock.advance(milliseconds(ms))
        self.oracle.now += ms

    def moment(self, kind: str, off: int, then: str) -> None:
        """Advances to a due time, the end of a lease, or the like; 1 ms before or after it, too;
        and does what falls due then.
        """
        moments = oracle_questions.moments(self.oracle)
        soonest = min(moments[kind] or itertools.chain(*moments.values()), default=self.oracle.now)
        self.time(max(0, soonest + off - self.oracle.now))
        if then == "claim":
            self.claim("w5", LONGEST_LEASE, 2)
        elif then == "limited":
            self.claim_selected("w1", 2, {"max_held": 1})
        elif then != "nothing":
            self.both(then, limit=100)

    def repeat(self, channel: str) -> None:
        """Repeats a call whose reply was lost: one effect, one answer."""
        if channel in self.calls:
            self.compare(channel, *self.calls[channel])

    def lose_reply(self, options: dict[str, Any], step: tuple[Any, ...]) -> None:
        """Loses a reply, and changes the options before the call is repeated."""
        self.lost = options
        self.take(*step)
        self.lost = None  # the step made no call

    def send_late(self, channel: str) -> None:
        """Sends a call that a newer one has overtaken; it is refused."""
        number, verb, asked = self.calls.get(channel, (0, "", {}))
        if number > 1:
            found = self.compare(channel, number - 1, verb, asked)
            assert found == Refusal("call_stale")

    # ── the end ──────────────────────────────────────────────────────────────────────────

    def teardown(self) -> None:
        try:
            if self.agreed:
                self.everything_ends()
        finally:
            self.plain_engine.close()
            self.keyspace.clear()

    def everything_ends(self) -> None:
        """With every job gone and the clock past all retentions, only the fixed keys remain."""
        for id in list(self.oracle.jobs):
            assert self.plain_engine.look(id) == oracle_questions.look(self.oracle, id)
        for job in list(self.oracle.jobs.values()):
            if job.state in OPEN:
                self.both("cancel", id=job.id)
        self.time(LONGEST_LEASE)
        self.both("reap", limit=1000)
        for job in self.oracle.jobs_in("dead"):
            self.both("delete", id=job.id)
        kept = [job.id for job in self.oracle.jobs.values() if job.gone_at is not None]
        assert not self.keyspace.lasting_jobs(kept)
        self.time(LONGEST_KEEP + LONGEST_MEMORY)
        while self.both("trim", limit=1000):
            pass
        left = {name for name in self.keyspace.names() if not name.startswith(PASSING)}
        assert left <= FIXED_KEYS, f"left behind: {left - FIXED_KEYS} (I14)"
        assert not self.keyspace.lasting(*PASSING)


def _pick(found: Sequence[T], which: int) -> list[T]:
    """The entry at position *which* from the end, counted round."""
    return [found[-1 - which % len(found)]] if found else []
