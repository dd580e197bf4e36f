"""The history of timers from three sides: what was acknowledged, the journals of the processes that
ran them, and the events of Redis. Finds violations in it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from tests.journals import JournalEntry
from towpath.embedded import EmbeddedServer
from towpath.engine.events import read_entries
from towpath.engine.keys import keys_of
from towpath.engine.model import JobInfo
from towpath.engine.states import State
from towpath.ids import queue_name


class Fault(NamedTuple):
    """The time during which a process was killed, frozen, or not yet back."""

    what: str
    began_ms: int
    ended_ms: int


class StoreEvent(NamedTuple):
    """An event of Redis, with its time by the clock of Redis."""

    verb: str
    id: str
    ms: int


@dataclass
class TimerHistory:
    """Timers by id, and all that is known of them."""

    promised: Mapping[str, int]
    """When each is due, ms, as the answer to its submit said."""
    ran: list[JournalEntry]
    """The attempts that began, as their workers and instances wrote down."""
    told: list[StoreEvent]
    jobs: Mapping[str, JobInfo]
    """As they are at the end."""
    faults: list[Fault] = field(default_factory=list[Fault])

    def again(self) -> int:
        """How many attempts there were beside the first ones."""
        return len(self.ran) - len({run.id for run in self.ran})

    def violations(self) -> list[str]:
        """All violations."""
        return [*self._lost(), *self._early(), *self._doubled(), *self._unprovoked()]

    def _lost(self) -> Iterable[str]:
        invoked = {run.id for run in self.ran}
        for id in self.promised:
            job = self.jobs.get(id)
            if job is None or job.state is not State.DONE:
                yield f"{id} is lost: {job.state if job else 'gone'}"
            elif id not in invoked:
                yield f"{id} is lost: it is done, and nobody ran it"

    def _early(self) -> Iterable[str]:
        begun = [(run.id, run.ms, "ran") for run in self.ran]
        begun += [
            (event.id, event.ms, "was claimed") for event in self.told if event.verb == "claim"
        ]
        for id, ms, what in begun:
            if ms < self.promised[id]:
                yield f"{id} {what} {self.promised[id] - ms} ms early"

    def _doubled(self) -> Iterable[str]:
        """I4. The completion that was accepted is that of an attempt that ran (G3, G4)."""
        completed = Counter(event.id for event in self.told if event.verb == "complete")
        tokens: dict[str, set[int]] = defaultdict(set)
        for run in self.ran:
            if run.token in tokens[run.id]:
                yield f"{run.id} was run twice under token {run.token}"
            tokens[run.id].add(run.token)
        for id in self.promised:
            if completed[id] > 1:
                yield f"{id} is doubled: completed {completed[id]} times"
            job = self.jobs.get(id)
            if job is not None and job.state is State.DONE and job.token not in tokens[id]:
                yield f"{id} was completed under a token that nobody ran it with"

    def _unprovoked(self) -> Iterable[str]:
        """Timers that ran again without a reason: their attempt failed, their lease ended on a busy
        machine, or there was a fault between their attempts.
        """
        over = {event.id for event in self.told if event.verb in ("fail", "release", "reap")}
        attempts: dict[str, list[int]] = defaultdict(list)
        for run in self.ran:
            attempts[run.id].append(run.ms)
        for id, times in attempts.items():
            first, last = min(times), max(times)
            reasons = [
                fault for fault in self.faults if fault.began_ms <= last and fault.ended_ms >= first
            ]
            if len(times) > 1 and not reasons and id not in over:
                yield f"{id} is doubled: it ran {len(times)} times without a fault"


def events_of(server: EmbeddedServer, queue: str) -> list[StoreEvent]:
    """All events of a queue."""
    name = queue_name(queue)
    entries = cast("Any", server.ask("XRANGE", keys_of(name).events, "-", "+"))
    found = read_entries(name, [(bytes(id), list(flat)) for id, flat in entries])
    return [
        StoreEvent(event.verb, event.job.id, int(event.cursor.partition("-")[0])) for event in found
    ]
