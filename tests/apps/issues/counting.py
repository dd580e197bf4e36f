"""How much work something is: statements of the database, and scripts of the store."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from towpath.embedded import EmbeddedServer
from towpath.embedded.process import ask_fields


@contextmanager
def statements() -> Generator[list[str]]:
    """Statements that databases are asked to execute meanwhile; one with many rows is one."""
    executed: list[str] = []

    def note(_: object, __: object, statement: str, *___: Any) -> None:
        executed.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield executed
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def scripts_run(server: EmbeddedServer) -> int:
    """How many scripts the store was asked to run since it started."""
    stats = ask_fields(server.address, "INFO", "commandstats")
    counted = [it for name, it in stats.items() if name in ("cmdstat_evalsha", "cmdstat_eval")]
    return sum(int(it.partition("calls=")[2].partition(",")[0]) for it in counted)
