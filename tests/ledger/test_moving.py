"""Records that are moved and set: the row decides, even if Redis has not learned of it."""

import asyncio
from datetime import datetime
from typing import Any

import msgspec
import pytest

from tests.amounts import amount
from tests.faults.planting import BEGUN_EARLY, MOVED_IN_VAIN, PlantedFault, planted
from tests.ledger.records import REVIEWS, made
from tests.waiting import HANGS, eventually_async
from tests.worker.in_process_worker import working
from towpath import Engine, Towpath, hours, milliseconds, minutes, seconds
from towpath.clock import ZERO
from towpath.embedded import EmbeddedServer
from towpath.engine.model import Bury, Complete, Fail, Lease, Release, job_ref
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import InvalidName, InvalidOption
from towpath.ledger.errors import RecordNotFound, RecordNotWaiting
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.attempts import Ending, Standing
from towpath.ledger.records.record import NOT_RUN, Record, RecordState, as_job
from towpath.ledger.records.recorder import LedgerRecorder
from towpath.ledger.records.relay import Relay
from towpath.telemetry.logs import Log


@pytest.fixture
def relay(ledger: Ledger, engine: Engine) -> Relay:
    """A relay that polls when the test asks it to."""
    return Relay(ledger, engine, log=Log())


@pytest.fixture
def queued_at_once(ledger: Ledger, relay: Relay) -> None:
    """Changes of a record are enqueued in Redis at once."""
    ledger.jobs.relay = relay


async def claim(engine: Engine, wait: float = 0, *, lane: str | None = None) -> list[Lease]:
    return await engine.claim(
        REVIEWS, worker="w", lease=seconds(30), count=9, wait=seconds(wait), lane=lane
    )


async def begin(ledger: Ledger, engine: Engine, wait: float = 0) -> tuple[Lease, Standing]:
    [lease] = await claim(engine, wait)
    return lease, (await ledger.jobs.begin(lease)).standing


async def settle(ledger: Ledger, engine: Engine, lease: Lease, by: Any) -> None:
    await ledger.jobs.end(Ending(lease, by, cancelled=False))
    await engine.settle([by])


async def queued(engine: Engine) -> list[tuple[str, str]]:
    """Every open job of Redis and its state."""
    counts = await engine.inspect.counts(REVIEWS)
    return [
        (job.ref.id, state)
        for state in (State.READY, State.DELAYED, State.WAITING)
        if getattr(counts, state)
        for job in (await engine.inspect.list(REVIEWS, state)).jobs
    ]


def wait_of(record: Record) -> float:
    assert record.due_at is not None
    return (record.due_at - record.created_at).total_seconds()


