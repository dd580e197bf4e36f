"""Who is listed as alive, as it must be. Nothing here comes from towpath."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class WorkerReport:
    """What a worker says of itself."""

    host: str
    queues: tuple[str, ...]
    jobs: tuple[tuple[str, int], ...]
    """What it runs: ids, and since when."""


@dataclass(frozen=True)
class ListedWorker:
    """A worker as it is listed."""

    name: str
    since: int
    said: WorkerReport
    serving: int
    running: int


@dataclass
class LivingBounds:
    """How many there may be of what."""

    known: int
    listed: int
    queues: int
    jobs: int


@dataclass
class LivingOracle:
    """The workers of a deployment."""

    bounds: LivingBounds
    now: int
    until: dict[str, int] = field(default_factory=dict[str, int])
    """Worker -> when it will have been silent for too long."""
    shown: dict[str, ListedWorker] = field(default_factory=dict[str, ListedWorker])

    def alive(self) -> list[str]:
        """In the order in which they will be silent for too long."""
        lasting = [name for name, until in self.until.items() if until > self.now]
        return sorted(lasting, key=lambda name: (self.until[name], name))

    def tell(self, name: str, said: WorkerReport, age: int, lasts: int) -> bool:
        alive = self.alive()
        if name not in alive and len(alive) >= self.bounds.known:
            return False
        queues = tuple(sorted(said.queues)[: self.bounds.queues])
        jobs = tuple(sorted(said.jobs, key=lambda job: job[1])[: self.bounds.jobs])
        few = WorkerReport(said.host, queues, jobs)
        self.until[name] = self.now + lasts
        self.shown[name] = ListedWorker(name, self.now - age, few, len(said.queues), len(said.jobs))
        return True

    def gone(self, name: str) -> None:
        self.until.pop(name, None)

    def list(self) -> list[ListedWorker]:
        """By name."""
        return [self.shown[name] for name in sorted(self.alive()[: self.bounds.listed])]
