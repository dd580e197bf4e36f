"""A worker process whose own clock is wrong.

    python -m tests.faults.wrong_clock_program <url> <queue> <offset in seconds> <lease ms> <jobs>

Every way to read the time of day of this machine is shifted before Towpath is imported. The process
claims so many jobs, waiting for them, and prints each: id, claim, end of the lease. Then it holds
them until its standard input is closed.
"""

import datetime as dt
import sys
import time


def shift_clock(offset: float) -> None:
    """Makes `time.time`, `time.time_ns` and `datetime.now` wrong by *offset* seconds."""
    real, real_ns, delta = time.time, time.time_ns, dt.timedelta(seconds=offset)

    class ShiftedDatetime(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> "ShiftedDatetime":
            return super().now(tz) + delta

    time.time = lambda: real() + offset
    time.time_ns = lambda: real_ns() + int(offset * 1e9)
    dt.datetime = ShiftedDatetime


def main() -> None:
    url, queue, offset, lease_ms, jobs = sys.argv[1:]
    shift_clock(float(offset))
    # Imported only now, after the clock was shifted.
    from tests.faults.wrong_clock_program_work import work  # noqa: PLC0415

    work(url, queue, int(lease_ms), int(jobs))


if __name__ == "__main__":
    main()