@pytest.mark.usefixtures("queued_at_once")
class TestMovingARecord:
    async def test_changes_the_row_and_redis(self, ledger: Ledger, engine: Engine) -> None:
        await made(ledger, delay=hours(1))
        record = await ledger.jobs.move(REVIEWS, "a", delay=hours(5))
        assert 5 * 3600 <= wait_of(record) < 5 * 3600 + 60
        assert record == await ledger.jobs.get(REVIEWS, "a")

        async def only_the_new_one() -> bool:
            return await queued(engine) == [(record.job, "delayed")]

        await eventually_async(only_the_new_one)
        job = await engine.inspect.job(job_ref(REVIEWS, record.job))
        assert job.due_at is not None
        assert record.due_at is not None
        late = (job.due_at - record.due_at).total_seconds()
        assert -0.01 <= late < HANGS, "never early; later by the time that queuing it took"

    async def test_to_the_past_runs_it_now(self, ledger: Ledger, engine: Engine) -> None:
        long_ago = (await made(ledger, delay=hours(1))).created_at - hours(1)
        await ledger.jobs.move(REVIEWS, "a", due=long_ago)
        lease, standing = await begin(ledger, engine, HANGS)
        assert standing is Standing.BEGUN
        await settle(ledger, engine, lease, Complete(lease))
        assert (await ledger.jobs.get(REVIEWS, "a")).state is RecordState.COMPLETED

    async def test_that_failed_keeps_its_attempts(self, ledger: Ledger, engine: Engine) -> None:
        await made(ledger)
        lease, _ = await begin(ledger, engine, HANGS)
        await settle(ledger, engine, lease, Fail(lease, "503", hours(1)))
        record = await ledger.jobs.move(REVIEWS, "a", delay=ZERO)
        assert (record.state, record.attempts, record.last_error) == ("failed", 1, "503")
        [again] = await claim(engine, HANGS)
        begun = await ledger.jobs.begin(again)
        assert (begun.standing, begun.attempt) == (Standing.BEGUN, 2)

    async def test_at_the_head_of_a_lane_holds_the_lane(
        self, ledger: Ledger, engine: Engine, relay: Relay
    ) -> None:
        """Rows decide whose turn it is, whatever order Redis has."""
        for id in "abc":
            await made(ledger, id, lane="x")
        await ledger.jobs.move(REVIEWS, "a", delay=seconds(3))
        ran: list[str] = []

        async def all_ran() -> bool:
            await relay.look()
            for lease in await claim(engine):
                begun = await LedgerRecorder(ledger.jobs).begin(lease)
                if isinstance(begun, Lease):
                    ran.append(lease.id.partition("~")[0])
                    await settle(ledger, engine, lease, Complete(lease))
                elif begun is not None:
                    await engine.settle([begun])
            return len(ran) == 3

        await eventually_async(all_ran)
        assert ran == ["a", "b", "c"]

    async def test_is_refused_with_the_state(self, ledger: Ledger, engine: Engine) -> None:
        with pytest.raises(RecordNotFound):
            await ledger.jobs.move(REVIEWS, "nobody", delay=ZERO)
        await made(ledger)
        lease, _ = await begin(ledger, engine, HANGS)
        for state, by in (("running", Complete(lease)), ("completed", None)):
            with pytest.raises(RecordNotWaiting) as refusal:
                await ledger.jobs.move(REVIEWS, "a", delay=ZERO)
            assert refusal.value.state == state
            if by is not None:
                await settle(ledger, engine, lease, by)
        await made(ledger, "b", delay=hours(1))
        await ledger.jobs.cancel(REVIEWS, "b")
        with pytest.raises(RecordNotWaiting) as refusal:
            await ledger.jobs.move(REVIEWS, "b", delay=ZERO)
        assert refusal.value.state == "cancelled"

    @pytest.mark.parametrize(
        "when",
        [
            {},
            {"delay": ZERO, "due": datetime.now().astimezone()},
            {"delay": -seconds(1)},
            {"due": datetime(2026, 1, 1)},  # noqa: DTZ001 -- a time without a zone
        ],
        ids=["neither", "both", "negative", "no zone"],
    )
    async def test_is_refused_for_an_invalid_time(self, ledger: Ledger, when: Any) -> None:
        await made(ledger)
        with pytest.raises(InvalidOption):
            await ledger.jobs.move(REVIEWS, "a", **when)

    async def test_twice_at_the_same_time_keeps_one_of_the_times(self, ledger: Ledger) -> None:
        await made(ledger, delay=hours(9))
        waits = [hours(n) for n in range(1, 6)]
        moved = await asyncio.gather(
            *(ledger.jobs.move(REVIEWS, "a", delay=wait) for wait in waits)
        )
        last = await ledger.jobs.get(REVIEWS, "a")
        assert last in moved
        assert len({record.job for record in moved}) == len(waits)


