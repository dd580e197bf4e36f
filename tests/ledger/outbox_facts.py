"""Facts about an outbox, to assert and to wait for."""

from typing import Any, cast

import pytest

from tests.waiting import eventually_async
from towpath.ledger.ledger import Ledger


async def pending(ledger: Ledger, sink: str = "events") -> int:
    """How many events wait for *sink*."""
    return (await ledger.outbox.counts())[sink].pending


async def all_gone(ledger: Ledger, sink: str = "events") -> None:
    """Returns when no event waits for *sink* any more."""
    await at_most(ledger, 0, sink)


async def at_most(ledger: Ledger, number: int, sink: str = "events") -> None:
    """Returns when at most so many events wait for *sink*."""

    async def are() -> bool:
        return await pending(ledger, sink) <= number

    await eventually_async(are)


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    """The log lines of one event."""
    found = [
        cast("dict[str, Any]", record.msg) for record in caplog.records if record.name == "towpath"
    ]
    return [line for line in found if line["event"] == event]


async def said(caplog: pytest.LogCaptureFixture, event: str, *, times: int = 1) -> None:
    """Returns when *event* is in the log so often."""

    async def is_there() -> bool:
        return len(lines(caplog, event)) >= times

    await eventually_async(is_there)
