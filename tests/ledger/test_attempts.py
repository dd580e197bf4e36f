"""Attempts at records: each begins under a token, and ends once."""

import asyncio

import msgspec
from sqlalchemy import text

from tests.ledger.records import REVIEWS, lease, made
from towpath import hours
from towpath.engine.model import Bury, Complete, Fail, Lease, Release
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.attempts import Ending, Standing
from towpath.ledger.records.record import RecordState


class TestBeginningAnAttempt:
    async def test_returns_the_rows_payload_and_count(self, ledger: Ledger) -> None:
        record = await made(ledger, max_attempts=3)
        begun = await ledger.jobs.begin(lease(record, 10))
        assert begun.standing is Standing.BEGUN
        assert (begun.payload, begun.attempt, begun.max_attempts) == (b'"x"', 1, 3)
        now = await ledger.jobs.get(REVIEWS, "a")
        assert (now.state, now.fence, now.attempts) == (RecordState.RUNNING, 10, 1)
        assert now.started_at is not None

    async def test_again_after_a_lost_answer_is_the_same_attempt(self, ledger: Ledger) -> None:
        record = await made(ledger)
        first = await ledger.jobs.begin(lease(record, 10))
        assert await ledger.jobs.begin(lease(record, 10)) == first

    async def test_under_a_later_token_makes_an_earlier_one_stale(self, ledger: Ledger) -> None:
        record = await made(ledger)
        await ledger.jobs.begin(lease(record, 10))
        assert (await ledger.jobs.begin(lease(record, 11))).attempt == 2
        assert (await ledger.jobs.begin(lease(record, 10))).standing is Standing.STALE

    async def test_after_a_lease_that_ended_in_an_outage_does_not_count_that_attempt(
        self, ledger: Ledger
    ) -> None:
        record = await made(ledger, max_attempts=1)
        await ledger.jobs.begin(lease(record, 10))
        excused = msgspec.structs.replace(lease(record, 11), is_excused=True)
        begun = await ledger.jobs.begin(excused)
        assert (begun.standing, begun.attempt) == (Standing.BEGUN, 1)

    async def test_without_attempts_left_makes_the_record_dead_if_its_worker_died(
        self, ledger: Ledger
    ) -> None:
        """A job without a record is dead when its lease ends, too."""
        record = await made(ledger, max_attempts=1)
        await ledger.jobs.begin(lease(record, 10))
        begun = await ledger.jobs.begin(lease(record, 11))
        assert (begun.standing, begun.state) == (Standing.ENDED, RecordState.DEAD)
        now = await ledger.jobs.get(REVIEWS, "a")
        assert (now.state, now.attempts) == (RecordState.DEAD, 1)

    async def test_after_five_deaths_of_workers_makes_the_record_dead(self, ledger: Ledger) -> None:
        record = await made(ledger)
        for token in range(10, 15):
            begun = await ledger.jobs.begin(lease(record, token))
            assert begun.standing is Standing.BEGUN
        last = msgspec.structs.replace(lease(record, 15), deaths=5)
        assert (await ledger.jobs.begin(last)).state is RecordState.DEAD
        assert (await ledger.jobs.get(REVIEWS, "a")).last_error is not None

    async def test_at_an_ended_record_is_refused(self, ledger: Ledger) -> None:
        record = await made(ledger)
        mine = lease(record, 10)
        await ledger.jobs.begin(mine)
        await ledger.jobs.end(Ending(mine, Complete(mine, b"1"), cancelled=False))
        begun = await ledger.jobs.begin(lease(record, 11))
        assert (begun.standing, begun.state) == (Standing.ENDED, RecordState.COMPLETED)

    async def test_without_a_row_reports_that(self, ledger: Ledger) -> None:
        record = await made(ledger)
        await ledger.write(lambda connection: connection.execute(text("DELETE FROM towpath_jobs")))
        assert (await ledger.jobs.begin(lease(record, 10))).standing is Standing.MISSING

    async def test_together_with_many_others_is_answered_for_each(self, ledger: Ledger) -> None:
        records = [await made(ledger, f"r{n}") for n in range(6)]
        ended = lease(records[0], 5)
        await ledger.jobs.begin(ended)
        await ledger.jobs.end(Ending(ended, Complete(ended), cancelled=False))
        await ledger.jobs.begin(lease(records[1], 50))
        begun = await asyncio.gather(*(ledger.jobs.begin(lease(record, 10)) for record in records))
        assert [attempt.standing for attempt in begun] == [
            Standing.ENDED, Standing.STALE, *[Standing.BEGUN] * 4
        ]  # fmt: skip


