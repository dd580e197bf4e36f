"""Records: jobs whose truth is a row. One per id; of one subject the latest counts."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import text

from tests.ledger.records import REVIEWS, lease, made
from towpath import minutes, seconds
from towpath.clock import ZERO
from towpath.engine.model import Bury, Complete, Fail, Release
from towpath.errors import InvalidName, InvalidOption, NotOwned
from towpath.ledger.errors import RecordEnded, RecordNotDead, RecordNotFound
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.attempts import Ending, Standing
from towpath.ledger.records.record import RecordState
from towpath.ledger.records.supersession import LOOKED_BACK, histories


class TestSubmittingARecord:
    async def test_stores_it_as_it_was_given(self, ledger: Ledger) -> None:
        recorded = await ledger.jobs.submit(
            REVIEWS, b"\x00\xff", id="o:7#1", priority=100, lane="u1", max_attempts=3,
            headers={"trace": "t"}, delay=minutes(5),
        )  # fmt: skip
        assert not recorded.existed
        record = await ledger.jobs.get(REVIEWS, "o:7#1")
        assert record == recorded.record
        assert record.state is RecordState.PENDING
        assert (record.payload, record.priority, record.lane) == (b"\x00\xff", 100, "u1")
        assert (record.max_attempts, record.headers) == (3, {"trace": "t"})
        assert record.due_at is not None
        assert record.due_at - record.created_at == timedelta(minutes=5)

    async def test_twice_under_one_id_keeps_the_first(self, ledger: Ledger) -> None:
        first = await ledger.jobs.submit(REVIEWS, b"1", id="a")
        second = await ledger.jobs.submit(REVIEWS, b"2", id="a")
        assert second.existed
        assert second.record == first.record
        assert not (await ledger.jobs.submit("others", b"2", id="a")).existed

    async def test_together_with_many_others_creates_each_once(self, ledger: Ledger) -> None:
        ids = [f"r{n % 50}" for n in range(200)]
        answers = await asyncio.gather(*(ledger.jobs.submit(REVIEWS, b"1", id=id) for id in ids))
        assert sum(not answer.existed for answer in answers) == 50
        assert (await ledger.jobs.counts(REVIEWS))[RecordState.PENDING] == 50

    async def test_in_two_processes_creates_it_once(self, url: str, ledger: Ledger) -> None:
        async with Ledger(url) as other:
            for n in range(20):
                both = await asyncio.gather(
                    ledger.jobs.submit(REVIEWS, b"1", id=f"r{n}", subject="s", version=n),
                    other.jobs.submit(REVIEWS, b"1", id=f"r{n}", subject="s", version=n),
                )
                assert sorted(answer.existed for answer in both) == [False, True]

    async def test_checks_names_and_options_before_it_writes(self, ledger: Ledger) -> None:
        with pytest.raises(InvalidName) as misnamed:
            await ledger.jobs.submit("Not A Queue", b"")
        assert misnamed.value.value == "Not A Queue"
        with pytest.raises(InvalidName, match="500") as misnamed:
            await ledger.jobs.submit(REVIEWS, b"", id="x" * 501)
        assert misnamed.value.value == "x" * 501
        with pytest.raises(InvalidName, match="~") as misnamed:
            await ledger.jobs.submit(REVIEWS, b"", id="a~2")
        assert misnamed.value.value == "a~2"
        with pytest.raises(InvalidOption) as refusal:
            await ledger.jobs.submit(REVIEWS, b"", priority=101)
        assert (refusal.value.option, refusal.value.value) == ("priority", 101)
        with pytest.raises(InvalidOption) as refusal:
            await ledger.jobs.submit(REVIEWS, b"", version=1)
        assert (refusal.value.option, refusal.value.value) == ("subject", None)
        with pytest.raises(InvalidName) as misnamed:
            await ledger.jobs.submit(REVIEWS, b"", subject="s", revision="x" * 129)
        assert (misnamed.value.kind, misnamed.value.value) == ("revision", "x" * 129)
        assert sum((await ledger.jobs.counts(REVIEWS)).values()) == 0

    async def test_with_an_invalid_option_does_not_fail_others(self, ledger: Ledger) -> None:
        good, bad, also = await asyncio.gather(
            ledger.jobs.submit(REVIEWS, b"", id="a"),
            ledger.jobs.submit(REVIEWS, b"", priority=-1),
            ledger.jobs.submit(REVIEWS, b"", id="b"),
            return_exceptions=True,
        )
        assert isinstance(bad, InvalidOption)
        assert not isinstance(good, BaseException)
        assert not isinstance(also, BaseException)


class TestARecordOfASubject:
    async def test_supersedes_older_ones_that_have_not_begun(self, ledger: Ledger) -> None:
        await made(ledger, "old", subject="pr-7", version=1)
        newer = await ledger.jobs.submit(REVIEWS, b"", id="new", subject="pr-7", version=2)
        await made(ledger, "else", subject="pr-8", version=1)
        assert newer.superseded == ("old",)
        old = await ledger.jobs.get(REVIEWS, "old")
        assert old.state is RecordState.SUPERSEDED
        assert "new" in (old.last_error or "").split()
        assert old.finished_at is not None
        assert (await ledger.jobs.get(REVIEWS, "new")).state is RecordState.PENDING
        assert (await ledger.jobs.get(REVIEWS, "else")).state is RecordState.PENDING

    async def test_is_superseded_at_once_if_it_is_older_than_another(self, ledger: Ledger) -> None:
        await made(ledger, "new", subject="pr-7", version=2)
        late = await ledger.jobs.submit(REVIEWS, b"", id="old", subject="pr-7", version=1)
        assert late.record.state is RecordState.SUPERSEDED
        assert (await ledger.jobs.get(REVIEWS, "new")).state is RecordState.PENDING

    async def test_that_runs_is_not_stopped_but_not_run_again(self, ledger: Ledger) -> None:
        old = await made(ledger, "old", subject="pr-7", version=1)
        await ledger.jobs.begin(lease(old, 10))
        await made(ledger, "new", subject="pr-7", version=2)
        assert (await ledger.jobs.get(REVIEWS, "old")).state is RecordState.RUNNING
        failed = Ending(lease(old, 10), Fail(lease(old, 10), "no", seconds(1)), cancelled=False)
        assert await ledger.jobs.end(failed) is RecordState.FAILED
        assert (await ledger.jobs.begin(lease(old, 11))).standing is Standing.ENDED
        assert (await ledger.jobs.get(REVIEWS, "old")).state is RecordState.SUPERSEDED

    async def test_is_the_latest_whatever_the_order_of_submits(
        self, url: str, ledger: Ledger
    ) -> None:
        async with Ledger(url) as other:
            arrivals = [
                (ledger if n % 2 else other).jobs.submit(
                    REVIEWS, b"", id=f"r{n % 5}", subject="pr-7", version=(n % 5) // 2
                )
                for n in (3, 0, 4, 2, 1, 4, 3, 0)
            ]
            await asyncio.gather(*arrivals)
        states = {
            str(record.id): record.state for record in (await ledger.jobs.list(REVIEWS)).records
        }
        assert states.pop("r4") is RecordState.PENDING
        assert set(states.values()) == {RecordState.SUPERSEDED}


class TestARecordOfAnOwner:
    async def test_is_cancelled_only_for_its_owner(self, ledger: Ledger) -> None:
        await made(ledger, "owned", owner="shop")
        await made(ledger, "nobody's")
        running = await made(ledger, "running", owner="shop")
        await ledger.jobs.begin(lease(running, 10))
        for id in ("owned", "nobody's", "running"):
            before = await ledger.jobs.get(REVIEWS, id)
            with pytest.raises(NotOwned):
                await ledger.jobs.cancel(REVIEWS, id, for_owner="other")
            assert await ledger.jobs.get(REVIEWS, id) == before
        assert (await ledger.jobs.cancel(REVIEWS, "running", for_owner="shop")).cancel_requested
        cancelled = await ledger.jobs.cancel(REVIEWS, "owned", for_owner="shop")
        assert (cancelled.state, cancelled.owner) == (RecordState.CANCELLED, "shop")

    async def test_that_has_ended_is_refused_to_others_as_one_that_waits(
        self, ledger: Ledger
    ) -> None:
        done = await made(ledger, "a", owner="shop")
        await ledger.jobs.begin(lease(done, 10))
        completed = Ending(lease(done, 10), Complete(lease(done, 10), b""), cancelled=False)
        await ledger.jobs.end(completed)
        with pytest.raises(NotOwned):
            await ledger.jobs.cancel(REVIEWS, "a", for_owner="other")
        with pytest.raises(RecordEnded):
            await ledger.jobs.cancel(REVIEWS, "a", for_owner="shop")

    async def test_whose_options_cannot_be_read_has_no_owner(self, ledger: Ledger) -> None:
        await made(ledger, "a", owner="shop", subject="pr-7")
        spoil = text("UPDATE towpath_jobs SET options = '{\"owner\": 7'")
        await ledger.decide(lambda _: lambda writer: writer.execute(spoil))
        assert (await ledger.jobs.get(REVIEWS, "a")).owner is None
        with pytest.raises(NotOwned):
            await ledger.jobs.cancel(REVIEWS, "a", for_owner="shop")
        newer = await ledger.jobs.submit(REVIEWS, b"", id="b", owner="shop", subject="pr-7")
        assert newer.superseded == ()

    async def test_is_superseded_only_by_one_of_its_owner(self, ledger: Ledger) -> None:
        await made(ledger, "first", owner="shop", subject="pr-7", version=1)
        await made(ledger, "plain", subject="pr-7", version=1)
        other = await ledger.jobs.submit(
            REVIEWS, b"", id="other", owner="bot", subject="pr-7", version=9
        )
        assert other.superseded == ()
        last = await ledger.jobs.submit(
            REVIEWS, b"", id="last", owner="shop", subject="pr-7", version=2
        )
        assert last.superseded == ("first",)
        late = await made(ledger, "late", owner="shop", subject="pr-7", version=1)
        assert late.state is RecordState.SUPERSEDED
        assert await waiting(ledger) == {"plain", "other", "last"}

    async def test_beside_those_of_other_owners_supersedes_only_its_owners(
        self, ledger: Ledger
    ) -> None:
        answers = await asyncio.gather(
            *(
                ledger.jobs.submit(REVIEWS, b"", id=f"{owner}-{n}", owner=owner, subject="pr-7")
                for n in range(3)
                for owner in ("shop", "bot")
            )
        )
        assert await waiting(ledger) == {"shop-2", "bot-2"}
        for answer in answers:
            owners = {id.partition("-")[0] for id in answer.superseded}
            assert owners <= {answer.record.owner}

    async def test_of_one_event_is_one_record_per_owner(self, ledger: Ledger) -> None:
        event: dict[str, object] = {"subject": "s", "version": 1, "revision": "c"}
        records = [
            await made(ledger, f"r{n}", owner=owner, **event)
            for n, owner in enumerate(("shop", "bot", "shop", "bot"))
        ]
        assert [record.id for record in records] == ["r0", "r1", "r0", "r1"]

    async def test_waits_however_many_other_owners_submit(self, ledger: Ledger) -> None:
        await made(ledger, "old", owner="shop", subject="s")
        for n in range(LOOKED_BACK + 2):
            await made(ledger, f"r{n}", owner="bot", subject="s")
        assert await waiting(ledger) == {"old", f"r{LOOKED_BACK + 1}"}
        newer = await ledger.jobs.submit(REVIEWS, b"", id="new", owner="shop", subject="s")
        assert newer.superseded == ("old",)
        assert await waiting(ledger) == {"new", f"r{LOOKED_BACK + 1}"}

    async def test_that_was_superseded_does_not_come_back_by_another_owners_record(
        self, ledger: Ledger
    ) -> None:
        await made(ledger, "old", owner="shop", subject="pr-7")
        await made(ledger, "new", owner="shop", subject="pr-7")
        await ledger.jobs.cancel(REVIEWS, "new")
        await ledger.jobs.delete(REVIEWS, "new")
        await made(ledger, "other", owner="bot", subject="pr-7")
        assert (await ledger.jobs.get(REVIEWS, "old")).state is RecordState.SUPERSEDED

    async def test_that_failed_runs_again_beside_a_newer_one_of_another_owner(
        self, ledger: Ledger
    ) -> None:
        old = await made(ledger, "old", owner="shop", subject="pr-7")
        await ledger.jobs.begin(lease(old, 10))
        failed = Ending(lease(old, 10), Fail(lease(old, 10), "no", ZERO), cancelled=False)
        await ledger.jobs.end(failed)
        await made(ledger, "new", owner="bot", subject="pr-7")
        assert (await ledger.jobs.begin(lease(old, 11))).standing is Standing.BEGUN


async def waiting(ledger: Ledger) -> set[str]:
    page = await ledger.jobs.list(REVIEWS, state=RecordState.PENDING, size=200)
    return {str(record.id) for record in page.records}


class TestTheLatestOfASubject:
    async def test_is_the_last_submitted_if_none_has_a_version(self, ledger: Ledger) -> None:
        await made(ledger, "b", subject="pr-7")
        last = await ledger.jobs.submit(REVIEWS, b"", id="a", subject="pr-7")
        assert last.superseded == ("b",)

    async def test_is_searched_among_the_last_ones_only(self, ledger: Ledger) -> None:
        """The cost is the same with any history (I26)."""
        for n in range(LOOKED_BACK + 5):
            await made(ledger, f"r{n}", subject="s", revision=f"c{n}", follows=f"c{n - 1}")
        records = (await ledger.jobs.list(REVIEWS, state=RecordState.PENDING)).records
        assert [record.id for record in records] == [f"r{LOOKED_BACK + 4}"]
        key = (REVIEWS, "s")
        assert (
            len((await ledger.read(lambda connection: histories(connection, [key])))[key])
            == LOOKED_BACK
        )

    async def test_is_not_changed_by_an_id_of_another_subject(self, ledger: Ledger) -> None:
        await made(ledger, "a")
        await made(ledger, "b", subject="s", version=9)
        await made(ledger, "c", subject="t", version=1)
        for known in ("a", "b"):
            again = await ledger.jobs.submit(REVIEWS, b"", id=known, subject="t", version=5)
            assert again.existed
        assert (await ledger.jobs.counts(REVIEWS))[RecordState.PENDING] == 3

    async def test_is_one_record_for_one_event_in_a_batch(self, ledger: Ledger) -> None:
        places = [{"subject": "s", "version": 1, "revision": "c"}] * 8
        answers = await asyncio.gather(
            *(made(ledger, f"r{n}", **place) for n, place in enumerate(places))
        )
        assert len({answer.id for answer in answers}) == 1
        assert (await ledger.jobs.counts(REVIEWS))[RecordState.PENDING] == 1


class TestCancellingARecord:
    async def test_that_has_not_begun_ends_it_and_is_safe_to_repeat(self, ledger: Ledger) -> None:
        await made(ledger)
        assert (await ledger.jobs.cancel(REVIEWS, "a")).state is RecordState.CANCELLED
        assert (await ledger.jobs.cancel(REVIEWS, "a")).state is RecordState.CANCELLED

    async def test_that_runs_asks_it_to_stop_unless_it_completes_first(
        self, ledger: Ledger
    ) -> None:
        for id, word, state in (
            ("a", Release, RecordState.CANCELLED),
            ("b", Complete, RecordState.COMPLETED),
        ):
            mine = lease(await made(ledger, id), 10)
            await ledger.jobs.begin(mine)
            assert (await ledger.jobs.cancel(REVIEWS, id)).cancel_requested
            assert await ledger.jobs.end(Ending(mine, word(mine), cancelled=False)) is state

    async def test_that_ran_and_was_lost_ends_it_at_the_next_claim(self, ledger: Ledger) -> None:
        record = await made(ledger)
        await ledger.jobs.begin(lease(record, 10))
        await ledger.jobs.cancel(REVIEWS, "a")
        assert (await ledger.jobs.begin(lease(record, 11))).standing is Standing.ENDED
        assert (await ledger.jobs.get(REVIEWS, "a")).state is RecordState.CANCELLED

    async def test_that_has_ended_otherwise_is_refused(self, ledger: Ledger) -> None:
        mine = lease(await made(ledger), 10)
        await ledger.jobs.begin(mine)
        await ledger.jobs.end(Ending(mine, Complete(mine), cancelled=False))
        with pytest.raises(RecordEnded) as refusal:
            await ledger.jobs.cancel(REVIEWS, "a")
        assert refusal.value.state == "completed"
        with pytest.raises(RecordNotFound):
            await ledger.jobs.cancel(REVIEWS, "b")


class TestRetryingARecord:
    async def test_that_is_dead_gives_it_new_attempts_under_another_id(
        self, ledger: Ledger
    ) -> None:
        mine = lease(await made(ledger), 10)
        await ledger.jobs.begin(mine)
        await ledger.jobs.end(Ending(mine, Bury(mine, "poison"), cancelled=False))
        again = await ledger.jobs.retry(REVIEWS, "a")
        assert (again.id, again.job, again.attempts) == ("a", "a~2", 0)
        assert again.state is RecordState.PENDING
        assert (await ledger.jobs.begin(lease(again, 11))).attempt == 1
        # The old id belongs to no record any more: a worker that still has it has nothing to do.
        assert (await ledger.jobs.begin(mine)).standing is Standing.ENDED

    async def test_that_is_pending_is_refused(self, ledger: Ledger) -> None:
        await made(ledger)
        with pytest.raises(RecordNotDead) as refusal:
            await ledger.jobs.retry(REVIEWS, "a")
        assert refusal.value.state == "pending"


class TestListingRecords:
    async def test_pages_from_the_newest_by_state_and_subject(self, ledger: Ledger) -> None:
        for n in range(5):
            await made(ledger, f"r{n}", subject=f"github:o/r#{n % 2}", version=n)
        page = await ledger.jobs.list(REVIEWS, size=2)
        assert [record.id for record in page.records] == ["r4", "r3"]
        rest = await ledger.jobs.list(REVIEWS, size=3, after=page.after)
        assert [record.id for record in rest.records] == ["r2", "r1", "r0"]
        assert rest.after is None
        pending = await ledger.jobs.list(REVIEWS, state=RecordState.PENDING)
        assert [record.id for record in pending.records] == ["r4", "r3"]
        some = await ledger.jobs.list(REVIEWS, prefix="github:o/r#1")
        assert [record.id for record in some.records] == ["r3", "r1"]
        assert (await ledger.jobs.list(REVIEWS, prefix="github:o_")).records == []
        one = await ledger.jobs.list(REVIEWS, subject="github:o/r#0")
        assert [record.id for record in one.records] == ["r4", "r2", "r0"]

    async def test_after_an_invalid_cursor_is_refused(self, ledger: Ledger) -> None:
        with pytest.raises(InvalidOption) as refusal:
            await ledger.jobs.list(REVIEWS, after="nonsense!")
        assert (refusal.value.option, refusal.value.value) == ("after", "nonsense!")

    async def test_after_a_trim_shows_no_old_ended_ones(self, ledger: Ledger) -> None:
        await made(ledger, "open")
        await made(ledger, "gone")
        await ledger.jobs.cancel(REVIEWS, "gone")
        assert await ledger.jobs.trim() == 0
        old = text("UPDATE towpath_jobs SET finished_at = 1 WHERE finished_at IS NOT NULL")
        await ledger.write(lambda connection: connection.execute(old))
        await ledger.jobs.trim()
        assert [record.id for record in (await ledger.jobs.list(REVIEWS)).records] == ["open"]


class TestEventsOfRecords:
    async def test_are_written_in_the_transaction_that_ends_the_record(self, url: str) -> None:
        async with Ledger(url, sinks=["audit"]) as ledger:
            await ledger.migrate()
            for id in ("a", "b", "c"):
                mine = lease(await made(ledger, id), 10)
                await ledger.jobs.begin(mine)
                words = {"a": Complete(mine), "b": Bury(mine, "no"), "c": Fail(mine, "no")}
                said = words[id]
                await ledger.jobs.end(Ending(mine, said, cancelled=False))
                # Ended again after a lost answer: there is still one event.
                await ledger.jobs.end(Ending(mine, said, cancelled=False))
            await made(ledger, "d")
            await ledger.jobs.cancel(REVIEWS, "d")
            await made(ledger, "e", subject="s", version=1)
            await made(ledger, "f", subject="s", version=2)
            told = "SELECT type, key FROM towpath_outbox ORDER BY seq"
            events = await ledger.read(
                lambda connection: [tuple(row) for row in connection.execute(text(told))]
            )
        assert events == [
            ("towpath.job.completed", "reviews/a"),
            ("towpath.job.dead", "reviews/b"),
            ("towpath.job.cancelled", "reviews/d"),
            ("towpath.job.superseded", "reviews/e"),
        ]

    async def test_are_not_written_without_sinks(self, ledger: Ledger) -> None:
        await made(ledger)
        await ledger.jobs.cancel(REVIEWS, "a")
        count = text("SELECT count(*) FROM towpath_outbox")
        assert await ledger.read(lambda connection: connection.scalar(count)) == 0
