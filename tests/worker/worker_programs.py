"""Starts worker programs that tests signal, kill and freeze, and reads their journals."""

from pathlib import Path

from tests.journals import JournalEntry
from tests.programs import Program, ProgramGroup
from tests.waiting import eventually
from towpath.clock import Duration, milliseconds, seconds

LEASE, GRACE = seconds(2), seconds(20)


class WorkerPrograms(ProgramGroup):
    """Processes of `worker_program.py` on one Redis."""

    def __init__(
        self, url: str, folder: Path, *, lease: Duration, grace: Duration, concurrency: int
    ) -> None:
        super().__init__("tests.worker.worker_program", folder)
        millis = [str(duration // milliseconds(1)) for duration in (lease, grace)]
        self._words = (url, *millis, str(concurrency))

    def start(self, *arguments: str) -> Program[bytes]:
        return super().start(*(arguments or self._words))

    def began(self, count: int) -> list[JournalEntry]:
        """Returns the journal lines `began`, once there are so many."""
        eventually(lambda: len(self.entries("began")) >= count)
        return self.entries("began")

    def holder_of(self, id: str) -> Program[bytes]:
        """Returns the program that began this job, once one has."""

        def pids() -> list[int]:
            return [entry.pid for entry in self.entries("began") if entry.id == id]

        eventually(pids)
        [holder] = [program for program in self.started if program.pid == pids()[-1]]
        return holder


def is_gone(pid: int | str) -> bool:
    """Returns whether no such process runs, not even as a zombie."""
    return not Path(f"/proc/{pid}").exists()


def programs(
    url: str,
    folder: Path,
    *,
    lease: Duration = LEASE,
    grace: Duration = GRACE,
    concurrency: int = 10,
) -> WorkerPrograms:
    return WorkerPrograms(url, folder, lease=lease, grace=grace, concurrency=concurrency)