class TestEndingAnAttempt:
    async def begun(self, ledger: Ledger, token: int = 10) -> Lease:
        mine = lease(await made(ledger), token)
        await ledger.jobs.begin(mine)
        return mine

    async def test_keeps_its_result(self, ledger: Ledger) -> None:
        mine = await self.begun(ledger)
        ending = Ending(mine, Complete(mine, b"42"), cancelled=False)
        assert await ledger.jobs.end(ending) is RecordState.COMPLETED
        record = await ledger.jobs.get(REVIEWS, "a")
        assert (record.result, record.open) == (b"42", False)
        assert record.finished_at is not None
        # Again, as after a lost answer: the same answer, nothing changes.
        assert await ledger.jobs.end(ending) is RecordState.COMPLETED
        assert await ledger.jobs.get(REVIEWS, "a") == record

    async def test_that_is_stale_changes_nothing(self, ledger: Ledger) -> None:
        mine = await self.begun(ledger)
        record = await ledger.jobs.get(REVIEWS, "a")
        await ledger.jobs.begin(lease(record, 11))
        before = await ledger.jobs.get(REVIEWS, "a")
        for word in (Complete(mine, b"1"), Fail(mine, "no"), Bury(mine, "no"), Release(mine)):
            assert await ledger.jobs.end(Ending(mine, word, cancelled=False)) is None
        assert await ledger.jobs.get(REVIEWS, "a") == before

    async def test_twice_counts_once(self, ledger: Ledger) -> None:
        first = await self.begun(ledger)
        record = await ledger.jobs.get(REVIEWS, "a")
        second = lease(record, 11)
        await ledger.jobs.begin(second)
        answers = await asyncio.gather(
            ledger.jobs.end(Ending(first, Complete(first, b"1"), cancelled=False)),
            ledger.jobs.end(Ending(second, Complete(second, b"2"), cancelled=False)),
        )
        assert answers == [None, RecordState.COMPLETED]
        assert (await ledger.jobs.get(REVIEWS, "a")).result == b"2"

    async def test_by_a_failure_waits_for_the_next_one(self, ledger: Ledger) -> None:
        mine = await self.begun(ledger)
        ending = Ending(mine, Fail(mine, "boom\0", hours(1)), cancelled=False)
        assert await ledger.jobs.end(ending) is RecordState.FAILED
        record = await ledger.jobs.get(REVIEWS, "a")
        assert record.last_error == "boom\N{REPLACEMENT CHARACTER}"
        assert record.next_try_at is not None
        assert record.started_at is not None
        assert record.next_try_at - record.started_at >= hours(1)

    async def test_as_dead_keeps_the_reason(self, ledger: Ledger) -> None:
        mine = await self.begun(ledger)
        await ledger.jobs.end(Ending(mine, Bury(mine, "poison"), cancelled=False))
        record = await ledger.jobs.get(REVIEWS, "a")
        assert (record.state, record.last_error) == (RecordState.DEAD, "poison")

    async def test_by_a_release_does_not_count_it(self, ledger: Ledger) -> None:
        mine = await self.begun(ledger)
        await ledger.jobs.end(Ending(mine, Release(mine), cancelled=False))
        record = await ledger.jobs.get(REVIEWS, "a")
        assert (record.state, record.attempts) == (RecordState.PENDING, 0)
