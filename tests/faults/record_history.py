"""What the database itself notes about every record, whoever changed it, and checks of that
history.
"""

from collections import defaultdict
from typing import NamedTuple

from sqlalchemy import text
from sqlalchemy.engine import Connection

from towpath.ledger.ledger import Ledger
from towpath.ledger.records.record import OPEN

_TABLE = """
CREATE TABLE audit (
    n INTEGER PRIMARY KEY {counted}, id TEXT, old TEXT, new TEXT, fence BIGINT
)"""
_INSERT = "INSERT INTO audit (id, old, new, fence) VALUES (NEW.id, OLD.state, NEW.state, NEW.fence)"
_SQLITE = [
    _TABLE.format(counted="AUTOINCREMENT"),
    f"CREATE TRIGGER audited AFTER UPDATE OF state ON towpath_jobs BEGIN {_INSERT}; END",
]
_FUNCTION = f"""
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN {_INSERT}; RETURN NULL; END $$"""
_TRIGGER = """
CREATE TRIGGER audited AFTER UPDATE OF state ON towpath_jobs
FOR EACH ROW EXECUTE FUNCTION note()"""
_POSTGRES = [_TABLE.format(counted="GENERATED ALWAYS AS IDENTITY"), _FUNCTION, _TRIGGER]


class RecordRow(NamedTuple):
    """A record as the database has it."""

    id: str
    state: str
    fence: int
    result: bytes | None
    last_error: str | None
    attempts: int
    lane: str | None


class StateChange(NamedTuple):
    """A change of a record's state, in the order of the changes."""

    old: str
    new: str
    fence: int


async def watch(ledger: Ledger) -> None:
    """Makes the database note every change of a record's state, in the transaction of the
    change.
    """

    def make(connection: Connection) -> None:
        for line in _SQLITE if connection.dialect.name == "sqlite" else _POSTGRES:
            connection.execute(text(line))

    await ledger.write(make)


async def forget(ledger: Ledger) -> None:
    """Deletes the notes."""

    def empty(connection: Connection) -> None:
        for table in ("towpath_jobs", "audit"):
            connection.execute(text(f"DELETE FROM {table}"))  # noqa: S608 -- ours

    await ledger.write(empty)


async def rows(ledger: Ledger) -> dict[str, RecordRow]:
    """Every record by id, in the order of their creation."""
    columns = ", ".join(RecordRow._fields)
    query = text(f"SELECT {columns} FROM towpath_jobs ORDER BY seq")  # noqa: S608 -- ours
    found = [
        RecordRow(*row)
        for row in await ledger.read(lambda connection: list(connection.execute(query)))
    ]
    return {row.id: row._replace(result=_bytes(row.result)) for row in found}


def _bytes(value: bytes | memoryview | None) -> bytes | None:
    return None if value is None else bytes(value)


async def history(ledger: Ledger) -> dict[str, list[StateChange]]:
    """The changes of each record, in order."""
    query = text("SELECT id, old, new, fence FROM audit ORDER BY n")
    found = await ledger.read(lambda connection: list(connection.execute(query)))
    steps: dict[str, list[StateChange]] = defaultdict(list)
    for id, *step in found:
        steps[id].append(StateChange(*step))
    return steps


async def left(ledger: Ledger) -> int:
    """How many records are still open."""
    states = ", ".join(f"'{state}'" for state in OPEN)
    query = text(f"SELECT count(*) FROM towpath_jobs WHERE state IN ({states})")  # noqa: S608 -- ours
    return await ledger.read(lambda connection: connection.execute(query).scalar_one())


async def completed(ledger: Ledger) -> int:
    query = text("SELECT count(*) FROM towpath_jobs WHERE state = 'completed'")
    return await ledger.read(lambda connection: connection.execute(query).scalar_one())


def violations(
    found: dict[str, RecordRow], steps: dict[str, list[StateChange]], ran: dict[str, set[int]]
) -> list[str]:
    """Violations of I4 or I12: records that did not end once, by the last attempt that began. A
    handler returns its token, so the row's result names the attempt that was accepted. An attempt
    that the row has not seen begin is allowed only after the database was restored from an older
    one.
    """
    wrong = not_once(found, steps)
    for id, row in found.items():
        if row.state == "completed":
            token = int(row.result or 0)
            if token < row.fence or token not in ran[id]:
                wrong.append(f"{id} was completed by {row.result}, its fence is {row.fence}")
    return wrong


def not_once(found: dict[str, RecordRow], steps: dict[str, list[StateChange]]) -> list[str]:
    """Records that were not completed exactly once, and are not dead with a reason either."""
    wrong: list[str] = []
    for id, row in found.items():
        ends = [step for step in steps[id] if step.new == "completed"]
        if row.state == "dead" and row.last_error:
            continue
        if row.state != "completed":
            wrong.append(f"{id} is {row.state}")
        elif len(ends) != 1 or steps[id][-1] != ends[0]:
            wrong.append(f"{id} was completed {len(ends)} times: {steps[id]}")
    return wrong


def out_of_order(found: dict[str, RecordRow]) -> list[str]:
    """I24: records of a lane that were completed before one that was made before them."""
    wrong: list[str] = []
    last: dict[str, tuple[int, str]] = {}
    for id, row in found.items():
        if row.lane is not None and row.state == "completed":
            token = int(row.result or 0)
            before, other = last.get(row.lane, (0, ""))
            if token < before:
                wrong.append(f"{id} was completed by {token}, {other} of its lane by {before}")
            last[row.lane] = max((token, id), (before, other))
    return wrong


def regressions(steps: dict[str, list[StateChange]]) -> list[str]:
    """Records whose fencing token went back, or that left an ended state."""
    wrong: list[str] = []
    for id, one in steps.items():
        fences = [step.fence for step in one]
        if fences != sorted(fences):
            wrong.append(f"{id}: the fence went back: {fences}")
        if any(step.old in {"completed", "dead", "cancelled", "superseded"} for step in one):
            wrong.append(f"{id} was taken up again: {one}")
    return wrong