class TestAMoveThatDidNotReachRedis:
    """Redis was killed, away or frozen when the record was moved: the row has the time all the
    same.
    """

    async def test_begins_no_attempt_at_a_claim_before_the_time(
        self, ledger: Ledger, engine: Engine, relay: Relay
    ) -> None:
        ledger.jobs.relay = relay
        await made(ledger)
        ledger.jobs.relay = None
        await ledger.jobs.move(REVIEWS, "a", delay=hours(2))
        [early] = await claim(engine, HANGS)
        told = await LedgerRecorder(ledger.jobs).begin(early)
        assert told == Complete(early, NOT_RUN), "what Redis has is nobody's any more"
        await engine.settle([Complete(early)])
        record = await ledger.jobs.get(REVIEWS, "a")
        assert (record.state, record.attempts) == (RecordState.PENDING, 0)
        await relay.look()
        assert await queued(engine) == [(record.job, "delayed")]
        await ledger.jobs.move(REVIEWS, "a", delay=ZERO)
        await relay.look()
        [lease] = await claim(engine, HANGS)
        begun = await ledger.jobs.begin(lease)
        assert (begun.standing, begun.attempt) == (Standing.BEGUN, 1)
        await settle(ledger, engine, lease, Complete(lease))
        record = await ledger.jobs.get(REVIEWS, "a")
        assert record.state is RecordState.COMPLETED
        assert record.started_at is not None
        assert record.due_at is not None
        assert record.started_at >= record.due_at
        assert await claim(engine) == []

    async def test_to_an_earlier_time_takes_effect_when_the_relay_polls(
        self, ledger: Ledger, engine: Engine, relay: Relay
    ) -> None:
        await moved_forward_runs(ledger, engine, relay)

    async def test_is_undone_if_only_redis_has_the_new_time(
        self, ledger: Ledger, engine: Engine, relay: Relay
    ) -> None:
        """Redis has lost the last change."""
        await early_goes_back(ledger, engine, relay)

    @pytest.mark.parametrize(
        ("fault", "promise"),
        [(MOVED_IN_VAIN, "moved_forward_runs"), (BEGUN_EARLY, "early_goes_back")],
        ids=str,
    )
    async def test_with_a_planted_fault_is_found(
        self, ledger: Ledger, engine: Engine, relay: Relay, fault: PlantedFault, promise: str
    ) -> None:
        with planted(fault), pytest.raises((AssertionError, ValueError)):
            await globals()[promise](ledger, engine, relay)


async def moved_forward_runs(ledger: Ledger, engine: Engine, relay: Relay) -> None:
    ledger.jobs.relay = relay
    await made(ledger, delay=hours(9))
    ledger.jobs.relay = None
    await ledger.jobs.move(REVIEWS, "a", delay=ZERO)
    assert await claim(engine) == []
    await relay.look()
    lease, standing = await begin(ledger, engine)
    assert standing is Standing.BEGUN
    await settle(ledger, engine, lease, Complete(lease))
    assert (await ledger.jobs.get(REVIEWS, "a")).state is RecordState.COMPLETED


async def early_goes_back(ledger: Ledger, engine: Engine, relay: Relay) -> None:
    await made(ledger, delay=hours(2))
    record = await ledger.jobs.get(REVIEWS, "a")
    due_now = msgspec.structs.replace(record, due_at=None)
    await engine.submit_many(REVIEWS, [as_job(due_now, now=record.created_at)])
    ledger.jobs.relay = relay
    [early] = await claim(engine)
    told = await LedgerRecorder(ledger.jobs).begin(early)
    assert isinstance(told, Release)
    assert told.delay > milliseconds(1)
    await engine.settle([told])
    assert await queued(engine) == [("a", "delayed")]
    assert (await ledger.jobs.get(REVIEWS, "a")).attempts == 0
    await ledger.jobs.move(REVIEWS, "a", delay=ZERO)
    await relay.look()
    [lease] = await claim(engine, HANGS)
    begun = await ledger.jobs.begin(lease)
    assert (begun.standing, begun.attempt) == (Standing.BEGUN, 1)


