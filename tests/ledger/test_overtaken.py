"""On SQLite a change is decided without the write lock: changes by others meanwhile are
respected.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine

from tests.faults.planting import PlantedFault, planted
from tests.ledger.records import REVIEWS, lease, made
from tests.waiting import HANGS
from towpath.engine.model import Complete, Fail
from towpath.ledger.errors import RecordNotDead
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.attempts import Ending, Standing
from towpath.ledger.records.record import RecordState


@pytest.fixture
async def other(prepared_file_url: str) -> AsyncGenerator[Ledger]:
    """The same database in another process, as far as the database can tell."""
    async with Ledger(prepared_file_url) as ledger:
        yield ledger


@pytest.fixture
async def ledger(prepared_file_url: str) -> AsyncGenerator[Ledger]:
    async with Ledger(prepared_file_url) as ledger:
        await ledger.keys.list()
        yield ledger


@contextmanager
def held_up() -> Generator[tuple[threading.Event, threading.Event]]:
    """The next change stands still when all is decided, just before it takes the lock."""
    decided, go_on = threading.Event(), threading.Event()

    def ready(connection: Connection, *_: Any) -> None:
        if connection.info.get("towpath.to_begin") == "BEGIN IMMEDIATE" and not decided.is_set():
            decided.set()
            go_on.wait(HANGS)

    event.listen(Engine, "before_cursor_execute", ready)
    try:
        yield decided, go_on
    finally:
        go_on.set()
        event.remove(Engine, "before_cursor_execute", ready)


async def overtaken(change: Awaitable[Any], by: Callable[[], Awaitable[Any]]) -> Any:
    """The result of *change* if something else happens after it was decided."""
    with held_up() as (decided, go_on):
        task = asyncio.ensure_future(change)
        assert await asyncio.to_thread(decided.wait, 30)
        await by()
        go_on.set()
        return await task


async def test_an_attempt_that_lost_its_record_does_not_end_it(
    ledger: Ledger, other: Ledger
) -> None:
    record = await made(ledger)
    first, second = lease(record, 1), lease(record, 2)
    await ledger.jobs.begin(first)
    ending = Ending(first, Complete(first), cancelled=False)
    assert await overtaken(ledger.jobs.end(ending), lambda: other.jobs.begin(second)) is None
    now = await ledger.jobs.get(REVIEWS, "a")
    assert (now.state, now.fence, now.attempts) == (RecordState.RUNNING, 2, 2)


async def test_an_attempt_that_is_late_does_not_begin(ledger: Ledger, other: Ledger) -> None:
    record = await made(ledger)
    late = ledger.jobs.begin(lease(record, 1))
    begun = await overtaken(late, lambda: other.jobs.begin(lease(record, 2)))
    assert begun.standing is Standing.STALE
    assert (await ledger.jobs.get(REVIEWS, "a")).fence == 2


async def test_a_record_that_is_cancelled_meanwhile_is_not_tried_again(
    ledger: Ledger, other: Ledger
) -> None:
    record = await made(ledger)
    only = lease(record, 1)
    await ledger.jobs.begin(only)
    failed = ledger.jobs.end(Ending(only, Fail(only, "no"), cancelled=False))
    state = await overtaken(failed, lambda: other.jobs.cancel(REVIEWS, "a"))
    assert state is RecordState.CANCELLED


async def test_a_record_that_begins_meanwhile_is_asked_to_stop(
    ledger: Ledger, other: Ledger
) -> None:
    record = await made(ledger)
    cancelled = ledger.jobs.cancel(REVIEWS, "a")
    found = await overtaken(cancelled, lambda: other.jobs.begin(lease(record, 1)))
    assert (found.state, found.cancel_requested) == (RecordState.RUNNING, True)


async def test_one_of_two_concurrent_retries_counts(ledger: Ledger, other: Ledger) -> None:
    await made(ledger)
    await ledger.jobs.cancel(REVIEWS, "a")
    with pytest.raises(RecordNotDead):
        await overtaken(ledger.jobs.retry(REVIEWS, "a"), lambda: other.jobs.retry(REVIEWS, "a"))


async def test_the_latest_of_a_subject_is_decided_at_the_commit(
    ledger: Ledger, other: Ledger
) -> None:
    old = made(ledger, "old", subject="s", version=1)
    found = await overtaken(old, lambda: made(other, "new", subject="s", version=2))
    assert found.state is RecordState.SUPERSEDED
    assert (await ledger.jobs.get(REVIEWS, "new")).state is RecordState.PENDING


async def test_one_of_two_concurrent_submits_creates_the_record(
    ledger: Ledger, other: Ledger
) -> None:
    second = ledger.jobs.submit(REVIEWS, b'"x"', id="a")
    recorded = await overtaken(second, lambda: made(other))
    assert recorded.existed
    assert (await ledger.jobs.counts(REVIEWS))[RecordState.PENDING] == 1


async def test_a_planted_fault_in_the_comparison_is_found(ledger: Ledger, other: Ledger) -> None:
    """The decision is not compared with the row."""
    fault = PlantedFault("not compared", "attempts", "rewrite", "raise Overtaken", "pass")
    with planted(fault), pytest.raises(AssertionError):
        await test_an_attempt_that_lost_its_record_does_not_end_it(ledger, other)
