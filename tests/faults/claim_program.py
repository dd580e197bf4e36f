"""A worker process for the crash test: exchanges batches until no job is open, and keeps a journal.

    python -m tests.faults.claim_program <journal> <url> <queue> <lease ms>

It writes `claimed` when the engine delivered a job, `done` when the engine accepted the completion,
and `lost` when the engine refused it.
"""

import asyncio
import sys
from pathlib import Path

from tests.faults.queue_contents import is_drained
from tests.journals import Journal
from towpath.clock import Duration, milliseconds, seconds
from towpath.engine.engine import Engine
from towpath.engine.model import Complete, Exchanged, Lease
from towpath.engine.states import State

BATCH = 40


async def work(url: str, queue: str, name: str, journal: Journal, lease: Duration) -> None:
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
                _write(journal, "claimed", held)


def _note(journal: Journal, held: list[Lease], answer: Exchanged) -> None:
    accepted = [outcome is State.DONE for outcome in answer.outcomes]
    _write(journal, "done", [lease for lease, ok in zip(held, accepted, strict=True) if ok])
    _write(journal, "lost", [lease for lease, ok in zip(held, accepted, strict=True) if not ok])
    _write(journal, "claimed", answer.leases)


def _write(journal: Journal, word: str, leases: list[Lease]) -> None:
    journal.write(word, *((lease.token, lease.id) for lease in leases))


def main() -> None:
    path, url, queue, lease_ms = sys.argv[1:]
    lease = milliseconds(int(lease_ms))
    asyncio.run(work(url, queue, Path(path).name, Journal(path), lease))


if __name__ == "__main__":
    main()
