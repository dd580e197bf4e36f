"""A program that works on records, or makes them, for tests that kill it. It keeps a journal.

  python -m tests.faults.record_program <journal> <redis> <database> work <clock error in s> <fault>
  python -m tests.faults.record_program <journal> <redis> <database> make <first> <count> <handler>

A worker's handler writes `ran` before it returns its token, so the row's result tells which attempt
was accepted; some lines of the worker's log are copied to the journal. The handler `slow` writes
`began` first. Then it waits, in a thread that nothing can end, until the file `gate` beside the
folder of journals has a number that is not below its token. A maker writes `made` when a record was
acknowledged. The first line is the time by the program's clock.
"""

import sys

from tests.faults.wrong_clock_program import shift_clock

QUEUE = "records"


def main() -> int:
    journal, redis, database, role, *more = sys.argv[1:]
    if role == "work" and float(more[0]):
        shift_clock(float(more[0]))
    # Imported only now, after the clock was shifted.
    from tests.faults.record_program_work import RecordProgram  # noqa: PLC0415

    program = RecordProgram(redis, database, journal)
    if role == "work":
        return program.work(fault=more[1])
    first, count, handler = more
    return program.make(range(int(first), int(first) + int(count)), handler=handler)


if __name__ == "__main__":
    sys.exit(main())
