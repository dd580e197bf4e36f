"""The history of a queue: the first change in a minute stores the queue's numbers. Minutes are kept
for a day, hours for a month.
"""

import struct
from datetime import UTC, datetime

import pytest

from tests.queue_numbers import set_numbers
from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import LEASE, REVIEWS, claim, claim_one, submit_ids
from towpath.clock import Duration, ManualClock, days, hours, milliseconds, minutes, seconds
from towpath.embedded.process import items
from towpath.engine import store
from towpath.engine.engine import Engine
from towpath.engine.history import History
from towpath.engine.model import job_ref
from towpath.engine.options import QueueOptions
from towpath.errors import InvalidOption, JobNotFound, LeaseError

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HISTORY = f"{{{REVIEWS}}}:history"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


async def last(engine: Engine, n: int, *names: str) -> list[list[int]]:
    """The last *n* numbers of each of these columns."""
    found = await engine.inspect.history(REVIEWS)
    return [getattr(found, name)[-n:] for name in names]


class TestAMinuteOfTheHistory:
    async def test_counts_what_happened_in_it(self, engine: Engine, clock: ManualClock) -> None:
        await submit_ids(engine, "a", "b", "c")
        clock.advance(minutes(1))
        await engine.complete(await claim_one(engine))
        await engine.bury(await claim_one(engine), "broken")
        clock.advance(minutes(2))
        await submit_ids(engine, "d")
        columns = await last(engine, 5, "submitted", "completed", "failed", "died")
        assert columns == [[0, 3, 0, 0, 1], [0, 0, 1, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 0, 0]]

    async def test_has_the_number_of_jobs_in_each_state_at_its_beginning(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.submit(REVIEWS, b"", delay=hours(5))
        await submit_ids(engine, "a", "b", lane="x")
        await submit_ids(engine, "c", "d")
        clock.advance(minutes(1))
        await engine.bury(await claim_one(engine, lane="x"), "broken")
        [leased] = await claim(engine)
        await engine.renew(leased, hours(1))
        clock.advance(minutes(3))
        await submit_ids(engine, "e")
        columns = await last(engine, 5, "ready", "delayed", "waiting", "leased", "dead")
        assert columns == [
            [0, 3, 2, 2, 3],
            [0, 1, 1, 1, 1],
            [0, 1, 0, 0, 0],
            [0, 0, 1, 1, 1],
            [0, 0, 1, 1, 1],
        ]

    async def test_has_the_age_of_the_oldest_ready_job(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.submit(REVIEWS, b"", priority=10)
        clock.advance(seconds(90))
        await engine.submit(REVIEWS, b"", priority=90)
        clock.advance(minutes(2))
        [ages] = await last(engine, 4, "oldest")
        assert ages[1:] == [90, 150, 210]
        await claim(engine, 2)
        clock.advance(minutes(1))
        await submit_ids(engine, "a")
        [ages] = await last(engine, 2, "oldest")
        assert ages == [210, 0]

    @pytest.mark.parametrize("way", ["submit", "complete", "exchange", "fail", "delayed"])
    async def test_begins_with_any_call_that_changes_the_queue(
        self, engine: Engine, deployment: Deployment, clock: ManualClock, way: str
    ) -> None:
        await submit_ids(engine, "a", "b")
        [lease] = await claim(engine)
        rows = row_bytes(deployment, clock)
        clock.advance(minutes(1))
        match way:
            case "submit":
                await engine.submit(REVIEWS, b"")
            case "complete":
                await engine.complete(lease)
            case "exchange":
                await engine.exchange(REVIEWS, [], worker="w", lease=LEASE, count=1)
            case "fail":
                await engine.fail(lease, "broken")
            case _:
                await engine.submit(REVIEWS, b"", delay=minutes(1))
        assert row_bytes(deployment, clock) == rows + 41

    async def test_is_not_begun_by_a_refusal_or_a_read(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        await submit_ids(engine, "a")
        lease = await claim_one(engine)
        await engine.complete(lease)
        clock.advance(minutes(1))
        before = deployment.dump()
        with pytest.raises((LeaseError, JobNotFound)):
            await engine.complete(lease)
        await engine.submit(REVIEWS, b"a", id="a")
        await engine.inspect.counts(REVIEWS)
        assert deployment.dump() == before

    async def test_is_one_row_however_many_calls_there_are(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        for _ in range(20):
            await engine.submit(REVIEWS, b"")
            await engine.complete(await claim_one(engine))
            clock.advance(seconds(2))
        assert row_bytes(deployment, clock) == 41


def row_bytes(deployment: Deployment, clock: ManualClock) -> int:
    """The stored bytes of the minutes of this hour."""
    found = deployment.ask("HGET", HISTORY, f"m{int(clock.stamp()) // 3_600_000}")
    return len(found) if isinstance(found, bytes) else 0


class TestTheHistory:
    async def test_of_more_than_a_day_has_a_row_per_hour(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        for _ in range(3):
            await engine.submit(REVIEWS, b"")
            clock.advance(minutes(40))
        found = await engine.inspect.history(REVIEWS, last=days(2))
        assert (found.step, len(found.submitted), found.submitted[-3:]) == (hours(1), 48, [2, 1, 0])
        assert found.ready[-3:] == [0, 2, 3]
        assert found.begins == NOON + hours(3) - days(2)

    async def test_of_an_unused_queue_is_zero(self, engine: Engine) -> None:
        found = await engine.inspect.history(REVIEWS)
        assert found.ready == found.submitted == [0] * 60
        assert found.oldest == [None] * 60

    @pytest.mark.parametrize("span", [seconds(59), days(30) + milliseconds(1)])
    async def test_of_an_unsupported_span_is_refused(self, engine: Engine, span: Duration) -> None:
        with pytest.raises(InvalidOption):
            await engine.inspect.history(REVIEWS, last=span)

    async def test_forgets_minutes_after_a_day_and_hours_after_a_month(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        for _ in range(80):
            await engine.submit(REVIEWS, b"")
            clock.advance(hours(13))
        names = items(deployment.ask("HKEYS", HISTORY))
        assert sorted(str(name)[2] for name in names) == ["h"] * 31 + ["m"] * 2
        assert sum((await engine.inspect.history(REVIEWS, last=days(30))).submitted) == 55

    async def test_is_at_most_100_kib(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        """It is full: every minute of a day and every hour of a month has its row."""
        await engine.submit(REVIEWS, b"")
        hour, day = int(clock.stamp()) // 3_600_000, int(clock.stamp()) // 86_400_000
        row = struct.pack("<B10I", 0, *range(10))
        for n in range(25):
            deployment.ask("HSET", HISTORY, f"m{hour - n}", row * 60)
        for n in range(31):
            deployment.ask("HSET", HISTORY, f"h{day - n}", row * 24)
        clock.advance(minutes(1))
        await engine.submit(REVIEWS, b"")
        used = deployment.ask("MEMORY", "USAGE", HISTORY, "SAMPLES", "0")
        assert isinstance(used, int)
        assert used <= 100 * 1024

    async def test_goes_on_when_the_clock_was_set_back(
        self, engine: Engine, engine_url: str, clock: ManualClock
    ) -> None:
        clock.advance(days(400))
        await engine.submit(REVIEWS, b"")
        async with Engine(engine_url, clock=ManualClock(NOON)) as back:
            await back.submit(REVIEWS, b"", delay=hours(1))
            assert (await back.inspect.history(REVIEWS)).submitted[-1] == 1

    async def test_starts_again_where_the_totals_were_lost(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        await submit_ids(engine, "a", "b", "c")
        clock.advance(minutes(1))
        await submit_ids(engine, "d")
        set_numbers(deployment.ask, f"{{{REVIEWS}}}:meta", submitted=1)
        clock.advance(minutes(1))
        await submit_ids(engine, "e")
        assert await last(engine, 3, "submitted") == [[3, 1, 1]]

    async def test_with_a_key_of_another_type_stops_no_work(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        await engine.submit(REVIEWS, b"")
        deployment.ask("SET", HISTORY, "of somebody else")
        clock.advance(minutes(1))
        await engine.submit(REVIEWS, b"")
        await engine.complete(await claim_one(engine))
        assert (await engine.inspect.counts(REVIEWS)).totals["completed"] == 1

    async def test_stops_no_work_if_a_key_that_it_counts_has_another_type(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        """That minute has no row; no job needs the key."""
        await engine.submit(REVIEWS, b"")
        deployment.ask("SET", f"{{{REVIEWS}}}:waiting", "of somebody else")
        clock.advance(minutes(1))
        await engine.submit(REVIEWS, b"")
        await engine.complete(await claim_one(engine))
        assert row_bytes(deployment, clock) == 41

    async def test_is_deleted_with_its_queue(self, engine: Engine, deployment: Deployment) -> None:
        await engine.submit(REVIEWS, b"")
        await engine.complete(await claim_one(engine))
        assert await engine.queues.delete(REVIEWS)
        assert HISTORY not in deployment.key_names()

    async def test_of_an_abandoned_queue_expires(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await engine.submit(REVIEWS, b"")
        left = deployment.ask("PTTL", HISTORY)
        assert isinstance(left, int)
        assert days(30) < milliseconds(left) <= days(31)


async def test_history_is_kept_of_a_bounded_number_of_queues(
    engine: Engine,
    deployment: Deployment,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "QUEUES_MOST", 2)
    for name in ("one", "two", "three", "one"):
        await engine.queues.configure(name, QueueOptions())
        await engine.submit(name, b"")
        clock.advance(minutes(1))
        [lease] = await engine.claim(name, worker="w", lease=LEASE)
        await engine.complete(lease)
    kept = {key for key in deployment.key_names() if key.endswith(":history")}
    assert kept == {"{one}:history", "{two}:history"}
    assert (await engine.inspect.counts("three")).totals["completed"] == 1


def test_all_columns_of_a_history_have_the_same_length() -> None:
    names = [name for name in History.__struct_fields__ if name not in ("begins", "step")]
    assert len(names) == 10


async def test_a_job_of_an_older_release_is_counted_from_its_first_change(
    engine: Engine, deployment: Deployment, clock: ManualClock
) -> None:
    """Data of an older release has no row yet."""
    await submit_ids(engine, "a", "b")
    deployment.ask("UNLINK", HISTORY)
    set_numbers(deployment.ask, f"{{{REVIEWS}}}:meta", minute=0)
    clock.advance(minutes(5))
    await engine.cancel(job_ref(REVIEWS, "a"))
    found = await engine.inspect.history(REVIEWS)
    assert (found.submitted[-6:], found.ready[-6:]) == ([0] * 6, [2, 2, 2, 2, 2, 1])
