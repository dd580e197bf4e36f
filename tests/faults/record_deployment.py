"""Processes that work on records or make them, and their journals."""

from collections import defaultdict
from pathlib import Path

from tests.faults.record_program import QUEUE
from tests.programs import Program, ProgramGroup
from towpath.ledger.records.record import first_name


class RecordDeployment(ProgramGroup):
    """Workers and makers of records on one Redis and one database."""

    def __init__(self, redis: str, database: str, folder: Path) -> None:
        super().__init__("tests.faults.record_program", folder)
        self._where, self._folder = (redis, database), folder
        self.open_gate(0)

    def start_worker(self, *, clock_error: float = 0, fault: str = "") -> None:
        self.start(*self._where, "work", str(clock_error), fault)

    def start_maker(self, first: int, count: int, *, handler: str = "") -> Program[bytes]:
        """Starts a process that makes so many records."""
        return self.start(*self._where, "make", str(first), str(count), handler)

    def open_gate(self, token: int) -> None:
        """Lets slow handlers end whose token is at most this one."""
        fresh = self._folder / "gate.new"
        fresh.write_text(str(token))
        fresh.rename(self._folder / "gate")

    def tokens(self) -> dict[str, set[int]]:
        """The tokens under which the handler of each record ran to its end."""
        ran: dict[str, set[int]] = defaultdict(set)
        for entry in self.entries("ran"):
            ran[first_name(entry.id)].add(entry.token)
        return ran


def record_deployment(
    redis: str, database: str, folder: Path, *, workers: int = 2, fault: str = ""
) -> RecordDeployment:
    processes = RecordDeployment(redis, database, folder)
    for _ in range(workers):
        processes.start_worker(fault=fault)
    return processes


__all__ = ["QUEUE", "RecordDeployment", "record_deployment"]
