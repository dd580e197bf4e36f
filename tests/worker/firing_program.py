"""A process that fires a schedule and keeps a journal; its own clock may be wrong.

    python -m tests.worker.firing_program <url> <queue> <name> <offset in seconds> <journal>

The schedule fires every second by the clock of Redis. The process writes the job id of each firing
that it made to the journal, one per line. It ends when its standard input is closed.
"""

import asyncio
import logging
import os
import sys
from pathlib import Path

from tests.faults.wrong_clock_program import shift_clock


class JournalHandler(logging.Handler):
    """Writes each line with one write, so the lines before a kill are whole."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def emit(self, record: logging.LogRecord) -> None:
        line = record.msg
        if isinstance(line, dict) and line["event"] == "schedule.fired":
            os.write(self._file, f"{line['job']}\n".encode())


async def fire(url: str, queue: str, name: str) -> None:
    # Imported only now, after the clock was shifted.
    from towpath.clock import seconds  # noqa: PLC0415
    from towpath.engine.engine import Engine  # noqa: PLC0415
    from towpath.engine.schedule import Every, Missed, NamedSchedule  # noqa: PLC0415
    from towpath.worker.schedules import DeclaredSchedules, keep_firing  # noqa: PLC0415

    work = NamedSchedule(name=name, when=Every(seconds(1)), queue=queue, missed=Missed.ALL)
    async with Engine(url) as engine:
        firing = asyncio.create_task(keep_firing(engine, DeclaredSchedules([work])))
        await asyncio.to_thread(sys.stdin.read)
        firing.cancel()
        await asyncio.wait([firing])


def main() -> None:
    url, queue, name, offset, journal = sys.argv[1:]
    shift_clock(float(offset))
    logging.getLogger("towpath").addHandler(JournalHandler(Path(journal)))
    logging.getLogger("towpath").setLevel(logging.INFO)
    asyncio.run(fire(url, queue, name))


if __name__ == "__main__":
    main()
