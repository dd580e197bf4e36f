"""Worker programs that are signalled, killed and frozen, and what their journals say."""

import random
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import eventually
from tests.warm import ROOT, Program
from towpath.clock import Duration, milliseconds, seconds

LEASE, GRACE = seconds(2), seconds(20)


@dataclass(frozen=True, slots=True)
class WorkerEntry:
    """A line of a journal: what happened, under which token, to which job, in which process."""

    word: str
    token: int
    id: str
    pid: int


class WorkerPrograms:
    """Worker programs that write into one folder, a journal each."""

    def __init__(
        self, url: str, folder: Path, *, lease: Duration, grace: Duration, concurrency: int
    ) -> None:
        millis = [str(duration // milliseconds(1)) for duration in (lease, grace)]
        self._url, self._words = url, [*millis, str(concurrency)]
        self._folder = folder / "journals"
        self._folder.mkdir()
        self.all: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        journal = self._folder / f"{len(self.all)}"
        command = [
            sys.executable,
            "-m",
            "tests.worker.worker_program",
            self._url,
            str(journal),
            *self._words,
        ]
        self.all.append(Program(command, cwd=ROOT))
        return self.all[-1]

    def kill_one(self, chance: random.Random) -> None:
        """SIGKILL, and another program in its place."""
        alive = [program for program in self.all if program.poll() is None]
        self.kill(chance.choice(alive).pid)

    def kill(self, pid: int) -> None:
        """The same to this one."""
        [program] = [program for program in self.all if program.pid == pid]
        end(program)
        self.start()

    def entries(self, word: str) -> list[WorkerEntry]:
        """Every such line of all journals."""
        return [entry for entry in self._read() if entry.word == word]

    def began(self, count: int, *, within: float = 20) -> list[WorkerEntry]:
        """The handlers' first lines, once there are so many."""
        eventually(lambda: len(self.entries("began")) >= count, within=within)
        return self.entries("began")

    def holder_of(self, id: str) -> int:
        """The process that has begun this job, once one has."""

        def began() -> list[int]:
            return [entry.pid for entry in self.entries("began") if entry.id == id]

        eventually(began)
        return began()[-1]

    def end_all(self) -> None:
        for program in self.all:
            program.send_signal(signal.SIGCONT)
            end(program)

    def _read(self) -> Iterator[WorkerEntry]:
        for path in sorted(self._folder.iterdir()):
            for line in path.read_text().splitlines():
                word, token, id, pid = line.split()
                yield WorkerEntry(word, int(token), id, int(pid))


def is_gone(pid: int | str) -> bool:
    """Whether no such process runs, not even as a zombie."""
    return not Path(f"/proc/{pid}").exists()


def end(program: subprocess.Popen[bytes]) -> None:
    program.kill()
    program.wait()


@contextmanager
def programs(
    url: str,
    folder: Path,
    *,
    lease: Duration = LEASE,
    grace: Duration = GRACE,
    concurrency: int = 10,
) -> Generator[WorkerPrograms]:
    started = WorkerPrograms(url, folder, lease=lease, grace=grace, concurrency=concurrency)
    try:
        yield started
    finally:
        started.end_all()
