"""Records among clocks that differ by an hour: of workers, an earlier Redis, an earlier database.

The clock of the database decides about a row, the clock of Redis about a job; tokens only grow.
"""

from pathlib import Path

from sqlalchemy import text

from tests.faults import record_history
from tests.faults.record_deployment import QUEUE, record_deployment
from tests.faults.record_scenario import RecordScenario, checked
from tests.waiting import eventually_in_loop
from towpath.clock import seconds, wall_ms
from towpath.embedded import EmbeddedServer
from towpath.ledger.ledger import Ledger

HOUR = 3600
EACH = 20


async def test_all_records_end_once_and_none_before_its_time(
    server: EmbeddedServer, url: str, tmp_path: Path
) -> None:
    async with Ledger(url) as ledger:
        await ledger.migrate()
        await make_records(ledger)
        with record_deployment(server.url, url, tmp_path, workers=0) as processes:
            for error in (-HOUR, HOUR):
                processes.start_worker(clock_error=error)
            await eventually_in_loop(lambda: len(processes.entries("clock")) == 2)
            errors = sorted(entry.token - wall_ms() for entry in processes.entries("clock"))
            run = RecordScenario(ledger, processes, 3 * EACH)
            await run.all_ended()
            await checked(run)
        early = text("SELECT count(*) FROM towpath_jobs WHERE started_at < due_at")
        assert await ledger.read(lambda connection: connection.execute(early).scalar_one()) == 0
    assert errors[0] < -HOUR * 500
    assert errors[1] > HOUR * 500


async def make_records(ledger: Ledger) -> None:
    """Makes records: some due later, some begun on a Redis that was ahead, some made while the
    database was ahead.
    """
    for number in range(EACH):
        await ledger.jobs.submit(QUEUE, b"null", id=f"later-{number}", delay=seconds(1.5))
        for kind in ("begun", "made"):
            await ledger.jobs.submit(QUEUE, b"null", id=f"{kind}-{number}")
    ahead = {"ms": wall_ms() + HOUR * 1000, "us": (wall_ms() + HOUR * 1000) * 1000}
    for change in (
        "SET state = 'running', attempts = 1, relay_at = NULL, fence = :us WHERE id LIKE 'begun%'",
        "SET created_at = :ms, relay_at = :ms WHERE id LIKE 'made%'",
    ):
        line = text(f"UPDATE towpath_jobs {change}")
        await ledger.write(lambda connection, line=line: connection.execute(line, ahead))
    await record_history.watch(ledger)
