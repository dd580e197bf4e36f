"""Workers that tell that they live: random programs, run by the engine and by the oracle."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import AsyncExitStack
from typing import Any, ClassVar

import hypothesis
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.model.keyspace import ModelTarget
from tests.model.plain_engine import START
from tests.model.runs import chosen_settings
from tests.model.worker_registry_oracle import (
    ListedWorker,
    LivingBounds,
    LivingOracle,
    WorkerReport,
)
from towpath.clock import ManualClock, milliseconds
from towpath.engine.engine import Engine
from towpath.engine.model import job_ref
from towpath.engine.worker_registry import Doing, LivingWorker, RunningJob

BOUNDS = LivingBounds(known=4, listed=3, queues=2, jobs=2)
KEYS = ("towpath:{workers}:living", "towpath:{workers}:told")
QUEUE = "mails"
AGES = (0, 1, 60_000)
LASTS = (10_000, 25_000)

names = st.sampled_from(["9", "10", "{x}:ü", "anna", "berta", "carla"])
said = st.builds(
    WorkerReport,
    host=st.sampled_from(["build-3", "ü host"]),
    queues=st.lists(st.sampled_from("dcba"), max_size=4, unique=True).map(tuple),
    jobs=st.lists(st.tuples(st.sampled_from(["m-1", "m-2", "9"]), st.integers(1, 5)), max_size=4)
    .map(lambda found: tuple({since: (id, since) for id, since in found}.values())),
)  # fmt: skip


class LivingAgainstOracle(RuleBasedStateMachine):
    """Whoever tells, withdraws and is silent: engine and oracle list the same workers."""

    target: ClassVar[ModelTarget]

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(START)
        self.oracle = LivingOracle(BOUNDS, self.now)
        self._runner, self._open = asyncio.Runner(), AsyncExitStack()
        self.target.connection.ask("DEL", *KEYS)
        engine = Engine(self.target.url, clock=self.clock, scripts=self.target.scripts)
        self.engine = self.run(self._open.enter_async_context(engine))

    @property
    def now(self) -> int:
        return int(self.clock.stamp())

    def run(self, work: Any) -> Any:
        return self._runner.get_loop().run_until_complete(work)

    @rule(name=names, said=said, age=st.sampled_from(AGES), lasts=st.sampled_from(LASTS))
    def tell(self, name: str, said: WorkerReport, age: int, lasts: int) -> None:
        expected = self.oracle.tell(name, said, age, lasts)
        work = self.engine.workers.tell(
            name, _doing(said), age=milliseconds(age), lasts=milliseconds(lasts)
        )
        found = self.run(work)
        assert found == expected, f"tell {name}: engine {found}, oracle {expected}"
        self.agree()

    @rule(names=st.lists(names, min_size=3, max_size=6))
    def many_tell(self, names: list[str]) -> None:
        for name in names:
            self.tell(name, WorkerReport("build-3", ("a",), ()), 0, LASTS[-1])

    @rule(name=names)
    def withdraw(self, name: str) -> None:
        self.oracle.gone(name)
        self.run(self.engine.workers.gone(name))
        self.agree()

    @rule(ms=st.sampled_from([1, 5_000, 25_000]))
    def time(self, ms: int) -> None:
        self.clock.advance(milliseconds(ms))
        self.oracle.now = self.now
        self.agree()

    @rule(which=st.integers(0, 3), off=st.sampled_from([0, -1, 1]))
    def silence(self, which: int, off: int) -> None:
        """To the moment at which one of them has been silent for too long, or beside it."""
        moments = sorted(self.oracle.until[name] for name in self.oracle.alive())
        if moments:
            self.time(max(0, moments[which % len(moments)] + off - self.now))

    def agree(self) -> None:
        found = [_listed(worker) for worker in self.run(self.engine.workers.list())]
        wanted = self.oracle.list()
        assert found == wanted, f"engine {found}, oracle {wanted}"
        known, told = (self.target.connection.ask(*command) for command in _COUNTED)
        assert known == told, f"{known} workers are known, and {told} have said something"
        assert isinstance(known, int)
        assert known <= BOUNDS.known, f"{known} workers are known"

    def teardown(self) -> None:
        try:
            self.run(self._open.aclose())
        finally:
            self._runner.close()
            self.target.connection.ask("DEL", *KEYS)


_COUNTED = (("ZCARD", KEYS[0]), ("HLEN", KEYS[1]))


def _doing(said: WorkerReport) -> Doing:
    return Doing(
        host=said.host, pid=7, queues=said.queues, serving=len(said.queues), slots=4,
        running=len(said.jobs), jobs=[RunningJob(job_ref(QUEUE, id), at) for id, at in said.jobs],
    )  # fmt: skip


def _listed(worker: LivingWorker) -> ListedWorker:
    doing = worker.doing
    jobs = tuple((str(job.job.id), job.since_ms) for job in doing.jobs)
    said = WorkerReport(doing.host, tuple(doing.queues), jobs)
    since = int(worker.since.timestamp() * 1000)
    return ListedWorker(worker.name, since, said, doing.serving, doing.running)


def run_living(
    target: ModelTarget,
    *,
    programs: int,
    seed: int,
    phases: Collection[Phase] = (Phase.generate, Phase.shrink),
) -> None:
    """Run that many random programs; raise what the first one fails with."""

    class Program(LivingAgainstOracle):
        pass

    Program.target = target
    Program.__name__ = LivingAgainstOracle.__name__
    chosen = chosen_settings(programs, phases)
    run_state_machine_as_test(hypothesis.seed(seed)(Program), settings=chosen)
