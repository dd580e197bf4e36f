"""The relay: every open record is in Redis, whatever happened to either."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from tests.ledger.own_transactions import named
from tests.ledger.records import SHORT
from tests.waiting import HANGS, eventually_async
from tests.worker.test_isolation import FreezableShards, running_shards, shards
from towpath import Engine, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.model import JobRef, Lease, job_ref
from towpath.engine.states import State
from towpath.errors import ServerUnreachable
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.attempts import Standing
from towpath.ledger.records.record import Record, RecordState
from towpath.ledger.records.relay import Relay, SyncCounts
from towpath.telemetry.logs import Log

__all__ = ["running_shards", "shards"]
REVIEWS = "reviews"
ALL_DUE = text("UPDATE towpath_jobs SET relay_at = 1")
"""The time to look for every record has come."""


@pytest.fixture
def relay(ledger: Ledger, engine: Engine) -> Relay:
    """A relay that polls when the test asks it to."""
    return Relay(ledger, engine, log=Log())


def ref(record: Record) -> JobRef:
    return JobRef(record.queue, record.job)


async def missed(ledger: Ledger, *ids: str) -> list[Record]:
    """Records that were not queued in Redis, and that the relay has to look for now."""
    made = [(await ledger.jobs.submit(REVIEWS, b"1", id=id)).record for id in ids]
    await ledger.write(lambda connection: connection.execute(ALL_DUE))
    return made


async def due(ledger: Ledger) -> None:
    """Advances to the time at which the relay handles what it still has to."""
    change = text("UPDATE towpath_jobs SET relay_at = 1 WHERE relay_at IS NOT NULL")
    await ledger.write(lambda connection: connection.execute(change))


async def begun(ledger: Ledger, engine: Engine) -> Lease:
    """A record that a worker has begun; its maker had no connection to Redis."""
    await ledger.jobs.submit(REVIEWS, b"1", id="a")
    await engine.submit(REVIEWS, b"", id="a")
    [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
    await ledger.jobs.begin(lease)
    await ledger.write(lambda connection: connection.execute(ALL_DUE))
    return lease


class InterruptedEngine(Engine):
    """An engine with which something else happens while jobs are on their way."""

    interruption: Callable[[], Awaitable[object]] | None = None

    async def submit_many(self, *words: Any, **options: Any) -> Any:
        if self.interruption is not None:
            await self.interruption()
            self.interruption = None
        return await super().submit_many(*words, **options)


class TestARelay:
    async def test_queues_new_records_at_once(self, ledger: Ledger, engine: Engine) -> None:
        async with ledger.relayed(engine, log=Log()) as relay:
            await relay.look()  # records made during its first poll wait for the next one
            made = await ledger.jobs.submit(REVIEWS, b"1", id="a", priority=100, lane="u1")
            job = await engine.inspect.job(ref(made.record))
            assert (job.state, job.priority, job.lane) == (State.READY, 100, "u1")
            # The payload stays in the row.
            assert job.payload == b""

    async def test_logs_what_it_queued_by_queue(
        self, ledger: Ledger, relay: Relay, caplog: pytest.LogCaptureFixture
    ) -> None:
        await missed(ledger, "a", "b")
        with caplog.at_level("INFO", "towpath"):
            await relay.look()
        lines = [
            cast("dict[str, Any]", record.msg)
            for record in caplog.records
            if record.name == "towpath"
        ]
        said = [line for line in lines if line["event"] == "records.queued"]
        assert sum(line["jobs"] for line in said) == 2
        assert {line["queue"] for line in said} == {REVIEWS}

    async def test_queues_missed_records_in_their_order(
        self, ledger: Ledger, engine: Engine, relay: Relay
    ) -> None:
        ids = [f"r{n}" for n in range(12)]
        await missed(ledger, *ids)
        assert await relay.look() == 12
        claimed = await engine.claim(REVIEWS, worker="w", lease=seconds(30), count=20)
        assert [lease.id for lease in claimed] == ids
        assert await relay.look() == 0

    async def test_skips_records_that_were_just_made(self, ledger: Ledger, relay: Relay) -> None:
        """Their makers are enqueuing them: a relay would only repeat the work."""
        await missed(ledger, "before")
        await relay.look()
        await ledger.jobs.submit(REVIEWS, b"1")
        assert await relay.look() == 0

    async def test_does_not_queue_again_what_another_relay_has_taken(
        self, url: str, ledger: Ledger, engine: Engine, relay: Relay
    ) -> None:
        async with Ledger(url) as another:
            other = Relay(another, engine, log=Log())
            await asyncio.gather(relay.look(), other.look())
            await missed(ledger, *(f"r{n}" for n in range(700)))
            queued = await asyncio.gather(relay.look(), other.look())
        assert sum(queued) == 700
        assert (await engine.inspect.counts(REVIEWS)).ready == 700

    async def test_counts_a_delay_from_the_creation_of_the_record(
        self, ledger: Ledger, engine: Engine, relay: Relay
    ) -> None:
        made = await ledger.jobs.submit(REVIEWS, b"1", delay=seconds(600))
        await ledger.write(
            lambda connection: connection.execute(
                text("UPDATE towpath_jobs SET relay_at = 1, due_at = due_at - 300000")
            )
        )
        await relay.look()
        job = await engine.inspect.job(ref(made.record))
        assert job.state is State.DELAYED
        assert job.due_at is not None
        assert 200 < (job.due_at - job.submitted_at).total_seconds() < 301


class TestAfterRedisHasLostEverything:
    async def test_all_open_records_are_queued_again(
        self, ledger: Ledger, engine: Engine, relay: Relay, server: EmbeddedServer
    ) -> None:
        for id in ("pending", "running", "done"):
            await ledger.jobs.submit(REVIEWS, b"1", id=id)
        await relay.look()
        leases = {
            str(lease.id): lease
            for lease in await engine.claim(REVIEWS, worker="w", lease=seconds(30), count=3)
        }
        await ledger.jobs.begin(leases["running"])
        await ledger.jobs.begin(leases["done"])
        await ledger.write(
            lambda connection: connection.execute(
                text("UPDATE towpath_jobs SET state = 'completed' WHERE id = 'done'")
            )
        )
        assert await relay.look() == 0
        server.ask("FLUSHALL")
        assert await relay.look() == 2
        again = await engine.claim(REVIEWS, worker="w", lease=seconds(30), count=9)
        assert sorted(lease.id for lease in again) == ["pending", "running"]
        for lease in again:
            assert (await ledger.jobs.begin(lease)).standing is Standing.BEGUN

    async def test_tokens_continue_above_those_in_the_rows(
        self, ledger: Ledger, engine: Engine, relay: Relay, server: EmbeddedServer
    ) -> None:
        """The clock of the new Redis may be an hour behind the old one's."""
        await ledger.jobs.submit(REVIEWS, b"1", id="a")
        await relay.look()
        future = 1_000_000 * 60 * 60
        [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
        seen = lease.token + future
        await ledger.write(
            lambda connection: connection.execute(
                text("UPDATE towpath_jobs SET fence = :seen, state = 'running'"), {"seen": seen}
            )
        )
        server.ask("FLUSHALL")
        await relay.look()
        [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
        assert lease.token > seen
        assert (await ledger.jobs.begin(lease)).standing is Standing.BEGUN

    async def test_repeated_polls_do_not_raise_tokens(self, ledger: Ledger, engine: Engine) -> None:
        """Every process polls at its start: a minute each time would be an hour with many of
        them.
        """
        first = await begun(ledger, engine)
        for _ in range(5):
            await Relay(ledger, engine, log=Log()).look()
        await engine.submit("reviews", b"", id="b")
        [second] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
        assert second.token == pytest.approx(second.claimed_ms * 1000, abs=1000)
        assert second.token > first.token

    async def test_a_record_whose_id_redis_remembers_gets_another_id(
        self, ledger: Ledger, engine: Engine, relay: Relay
    ) -> None:
        """Somebody reset the row by hand: it is meant to run again."""
        record = (await ledger.jobs.submit(REVIEWS, b"1", id="a")).record
        await relay.look()
        [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
        await engine.complete(lease)
        assert await engine.inspect.state(ref(record)) is State.GONE
        await ledger.write(lambda connection: connection.execute(ALL_DUE))
        assert await relay.look() == 1
        assert (await ledger.jobs.get(REVIEWS, "a")).job == "a~2"
        assert await engine.inspect.state(job_ref(REVIEWS, "a~2")) is State.READY


class TestWhereRedisAndTheLedgerDisagree:
    async def test_a_job_that_died_in_redis_is_dead_in_the_ledger(
        self, ledger: Ledger, engine: Engine, relay: Relay
    ) -> None:
        await missed(ledger, "a")
        await relay.look()
        [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
        await engine.bury(lease, "poison")
        await ledger.write(lambda connection: connection.execute(ALL_DUE))
        await relay.look()
        record = await ledger.jobs.get(REVIEWS, "a")
        assert (record.state, record.last_error) == (RecordState.DEAD, "poison")

    async def test_a_job_that_died_while_it_ran_is_found_by_reconciliation(
        self, ledger: Ledger, engine: Engine, relay: Relay
    ) -> None:
        """Its last attempt blocked the worker's loop, so no worker updated the row."""
        await missed(ledger, "a")
        await relay.look()
        [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
        await ledger.jobs.begin(lease)
        await engine.bury(lease, "took too long")
        found = await relay.reconcile()
        assert found == {REVIEWS: SyncCounts(open=1, ended=1)}
        record = await ledger.jobs.get(REVIEWS, "a")
        assert (record.state, record.last_error) == (RecordState.DEAD, "took too long")

    async def test_only_one_of_several_relays_reconciles(
        self, url: str, ledger: Ledger, engine: Engine, relay: Relay
    ) -> None:
        """The others leave it to that one until the next time."""
        await missed(ledger, "a")
        async with Ledger(url) as another:
            other = Relay(another, engine, log=Log(), reconcile_every=seconds(0))
            await relay.look()
            await other.look()  # it has not seen this queue before
            [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
            await engine.bury(lease, "poison")
            await other.look()
            assert (await ledger.jobs.get(REVIEWS, "a")).open
            await other.reconcile()
            assert not (await ledger.jobs.get(REVIEWS, "a")).open

    async def test_a_row_with_an_invalid_value_is_dead_and_the_others_go_on(
        self, ledger: Ledger, engine: Engine, relay: Relay
    ) -> None:
        await missed(ledger, "good", "priority", "options")
        for change in (
            "UPDATE towpath_jobs SET priority = 1000 WHERE id = 'priority'",
            "UPDATE towpath_jobs SET options = '{nonsense' WHERE id = 'options'",
        ):
            await ledger.write(lambda connection, change=change: connection.execute(text(change)))
        assert await relay.look() == 1
        for id in ("priority", "options"):
            record = await ledger.jobs.get(REVIEWS, id)
            assert record.state is RecordState.DEAD
            assert record.last_error

    async def test_a_cancelled_record_stops_its_worker(
        self, ledger: Ledger, engine: Engine
    ) -> None:
        async with ledger.relayed(engine, log=Log()):
            await ledger.jobs.submit(REVIEWS, b"1", id="a")
            [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
            await ledger.jobs.begin(lease)
            await ledger.jobs.cancel(REVIEWS, "a")
            assert (await engine.inspect.job(lease.job)).cancel_requested

    async def test_a_record_that_was_cancelled_without_redis_is_cancelled_there_later(
        self, ledger: Ledger, engine: Engine, relay: Relay
    ) -> None:
        lease = await begun(ledger, engine)
        await ledger.jobs.cancel(REVIEWS, "a")
        await relay.look()
        assert (await engine.inspect.job(lease.job)).cancel_requested

    async def test_a_record_that_is_cancelled_during_a_poll_is_found_by_the_next_poll(
        self, server: EmbeddedServer, ledger: Ledger
    ) -> None:
        """The relay has read the row, and records that it saw the job, no more."""
        async with InterruptedEngine(server.url, limits=SHORT) as engine:
            lease = await begun(ledger, engine)
            engine.interruption = lambda: ledger.jobs.cancel(REVIEWS, "a")
            relay = Relay(ledger, engine, log=Log())
            await relay.look()
            await due(ledger)
            await relay.look()
            assert (await engine.inspect.job(lease.job)).cancel_requested


class TestARecordThatEndedLongAgo:
    async def test_is_removed_little_by_little_beside_the_work(
        self, ledger: Ledger, engine: Engine, relay: Relay
    ) -> None:
        old = "UPDATE towpath_jobs SET state = 'completed', finished_at = 1, relay_at = NULL"
        await missed(ledger, *(f"old{n}" for n in range(150)))
        await ledger.write(lambda connection: connection.execute(text(old)))
        await missed(ledger, "new")
        left: list[int] = []
        for _ in range(2):
            await relay.look()
            left.append((await ledger.jobs.counts(REVIEWS))[RecordState.COMPLETED])
        assert left == [50, 0]
        assert (await engine.inspect.counts(REVIEWS)).ready == 1


class TestWhileRedisIsAway:
    async def test_records_are_made_and_queued_when_it_is_back(self, ledger: Ledger) -> None:
        with EmbeddedServer() as server:
            async with Engine(server.url, limits=SHORT) as engine:
                relay = Relay(ledger, engine, log=Log(), look_every=seconds(0.05))
                async with relay:
                    await ledger.jobs.submit(REVIEWS, b"1", id="before")
                    server.kill()
                    for n in range(20):
                        await ledger.jobs.submit(REVIEWS, b"1", id=f"r{n}")
                    server.start()

                    async def all_there() -> bool:
                        with suppress(ServerUnreachable):  # until a probe has found it again
                            return (await engine.inspect.counts(REVIEWS)).ready == 21
                        return False

                    await eventually_async(all_there)


class TestBesideAFrozenShard:
    async def test_records_of_other_shards_are_queued_at_once(
        self, ledger: Ledger, url: str, shards: FreezableShards
    ) -> None:
        """Neither records of the same commit wait for the frozen shard, nor later ones; no relay
        polls here that could enqueue them.
        """
        slow = Limits(answer=seconds(30), give_up=seconds(60))
        database = create_async_engine(named(url))
        async with Engine(shards.url, limits=slow) as engine:
            ledger.jobs.relay = Relay(ledger, engine, log=Log())
            for queue in (shards.bad, shards.good):
                await engine.inspect.counts(queue)
            shards.freeze()
            for queues in ((shards.bad, shards.good), (shards.good,)):
                async with AsyncSession(database) as session, session.begin():
                    for queue in queues:
                        await ledger.jobs.submit_in(session, queue, b"1")

            async def both_are_there() -> bool:
                return (await engine.inspect.counts(shards.good)).ready == 2

            await eventually_async(both_are_there)
            shards.thaw()
        await database.dispose()

    async def test_a_submit_to_another_shard_does_not_wait(
        self, ledger: Ledger, shards: FreezableShards, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """This holds even if it was made in one transaction with a record of that shard."""
        monkeypatch.setattr("towpath.ledger.records.jobs.QUEUE_WAIT", seconds(60))
        async with Engine(shards.url, limits=Limits(give_up=seconds(60))) as engine:
            ledger.jobs.relay = Relay(ledger, engine, log=Log())
            for queue in (shards.bad, shards.good):
                await engine.inspect.counts(queue)
            shards.freeze()
            # The first goes alone; those that come meanwhile go together.
            queues = (shards.bad, shards.bad, shards.good)
            *waiting, mine = [asyncio.create_task(ledger.jobs.submit(q, b"1")) for q in queues]
            await asyncio.wait_for(mine, timeout=HANGS)
            assert not any(task.done() for task in waiting)
            assert (await engine.inspect.counts(shards.good)).ready == 1
            shards.thaw()
            await asyncio.gather(*waiting)
