"""Which workers must be listed as alive. Nothing here comes from towpath."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ExpectedReport:
    """What a worker reports about itself."""

    host: str
    queues: tuple[str, ...]
    jobs: tuple[tuple[str, int], ...]
    """The jobs that it runs: their ids, and since when."""


@dataclass(frozen=True)
class ListedWorker:
    """A worker as it is listed."""

    name: str
    since: int
    report: ExpectedReport
    serving: int
    running: int


@dataclass
class RegistryBounds:
    """How many workers may be stored and listed, and how many queues and jobs a report has."""

    stored: int
    listed: int
    queues: int
    jobs: int


@dataclass
class RegistryOracle:
    """The workers of a deployment."""

    bounds: RegistryBounds
    now: int
    until: dict[str, int] = field(default_factory=dict[str, int])
    """Worker -> the moment from which it counts as silent."""
    shown: dict[str, ListedWorker] = field(default_factory=dict[str, ListedWorker])

    def alive(self) -> list[str]:
        """The live workers, in the order in which they will count as silent."""
        alive = [name for name, until in self.until.items() if until > self.now]
        return sorted(alive, key=lambda name: (self.until[name], name))

    def report(self, name: str, given: ExpectedReport, age: int, lasts: int) -> bool:
        alive = self.alive()
        if name not in alive and len(alive) >= self.bounds.stored:
            return False
        queues = tuple(sorted(given.queues)[: self.bounds.queues])
        jobs = tuple(sorted(given.jobs, key=lambda job: job[1])[: self.bounds.jobs])
        stored = ExpectedReport(given.host, queues, jobs)
        self.until[name] = self.now + lasts
        self.shown[name] = ListedWorker(
            name, self.now - age, stored, len(given.queues), len(given.jobs)
        )
        return True

    def remove(self, name: str) -> None:
        self.until.pop(name, None)

    def list(self) -> list[ListedWorker]:
        """The live workers that the list shows, by name."""
        return [self.shown[name] for name in sorted(self.alive()[: self.bounds.listed])]
