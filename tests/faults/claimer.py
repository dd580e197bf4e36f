"""A worker process for the crash test: exchanges batches until nothing is open, keeps a journal.

    python -m tests.faults.claimer <url> <queue> <lease ms> <journal>

Each line of the journal is written in one piece to a file that is only appended to, so whatever
kills the process, the lines before are whole. `claimed` is written when the engine gave a job
out, `done` when it accepted the completion, `lost` when it refused it.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.faults.queue_contents import is_drained
from towpath.clock import Duration, milliseconds, seconds
from towpath.engine.engine import Engine
from towpath.engine.model import Complete, Exchanged, Lease
from towpath.engine.states import State

BATCH = 40


class JournalFile:
    """What one process saw, line by line."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, word: str, leases: Sequence[Lease]) -> None:
        lines = [f"{word} {lease.token} {lease.id}\n" for lease in leases]
        os.write(self._file, "".join(lines).encode())


async def work(url: str, queue: str, name: str, journal: JournalFile, lease: Duration) -> None:
    async with Engine(url) as engine:
        held: list[Lease] = []
        while held or not await is_drained(engine, queue):
            answer = await engine.exchange(
                queue,
                [Complete(held_lease) for held_lease in held],
                worker=name,
                lease=lease,
                count=BATCH,
            )
            _note(journal, held, answer)
            held = answer.leases
            if not held:
                held = await engine.claim(
                    queue, worker=name, lease=lease, count=BATCH, wait=seconds(1)
                )
                journal.write("claimed", held)


def _note(journal: JournalFile, held: list[Lease], answer: Exchanged) -> None:
    accepted = [outcome is State.DONE for outcome in answer.outcomes]
    journal.write("done", [lease for lease, ok in zip(held, accepted, strict=True) if ok])
    journal.write("lost", [lease for lease, ok in zip(held, accepted, strict=True) if not ok])
    journal.write("claimed", answer.leases)


def main() -> None:
    url, queue, lease_ms, path = sys.argv[1:]
    lease, journal = milliseconds(int(lease_ms)), Path(path)
    asyncio.run(work(url, queue, journal.name, JournalFile(journal), lease))


if __name__ == "__main__":
    main()
