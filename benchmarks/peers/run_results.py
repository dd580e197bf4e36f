"""The results of a run for each row, as stored in `benchmarks/results/`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

import msgspec

from benchmarks.measure import percentile
from benchmarks.peers.peer_list import Peer
from benchmarks.peers.row_round import RowRound

RESULTS = Path(__file__).parents[1] / "results"


class RowIdentity(msgspec.Struct, frozen=True):
    """A row in the tables."""

    name: str
    label: str
    version: str
    settings: str
    bulk: str = ""
    in_python: bool = True
    ours: bool = False
    asyncio: bool = False
    watched: bool = False

    @classmethod
    def of(cls, peer: Peer, version: str) -> RowIdentity:
        return cls(
            peer.name,
            peer.label,
            peer.version or version,
            peer.settings,
            peer.bulk,
            in_python=peer.in_python,
            ours=peer.ours,
            asyncio=peer.asyncio,
            watched=bool(peer.watchers),
        )


class RowResults(msgspec.Struct):
    """The rounds of a row. *not_measured* says why there are none, or what they lack."""

    who: RowIdentity
    measured: list[RowRound] = msgspec.field(name="visits", default_factory=list[RowRound])
    not_measured: str = ""

    def rounds(self, name: str) -> list[float]:
        """The values of that figure, from each round that has it."""
        values = (getattr(found, name) for found in self.measured)
        return [value for value in values if value is not None]

    def middle(self, name: str) -> float | None:
        rounds = self.rounds(name)
        return median(rounds) if rounds else None

    def at(self, share: float, name: str) -> float | None:
        """The percentile over the samples of all rounds."""
        samples: list[float] = [one for found in self.measured for one in getattr(found, name)]
        return percentile(samples, share) if samples else None

    @property
    def reason(self) -> str:
        """Why something is missing; empty if nothing is."""
        stops = (found.stopped for found in self.measured if found.stopped)
        return self.not_measured or next(stops, "")

    @property
    def blocks(self) -> bool:
        """Whether it can submit without an event loop."""
        return not self.who.asyncio or self.who.ours or self.who.watched

    @property
    def twice(self) -> int:
        return sum(found.twice for found in self.measured)

    @property
    def server_us(self) -> float | None:
        """The CPU of Redis for a job's life: submitted one by one, then run."""
        return total(self.middle("submit_cpu_us"), self.middle("run_cpu_us"))

    @property
    def jobs(self) -> int:
        return self.measured[0].jobs if self.measured else 0


class Comparison(msgspec.Struct):
    """A run of `peers`."""

    date: str
    made_with: str
    quick: bool
    rows: list[RowResults] = msgspec.field(name="standings")

    @property
    def by_drain(self) -> list[RowResults]:
        """The fastest first; those without a figure last."""
        return sorted(self.rows, key=lambda one: -(one.middle("drain") or 0))


class Recovery(msgspec.Struct):
    """How long after its worker was killed a row's job ran again."""

    who: RowIdentity
    seconds: float | None = None
    """Nothing: it did not run again while it was watched."""
    not_measured: str = ""


class Recoveries(msgspec.Struct):
    """A run of `crash`."""

    date: str
    made_with: str
    quick: bool
    watched: float
    recoveries: list[Recovery]


Record = TypeVar("Record", Comparison, Recoveries)


def keep(record: Comparison | Recoveries) -> Path:
    """Stores it as the last run of its kind."""
    RESULTS.mkdir(exist_ok=True)
    path = _path(type(record))
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1))
    return path


def kept(kind: type[Record]) -> Record | None:
    """The last run of that kind, if there is one."""
    path = _path(kind)
    return msgspec.json.decode(path.read_bytes(), type=kind) if path.exists() else None


def fastest(rows: Iterable[RowResults], name: str = "drain") -> RowResults | None:
    able = [one for one in rows if one.rounds(name)]
    return max(able, key=lambda one: one.middle(name) or 0, default=None)


def paired(
    one: tuple[RowResults | None, str], other: tuple[RowResults | None, str]
) -> tuple[Sequence[float], Sequence[float]]:
    """A figure of two rows, in the rounds that have both."""
    rounds = [(row.measured if row else []) for row, _ in (one, other)]
    both = [
        (getattr(mine, one[1]), getattr(theirs, other[1]))
        for mine, theirs in zip(*rounds, strict=True)
    ]
    whole = [pair for pair in both if None not in pair]
    return [mine for mine, _ in whole], [theirs for _, theirs in whole]


def total(*parts: float | None) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _path(kind: type[Comparison | Recoveries]) -> Path:
    return RESULTS / ("peers.json" if kind is Comparison else "crash.json")