@pytest.mark.usefixtures("queued_at_once")
class TestSettingARecord:
    async def test_creates_it(self, ledger: Ledger, engine: Engine) -> None:
        record, replaced = await ledger.jobs.set(REVIEWS, b"1", id="a", delay=hours(1))
        assert (record.state, record.payload, replaced) == (RecordState.PENDING, b"1", False)
        assert await queued(engine) == [("a", "delayed")]

    async def test_replaces_a_waiting_one(self, ledger: Ledger, engine: Engine) -> None:
        old = await made(ledger, delay=hours(1), priority=70, lane="x", headers={"trace": "1"})
        record, replaced = await ledger.jobs.set(REVIEWS, b"2", id="a")
        assert replaced
        assert (record.payload, record.priority, record.lane) == (b"2", 50, None)
        assert (dict(record.headers), record.due_at) == ({}, None)
        assert record.seq >= old.seq
        [lease] = await claim(engine, HANGS)
        assert (await ledger.jobs.begin(lease)).payload == b"2"
        await settle(ledger, engine, lease, Complete(lease, b"result"))
        assert [listed.id for listed in (await ledger.jobs.list(REVIEWS)).records] == ["a"]

        async def nothing_left() -> bool:
            return await queued(engine) == []

        await eventually_async(nothing_left)

    async def test_replaces_a_cancelled_one(self, ledger: Ledger, engine: Engine) -> None:
        """A timer that was cancelled and is set again fires."""
        await made(ledger, delay=hours(1))
        await ledger.jobs.cancel(REVIEWS, "a")
        record, replaced = await ledger.jobs.set(REVIEWS, b"2", id="a")
        assert (record.state, replaced, record.finished_at) == (RecordState.PENDING, False, None)
        lease, standing = await begin(ledger, engine, HANGS)
        assert standing is Standing.BEGUN
        await settle(ledger, engine, lease, Complete(lease))

    async def test_replaces_a_dead_or_completed_one(self, ledger: Ledger, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=minutes(5)))
        await made(ledger)
        for dies in (True, False):
            lease, _ = await begin(ledger, engine, HANGS)
            end = Bury(lease, "no") if dies else Complete(lease, b"result")
            await settle(ledger, engine, lease, end)
            record, _ = await ledger.jobs.set(REVIEWS, b"2", id="a")
            assert (record.attempts, record.result, record.last_error) == (0, None, None)
        _, standing = await begin(ledger, engine, HANGS)
        assert standing is Standing.BEGUN

    async def test_puts_it_behind_the_others_of_its_lane(
        self, ledger: Ledger, engine: Engine
    ) -> None:
        first, second = [await made(ledger, id, lane="x") for id in "ab"]
        record, _ = await ledger.jobs.set(REVIEWS, b"2", id="a", lane="x")
        assert record.seq > second.seq > first.seq

    async def test_is_refused_while_it_runs(self, ledger: Ledger, engine: Engine) -> None:
        await made(ledger)
        lease, _ = await begin(ledger, engine, HANGS)
        with pytest.raises(RecordNotWaiting) as refusal:
            await ledger.jobs.set(REVIEWS, b"2", id="a")
        assert refusal.value.state == "running"
        await settle(ledger, engine, lease, Complete(lease))

    async def test_needs_an_id_and_accepts_no_subject(self, ledger: Ledger) -> None:
        with pytest.raises(InvalidOption) as refusal:
            await ledger.jobs.set(REVIEWS, b"2")
        assert (refusal.value.option, refusal.value.value) == ("id", None)
        with pytest.raises(InvalidOption) as refusal:
            await ledger.jobs.set(REVIEWS, b"2", id="a", subject="pull/1")
        assert (refusal.value.option, refusal.value.value) == ("subject", "pull/1")
        with pytest.raises(InvalidName):
            await ledger.jobs.set(REVIEWS, b"2", id="a~7")

    async def test_twice_at_the_same_time_leaves_one_record(self, ledger: Ledger) -> None:
        payloads = [b"%d" % n for n in range(5)]
        for turn in range(amount(20, thoroughly=300)):
            id = f"a-{turn}"
            placed = await asyncio.gather(
                *(ledger.jobs.set(REVIEWS, payload, id=id, delay=hours(1)) for payload in payloads)
            )
            assert sorted(answer.replaced for answer in placed) == [False, True, True, True, True]
            assert (await ledger.jobs.get(REVIEWS, id)).payload in payloads

    async def test_while_it_is_claimed_lets_the_old_one_end(
        self, ledger: Ledger, engine: Engine
    ) -> None:
        """It is claimed, but the attempt has not begun: the row has it waiting."""
        await made(ledger)
        [old] = await claim(engine, HANGS)
        await ledger.jobs.set(REVIEWS, b"2", id="a")
        assert await LedgerRecorder(ledger.jobs).begin(old) == Complete(old, NOT_RUN)
        [new] = await claim(engine, HANGS)
        assert (await ledger.jobs.begin(new)).payload == b"2"


async def test_a_worker_runs_a_record_that_was_moved_while_redis_was_away(
    url: str, ledger: Ledger
) -> None:
    """Redis dies with all its data."""
    ran: list[int] = []
    with EmbeddedServer() as server:
        async with Towpath(server.url, ledger=url) as app:

            @app.handler(REVIEWS, record=True)
            async def review(number: int) -> int:
                ran.append(number)
                return number

            await review.submit(1, id="later", delay=hours(1))
            await review.submit(2, id="sooner", delay=hours(1))
            server.kill()
            await app.ledger.jobs.move(REVIEWS, "sooner", delay=ZERO)
            server.start()
            async with working(app):

                async def has_run() -> bool:
                    return ran == [2]

                await eventually_async(has_run)
            assert (await app.ledger.jobs.get(REVIEWS, "later")).state is RecordState.PENDING
