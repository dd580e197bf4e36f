"""Jobs that have a record: the row decides, so commands change the row where there is one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from towpath.console.verb import Session, open_ledger
from towpath.errors import InvalidOption

if TYPE_CHECKING:
    from towpath.engine.engine import Engine
    from towpath.engine.model import JobRef

Retry = Callable[["JobRef"], Awaitable[str]]


@asynccontextmanager
async def retrying(session: Session, engine: Engine) -> AsyncGenerator[Retry]:
    """What gives a dead job its attempts back: its record, if the ledger has one, or the job."""
    from towpath.ledger.errors import LedgerNotInstalled  # noqa: PLC0415 -- a help text needs none

    try:
        ledger = open_ledger(session, None)
    except (InvalidOption, LedgerNotInstalled):
        yield engine.retry  # no database: there are no records
        return
    from towpath.app.job import STATES  # noqa: PLC0415 -- slow to import
    from towpath.ledger.errors import LedgerAbsent, RecordNotFound  # noqa: PLC0415 -- the same
    from towpath.ledger.records.record import first_name  # noqa: PLC0415 -- the same
    from towpath.ledger.records.relay import Relay  # noqa: PLC0415 -- the same
    from towpath.telemetry.logs import Silent  # noqa: PLC0415 -- the same

    async with ledger, Relay(ledger, lambda: engine, log=Silent()):

        async def retry(ref: JobRef) -> str:
            try:
                record = await ledger.jobs.retry(ref.queue, first_name(ref.id))
            except (RecordNotFound, LedgerAbsent):
                return await engine.retry(ref)
            return STATES[record.state]

        yield retry
