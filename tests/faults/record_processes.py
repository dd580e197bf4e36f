"""Processes that work on records or make them, and what their journals say."""

import random
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.faults.record_program import QUEUE
from tests.warm import ROOT, Program
from towpath.ledger.records.record import first_name


class RecordEntry(NamedTuple):
    """A line of a journal: what happened, under which token, to which record."""

    word: str
    token: int
    id: str


class RecordProcesses:
    """Processes on one Redis and one database; each writes its own journal into one folder."""

    def __init__(self, redis: str, database: str, folder: Path) -> None:
        self._where, self.folder = (redis, database), folder
        self._journals = folder / "journals"
        self._journals.mkdir()
        self.open_gate(0)
        self._started = 0
        self.workers: list[subprocess.Popen[bytes]] = []
        self.makers: list[subprocess.Popen[bytes]] = []

    def start_worker(self, *, clock_error: float = 0, fault: str = "") -> None:
        """A worker more."""
        self.workers.append(self._start("work", str(clock_error), fault))

    def start_maker(self, first: int, count: int, *, handler: str = "") -> subprocess.Popen[bytes]:
        """A maker of so many records."""
        self.makers.append(self._start("make", str(first), str(count), handler))
        return self.makers[-1]

    def kill_one(self, chance: random.Random) -> None:
        """SIGKILL a worker, and another one in its place."""
        victim = chance.choice(self.workers)
        self.workers.remove(victim)
        end(victim)
        self.start_worker()

    def open_gate(self, token: int) -> None:
        """Let the slow ones end, up to this token."""
        fresh = self.folder / "gate.new"
        fresh.write_text(str(token))
        fresh.rename(self.folder / "gate")

    def _start(self, role: str, *words: str) -> subprocess.Popen[bytes]:
        self._started += 1
        journal = str(self._journals / str(self._started))
        command = [
            sys.executable,
            "-m",
            "tests.faults.record_program",
            role,
            *self._where,
            journal,
            *words,
        ]
        return Program(command, cwd=ROOT)

    def entries(self, *words: str) -> list[RecordEntry]:
        """Every such line of all journals."""
        wanted = tuple(f"{word} " for word in words)
        lines = (
            line for path in self._journals.iterdir() for line in path.read_text().splitlines()
        )
        return [_entry(line) for line in lines if line.startswith(wanted)]

    def tokens(self) -> dict[str, set[int]]:
        """Under which tokens each record was run to the end of its handler."""
        ran: dict[str, set[int]] = defaultdict(set)
        for entry in self.entries("ran"):
            ran[first_name(entry.id)].add(entry.token)
        return ran

    def close(self) -> None:
        for program in (*self.workers, *self.makers):
            program.send_signal(signal.SIGCONT)
            end(program)


def _entry(line: str) -> RecordEntry:
    word, token, id = line.split()
    return RecordEntry(word, int(token), id)


def end(program: subprocess.Popen[bytes]) -> None:
    program.kill()
    program.wait()


@contextmanager
def record_processes(
    redis: str, database: str, folder: Path, *, workers: int = 2, fault: str = ""
) -> Generator[RecordProcesses]:
    opened = RecordProcesses(redis, database, folder)
    try:
        for _ in range(workers):
            opened.start_worker(fault=fault)
        yield opened
    finally:
        opened.close()


__all__ = ["QUEUE", "RecordEntry", "RecordProcesses", "end", "record_processes"]
