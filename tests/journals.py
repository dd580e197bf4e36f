"""Journals: files in which programs of tests note what happened to jobs, checked after kills.

Each line is appended with one write, so a program that is killed leaves whole lines behind.
Several processes may write to the same file.
"""

import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from towpath.clock import wall_ms
from towpath.ids import JobId
from towpath.telemetry.logs import LogLine


class JournalEntry(NamedTuple):
    """A line: what happened to which job under which token, in which process, and when."""

    word: str
    token: int
    id: JobId
    pid: int
    ms: int


class Journal:
    """A file that programs append to."""

    def __init__(self, path: Path | str) -> None:
        self._path = path

    def write(self, word: str, *jobs: tuple[int, str]) -> None:
        """Writes a line for each job, given as its token and its id."""
        lines = [f"{word} {token} {id} {os.getpid()} {wall_ms()}\n" for token, id in jobs]
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, "".join(lines).encode())
        os.close(file)


class JournalHandler(logging.Handler):
    """Writes the log lines of some events into a journal, with the job that they are about."""

    def __init__(self, journal: Journal, events: Collection[str]) -> None:
        super().__init__()
        self._journal, self._events = journal, events

    def emit(self, record: logging.LogRecord) -> None:
        line: Any = record.msg
        if type(line) is LogLine and line["event"] in self._events:
            self._journal.write(line["event"], (0, line.get("job", "-")))


def log_to_journal(journal: Journal, events: Collection[str]) -> None:
    """Copies Towpath's log lines of these events to *journal* from now on."""
    logger = logging.getLogger("towpath")
    logger.addHandler(JournalHandler(journal, events))
    logger.setLevel(logging.INFO)


def read_journals(*files: Path) -> list[JournalEntry]:
    """All lines of these files."""
    lines = (line.split() for file in files for line in file.read_text().splitlines())
    return [
        JournalEntry(word, int(token), JobId(id), int(pid), int(ms))
        for word, token, id, pid, ms in lines
    ]
