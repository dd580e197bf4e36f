"""The changes of an application: its rows, recorded jobs and events together, or none of them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.engine import Connection

from tests.ledger.lending import LendingRelease, release
from tests.waiting import eventually_async
from towpath import Towpath
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.errors import InvalidOption
from towpath.ledger.database.writing import Decide, Overtaken, Write
from towpath.ledger.errors import LedgerBusy, LedgerRefused
from towpath.ledger.ledger import Ledger
from towpath.ledger.outbox.event import NewEvent
from towpath.ledger.records.record import Recorded
from towpath.ledger.records.relay import Relay
from towpath.telemetry.logs import Log


@pytest.fixture
def lending(tmp_path: Path) -> LendingRelease:
    return release(tmp_path, 2)


@pytest.fixture
async def library(url: str, ledger: Ledger, lending: LendingRelease) -> AsyncIterator[Ledger]:
    """A ledger with the tables of an application, and a sink for its events."""
    async with Ledger(url, tables=[lending], sinks=["events"]) as library:
        await library.migrate()
        await library.write(
            lambda connection: connection.execute(insert(lending.books), {"id": 1, "title": "x"})
        )
        yield library


def lend(
    library: Ledger,
    lending: LendingRelease,
    number: int,
    *,
    then: Callable[[], None] = lambda: None,
) -> Decide[tuple[Recorded, list[Recorded]]]:
    """Lends the book: a row, a job that reminds of it, and an event."""

    def decide(connection: Connection) -> Write[tuple[Recorded, list[Recorded]]]:
        [title] = connection.scalars(select(lending.books.c.title)).all()
        event = NewEvent(type="library.book.lent", key=title, data=b"{}")
        told = library.outbox.putting([event])
        reminder = library.jobs.submitting(connection, "reminders", b"1", id=f"remind-{number}")
        row = insert(lending.loans).values(id=number, book=1)

        def write(connection: Connection) -> tuple[Recorded, list[Recorded]]:
            recorded = reminder(connection)
            connection.execute(row)
            told(connection)
            then()
            return recorded, [recorded]

        return write

    return decide


async def standing(library: Ledger, lending: LendingRelease) -> tuple[int, int, int]:
    """How many loans, reminders and events there are."""
    loans = await library.read(
        lambda connection: len(connection.execute(select(lending.loans)).all())
    )
    page = await library.jobs.list("reminders")
    return loans, len(page.records), (await library.outbox.counts())["events"].pending


class TestAChangeOfAnApplication:
    async def test_makes_row_job_and_event_together(
        self, library: Ledger, lending: LendingRelease
    ) -> None:
        recorded = await library.jobs.decide(lend(library, lending, 1))
        assert (recorded.record.id, recorded.existed) == ("remind-1", False)
        assert await standing(library, lending) == (1, 1, 1)

    async def test_that_fails_makes_no_row_job_or_event(
        self, library: Ledger, lending: LendingRelease
    ) -> None:
        """Its own code may fail at the end, or the database refuses a row."""

        def fail() -> None:
            raise ValueError("out of ink")

        with pytest.raises(ValueError, match="out of ink"):
            await library.jobs.decide(lend(library, lending, 1, then=fail))
        assert await standing(library, lending) == (0, 0, 0)
        await library.jobs.decide(lend(library, lending, 1))
        with pytest.raises(LedgerRefused):
            await library.jobs.decide(lend(library, lending, 1))
        assert await standing(library, lending) == (1, 1, 1)

    async def test_that_fails_does_not_fail_others_at_the_same_time(
        self, library: Ledger, lending: LendingRelease
    ) -> None:
        numbers = (1, 1, 2, 2, 3)
        done = await asyncio.gather(
            *(library.jobs.decide(lend(library, lending, number)) for number in numbers),
            return_exceptions=True,
        )
        assert sum(isinstance(outcome, LedgerRefused) for outcome in done) == 2
        assert await standing(library, lending) == (3, 3, 3)

    async def test_that_was_overtaken_is_decided_again(
        self, library: Ledger, lending: LendingRelease
    ) -> None:
        """It read before another change was written: nothing of its first try is kept."""
        looks: list[int] = []

        def decide(connection: Connection) -> Write[tuple[Recorded, list[Recorded]]]:
            looks.append(1)
            return lend(library, lending, len(looks), then=overtaken)(connection)

        def overtaken() -> None:
            if len(looks) == 1:
                raise Overtaken

        assert (await library.jobs.decide(decide)).record.id == "remind-2"
        assert await standing(library, lending) == (1, 1, 1)

    async def test_that_is_overtaken_each_time_is_refused_temporarily(
        self, library: Ledger, lending: LendingRelease
    ) -> None:
        """On PostgreSQL this may happen to a change that did not lock what it read."""

        def overtaken() -> None:
            raise Overtaken

        with pytest.raises(LedgerBusy):
            await library.jobs.decide(lend(library, lending, 1, then=overtaken))
        assert await standing(library, lending) == (0, 0, 0)

    async def test_of_a_row_alone_reads_its_own_changes(
        self, library: Ledger, lending: LendingRelease
    ) -> None:
        books = lending.books
        changed = update(books).values(title="y").returning(books.c.title)
        assert await library.write(lambda connection: connection.scalar(changed)) == "y"
        assert (
            await library.read(lambda connection: connection.scalar(select(books.c.title))) == "y"
        )

    async def test_with_an_invalid_job_is_refused_before_anything_is_written(
        self, library: Ledger
    ) -> None:
        def decide(connection: Connection) -> Write[Any]:
            return library.jobs.submitting(connection, "reminders", b"1", priority=1000)

        with pytest.raises(InvalidOption, match="priority"):
            await library.decide(decide)


class TestTheJobOfAChange:
    async def test_runs_after_the_commit(
        self, server: EmbeddedServer, library: Ledger, lending: LendingRelease
    ) -> None:
        app = Towpath(server.url, ledger=library)

        @app.handler("reminders", record=True)
        async def remind(number: int) -> None:
            pass

        async with app:
            await library.jobs.decide(lend(library, lending, 1))

            async def is_there() -> bool:
                return (await app.engine.inspect.counts("reminders")).ready == 1

            await eventually_async(is_there)

    async def test_is_enqueued_in_redis_at_once_by_the_process_that_made_it(
        self, library: Ledger, lending: LendingRelease
    ) -> None:
        """No relay has to poll for it, and a job that was rolled back never reaches Redis."""
        relay = Relay(library, Engine("redis://nobody-is-asked.invalid"), log=Log())
        queued = list[int]()

        async def enqueue_stored(seqs: Sequence[int]) -> None:
            queued.extend(seqs)

        relay.enqueue_stored = enqueue_stored
        library.jobs.relay = relay
        recorded = await library.jobs.decide(lend(library, lending, 1))
        with pytest.raises(LedgerRefused):
            await library.jobs.decide(lend(library, lending, 1))
        await library.close()
        assert queued == [recorded.record.seq]
