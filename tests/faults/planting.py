"""Plants faults in our own code: each edits the text of a function, and must make a test fail."""

from __future__ import annotations

import inspect
import types
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class PlantedFault:
    """Replaces some words of a function by others."""

    name: str
    module: str
    """Of the ledger's records, or with its whole name."""
    function: str
    words: str
    instead: str

    def __str__(self) -> str:
        return self.name

    def code(self) -> types.CodeType:
        """Compiles the function with the fault. Fails unless the words occur exactly once."""
        whole = self._whole()
        text = inspect.getsource(whole)
        own = inspect.getsource(self.target())
        found = own.count(self.words)
        assert found == 1, f"{self.name}: {found} times in {self.function}: {self.words}"
        edited = text.replace(own, own.replace(self.words, self.instead))
        space = dict(vars(whole))
        exec(compile(edited, f"<{self.name}>", "exec"), space)  # noqa: S102 -- our own text
        return _found(space, self.function).__code__

    def target(self) -> types.FunctionType:
        return _found(vars(self._whole()), self.function)

    def _whole(self) -> types.ModuleType:
        inner = "." not in self.module
        return import_module(f"towpath.ledger.records.{self.module}" if inner else self.module)


def _found(space: dict[str, Any], name: str) -> Any:
    """Finds `function`, or `Class.method`."""
    first, _, rest = name.partition(".")
    found = getattr(space[first], rest) if rest else space[first]
    return found.fget if isinstance(found, property) else found


FAULTS = [
    PlantedFault(
        "begin ignores the fence", "attempts", "_begun", 'if row["fence"] > token:', "if False:"
    ),
    PlantedFault(
        "end ignores the fence",
        "attempts",
        "end",
        'if row is None or row["fence"] != ending.lease.token:',
        "if row is None:",
    ),
    PlantedFault(
        "what has ended begins again", "attempts", "_over", "if state not in OPEN:", "if False:"
    ),
    PlantedFault(
        "what has ended ends again",
        "attempts",
        "end",
        'if row["state"] != RecordState.RUNNING:',
        "if False:",
    ),
    PlantedFault(
        "two leases of one job begin as if each were alone",
        "attempts",
        "begin",
        "rows[lease.queue, lease.job.id] = changed",
        "pass",
    ),
    PlantedFault(
        "whoever Redis gives out begins, whoever is before it in its lane",
        "attempts",
        "_early",
        'if row["ahead"] is not None and not row["attempts"]:',
        "if False:",
    ),
    PlantedFault(
        "the relay does not look at what runs",
        "relay",
        "QueueSync._reconcile",
        "found = found.and_(await self._queue(rows))",
        "found = found.and_("
        "await self._queue([it for it in rows if it.record.state != 'running']))",
    ),
    PlantedFault(
        "the relay does not see that Redis is another",
        "relay",
        "QueueSync.look",
        "renewed = await self._engine.queues.incarnation(self.queue) != self._life",
        "renewed = self._life == ''",
    ),
    PlantedFault(
        "tokens are not kept above those of the rows",
        "relay",
        "QueueSync._read_incarnation",
        "incarnation(self.queue, floor=floor)",
        "incarnation(self.queue, floor=0)",
    ),
]
"""What a random walk must find."""

MARKED_EARLY = PlantedFault(
    "the relay notes what it brings before it has brought it",
    "relay",
    "QueueSync._queue_missed",
    "found = found.and_(await self._queue(rows))",
    "await self._note([(it, None) for it in rows], seen=True);"
    " found = found.and_(await self._queue(rows))",
)
NUDGED_EARLY = PlantedFault(
    "Redis hears of a record before its transaction commits",
    "jobs",
    "Jobs.submit_in",
    "return (await self._ledger.transactions.submit(transaction, wanted)).recorded[0]",
    "made = (await self._ledger.transactions.submit(transaction, wanted)).recorded[0];"
    " await self.relay.enqueue([made.record]); return made",
)

MOVED_IN_VAIN = PlantedFault(
    "Redis knows a record that was moved by the same name",
    "changes",
    "_renamed",
    'values | {"job": name}',
    "values",
)
BEGUN_EARLY = PlantedFault(
    "a record begins before its time",
    "attempts",
    "_early",
    'if timely and state in RESTING and (wait := _may_run_at(row) - row["now"]) > 0:',
    "if (wait := 0) > 0:",
)

SAVEPOINT_FORGETS = PlantedFault(
    "a savepoint that is undone forgets what was made before it",
    "transactions",
    "_is_within",
    "return inner is outer",
    "return True",
)


def plant(name: str) -> None:
    """Plants the fault for the rest of this process."""
    [fault] = [fault for fault in FAULTS if fault.name == name]
    # The function itself is changed, so that every module that has imported it gets the fault too.
    fault.target().__code__ = fault.code()


@contextmanager
def planted(fault: PlantedFault) -> Generator[None]:
    """Plants the fault until the end of the block."""
    target = fault.target()
    sound = target.__code__
    target.__code__ = fault.code()
    try:
        yield
    finally:
        target.__code__ = sound
