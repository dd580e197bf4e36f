"""The registry of live workers: random programs, run by the engine and by the oracle."""

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
from tests.model.run_programs import chosen_settings
from tests.model.worker_registry_oracle import (
    ExpectedReport,
    ListedWorker,
    RegistryBounds,
    RegistryOracle,
)
from towpath.clock import ManualClock, milliseconds
from towpath.engine.engine import Engine
from towpath.engine.model import job_ref
from towpath.engine.worker_registry import LiveWorker, RunningJob, WorkerReport

BOUNDS = RegistryBounds(stored=4, listed=3, queues=2, jobs=2)
KEYS = ("towpath:{workers}:living", "towpath:{workers}:told")
QUEUE = "mails"
AGES = (0, 1, 60_000)
LASTS = (10_000, 25_000)

names = st.sampled_from(["9", "10", "{x}:ü", "anna", "berta", "carla"])
reports = st.builds(
    ExpectedReport,
    host=st.sampled_from(["build-3", "ü host"]),
    queues=st.lists(st.sampled_from("dcba"), max_size=4, unique=True).map(tuple),
    jobs=st.lists(st.tuples(st.sampled_from(["m-1", "m-2", "9"]), st.integers(1, 5)), max_size=4)
    .map(lambda found: tuple({since: (id, since) for id, since in found}.values())),
)  # fmt: skip


class RegistryAgainstOracle(RuleBasedStateMachine):
    """Workers report, leave and fall silent: engine and oracle list the same workers."""

    target: ClassVar[ModelTarget]

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(START)
        self.oracle = RegistryOracle(BOUNDS, self.now)
        self._runner, self._open = asyncio.Runner(), AsyncExitStack()
        self.target.connection.ask("DEL", *KEYS)
        engine = Engine(self.target.url, clock=self.clock, scripts=self.target.scripts)
        self.engine = self.run(self._open.enter_async_context(engine))

    @property
    def now(self) -> int:
        return int(self.clock.stamp())

    def run(self, work: Any) -> Any:
        return self._runner.get_loop().run_until_complete(work)

    @rule(name=names, given=reports, age=st.sampled_from(AGES), lasts=st.sampled_from(LASTS))
    def report(self, name: str, given: ExpectedReport, age: int, lasts: int) -> None:
        expected = self.oracle.report(name, given, age, lasts)
        work = self.engine.workers.report(
            name, _as_report(given), age=milliseconds(age), lasts=milliseconds(lasts)
        )
        found = self.run(work)
        assert found == expected, f"report of {name}: engine {found}, oracle {expected}"
        self.agree()

    @rule(names=st.lists(names, min_size=3, max_size=6))
    def many_as_report(self, names: list[str]) -> None:
        for name in names:
            self.report(name, ExpectedReport("build-3", ("a",), ()), 0, LASTS[-1])

    @rule(name=names)
    def leave(self, name: str) -> None:
        self.oracle.remove(name)
        self.run(self.engine.workers.remove(name))
        self.agree()

    @rule(ms=st.sampled_from([1, 5_000, 25_000]))
    def time(self, ms: int) -> None:
        self.clock.advance(milliseconds(ms))
        self.oracle.now = self.now
        self.agree()

    @rule(which=st.integers(0, 3), off=st.sampled_from([0, -1, 1]))
    def silence(self, which: int, off: int) -> None:
        """Advance to the moment at which one of them has been silent for too long, or 1 ms off."""
        moments = sorted(self.oracle.until[name] for name in self.oracle.alive())
        if moments:
            self.time(max(0, moments[which % len(moments)] + off - self.now))

    def agree(self) -> None:
        found = [_listed(worker) for worker in self.run(self.engine.workers.list())]
        wanted = self.oracle.list()
        assert found == wanted, f"engine {found}, oracle {wanted}"
        stored, reports = (self.target.connection.ask(*command) for command in _COUNTED)
        assert stored == reports, f"{stored} workers are stored, with {reports} reports"
        assert isinstance(stored, int)
        assert stored <= BOUNDS.stored, f"{stored} workers are stored"

    def teardown(self) -> None:
        try:
            self.run(self._open.aclose())
        finally:
            self._runner.close()
            self.target.connection.ask("DEL", *KEYS)


_COUNTED = (("ZCARD", KEYS[0]), ("HLEN", KEYS[1]))


def _as_report(expected: ExpectedReport) -> WorkerReport:
    return WorkerReport(
        host=expected.host, pid=7, queues=expected.queues, serving=len(expected.queues), slots=4,
        running=len(expected.jobs),
        jobs=[RunningJob(job_ref(QUEUE, id), at) for id, at in expected.jobs],
    )  # fmt: skip


def _listed(worker: LiveWorker) -> ListedWorker:
    report = worker.report
    jobs = tuple((str(job.job.id), job.since_ms) for job in report.jobs)
    shown = ExpectedReport(report.host, tuple(report.queues), jobs)
    since = int(worker.since.timestamp() * 1000)
    return ListedWorker(worker.name, since, shown, report.serving, report.running)


def run_programs(
    target: ModelTarget,
    *,
    programs: int,
    seed: int,
    phases: Collection[Phase] = (Phase.generate, Phase.shrink),
) -> None:
    """Run that many random programs; raise what the first one fails with."""

    class Program(RegistryAgainstOracle):
        pass

    Program.target = target
    Program.__name__ = RegistryAgainstOracle.__name__
    chosen = chosen_settings(programs, phases)
    run_state_machine_as_test(hypothesis.seed(seed)(Program), settings=chosen)
