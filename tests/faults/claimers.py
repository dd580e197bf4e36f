"""Worker processes that are killed, frozen and replaced, and the journals they leave behind."""

import random
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.warm import ROOT, Program
from towpath.ids import JobId


@dataclass(frozen=True, slots=True)
class ClaimerEntry:
    """A line of a worker's journal: `claimed`, `done` or `lost`, and under which token."""

    word: str
    token: int
    id: JobId


class Claimers:
    """Some worker processes on one queue; whoever is killed is replaced."""

    def __init__(self, url: str, queue: str, *, size: int, lease_ms: int, journals: Path) -> None:
        self._words = [url, queue, str(lease_ms)]
        self._journals = journals
        self._started = 0
        self._frozen: list[subprocess.Popen[bytes]] = []
        self._working = [self._start() for _ in range(size)]

    def kill_one(self, chance: random.Random) -> None:
        """SIGKILL, and somebody else in its place."""
        at = chance.randrange(len(self._working))
        _end(self._working[at])
        self._working[at] = self._start()

    def freeze_one(self, chance: random.Random) -> None:
        """SIGSTOP: it holds what it holds and does not know how time passes."""
        worker = chance.choice(self._working)
        worker.send_signal(signal.SIGSTOP)
        self._frozen.append(worker)

    def thaw(self) -> None:
        for worker in self._frozen:
            worker.send_signal(signal.SIGCONT)
        self._frozen.clear()

    def exit_codes(self) -> set[int | None]:
        """How the workers ended; None for those who still work."""
        return {worker.poll() for worker in self._working}

    def end(self) -> None:
        for worker in self._working:
            _end(worker)

    def entries(self) -> Iterator[ClaimerEntry]:
        """All journals, line by line."""
        for path in sorted(self._journals.iterdir()):
            for line in path.read_text().splitlines():
                word, token, id = line.split()
                yield ClaimerEntry(word, int(token), JobId(id))

    def _start(self) -> subprocess.Popen[bytes]:
        self._started += 1
        journal = self._journals / f"w{self._started}"
        return Program(
            [sys.executable, "-m", "tests.faults.claimer", *self._words, str(journal)], cwd=ROOT
        )


def _end(worker: subprocess.Popen[bytes]) -> None:
    worker.kill()
    worker.wait()


@contextmanager
def claimers(
    url: str, queue: str, *, size: int, lease_ms: int, journals: Path
) -> Generator[Claimers]:
    started = Claimers(url, queue, size=size, lease_ms=lease_ms, journals=journals)
    try:
        yield started
    finally:
        started.end()
