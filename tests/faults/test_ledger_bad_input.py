"""Rows that somebody edits, queue entries that somebody spoils, jobs that have no row (A6).

What can't be worked on is set aside with its reason, and what is beside it goes on.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import text

from tests.faults.meanwhile import meanwhile
from tests.waiting import eventually_async
from tests.worker.running import working
from towpath.app.app import Towpath
from towpath.clock import milliseconds, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import job_ref
from towpath.engine.retry import Fixed
from towpath.engine.states import State
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.record import Record, RecordState
from towpath.ledger.records.relay import Relay
from towpath.telemetry.logs import Log
from towpath.worker.context import Context

QUEUE = "records"
FAR = 2**62
"""No clock has a token like that, and no script could count on from it."""


class Shop:
    """An app with a handler of records, and a relay that goes through all of them at each look."""

    def __init__(self, server: EmbeddedServer, ledger: Ledger, engine: Engine) -> None:
        self.server, self.ledger, self.engine = server, ledger, engine
        often = {"look_every": milliseconds(100), "reconcile_every": milliseconds(100)}
        self.relay = Relay(ledger, lambda: engine, log=Log(), **often)
        self.app = Towpath(server.url, ledger=ledger)
        self.ran: list[tuple[str, int]] = []
        self.gate = asyncio.Event()
        self.gate.set()

        @self.app.handler(QUEUE, record=True, retry=Fixed(milliseconds(1)))
        async def run(payload: int, ctx: Context) -> int:
            self.ran.append((ctx.id, payload))
            await self.gate.wait()
            return payload

    async def make(self, *ids: str) -> None:
        """Records that are not in Redis yet."""
        for id in ids:
            await self.ledger.jobs.submit(QUEUE, b"1", id=id)

    async def queue(self, *ids: str) -> None:
        """Records that are."""
        self.ledger.jobs.fastpath = self.relay
        await self.make(*ids)

    async def edit(self, id: str, change: str) -> None:
        """What somebody types into the database."""
        line = text(f"UPDATE towpath_jobs SET {change} WHERE id = '{id}'")  # noqa: S608 -- ours
        await self.ledger.write(lambda it: it.execute(line))

    async def delete(self, id: str) -> None:
        line = text("DELETE FROM towpath_jobs WHERE id = :id")
        await self.ledger.write(lambda it: it.execute(line, {"id": id}))

    async def have_run(self, count: int) -> None:
        """Return when so many attempts have begun."""
        await meanwhile(lambda: len(self.ran) >= count)

    async def ends(self, *ids: str) -> dict[str, RecordState]:
        """How these ended, once all have."""
        found: dict[str, Record] = {}

        async def ended() -> bool:
            found.update({id: await self.ledger.jobs.get(QUEUE, id) for id in ids})
            return not any(it.open for it in found.values())

        await eventually_async(ended, within=20)
        return {id: it.state for id, it in found.items()}

    async def reason(self, id: str) -> str:
        return (await self.ledger.jobs.get(QUEUE, id)).last_error or ""

    async def is_dead(self, id: str, reason: str) -> None:
        """Return when Redis shows the job as dead for that reason."""

        async def dead() -> bool:
            if await self.engine.inspect.state(job_ref(QUEUE, id)) is not State.DEAD:
                return False
            return reason in ((await self.engine.inspect.job(job_ref(QUEUE, id))).reason or "")

        await eventually_async(dead, within=20)

    @asynccontextmanager
    async def at_work(self) -> AsyncGenerator[None]:
        async with self.relay, working(self.app, lease=seconds(1)):
            yield


@pytest.fixture
async def shop(server: EmbeddedServer, url: str) -> AsyncIterator[Shop]:
    async with Ledger(url) as ledger, Engine(server.url) as engine:
        await ledger.migrate()
        yield Shop(server, ledger, engine)


class TestARowEditedWhileItsJobIsQueued:
    async def test_decides_what_is_run(self, shop: Shop) -> None:
        await shop.queue("good", "payload", "cancelled", "completed", "gone")
        sqlite = shop.ledger.shown.startswith("sqlite")
        await shop.edit("payload", "payload = CAST('7' AS BLOB)" if sqlite else "payload = '7'")
        await shop.edit("cancelled", "state = 'cancelled'")
        await shop.edit("completed", "state = 'completed'")
        await shop.delete("gone")
        async with shop.at_work():
            states = await shop.ends("good", "payload", "cancelled", "completed")
            await shop.is_dead("gone", "RecordMissing")
        assert sorted(shop.ran) == [("good", 1), ("payload", 7)]
        assert list(states.values()) == ["completed", "completed", "cancelled", "completed"]

    @pytest.mark.parametrize("change", [f"fence = {FAR}", "attempts = -1", "max_attempts = 0"])
    async def test_into_what_nobody_can_count_with_is_dead_with_the_reason(
        self, shop: Shop, change: str
    ) -> None:
        """Found by the worker itself: no relay looks here."""
        await shop.queue("bad", "good")
        await shop.edit("bad", change)
        async with working(shop.app, lease=seconds(1)):
            states = await shop.ends("bad", "good")
            await shop.is_dead("bad", "can't be read")
        assert states == {"bad": RecordState.DEAD, "good": RecordState.COMPLETED}
        assert shop.ran == [("good", 1)]


class TestARowThatIsSpoilt:
    async def test_before_it_is_queued_is_set_aside_with_the_reason(self, shop: Shop) -> None:
        """None of it gets to Redis, where a script or a worker would stumble over it."""
        changes = {
            "priority": "priority = 1000", "due": f"due_at = {FAR}", "fence": f"fence = {FAR}",
            "lane": "lane = ''", "json": "options = '{nonsense'", "list": "options = '[]'",
            "lease": """options = '{"lease": "abc"}'""", "keep": """options = '{"keep": -1}'""",
            "retry": """options = '{"retry": "no policy"}'""",
            "headers": """options = '{"headers": "{}}"}'""", "other": """options = '{"x": 1}'""",
        }  # fmt: skip
        await self.spoil(shop, changes)

    async def test_with_text_where_a_number_belongs_too(self, shop: Shop) -> None:
        if not shop.ledger.shown.startswith("sqlite"):
            pytest.skip("PostgreSQL takes no text for a number")
        names = ("attempts", "max_attempts", "fence", "priority", "due_at")
        await self.spoil(shop, {name: f"{name} = 'abc'" for name in names})

    async def spoil(self, shop: Shop, changes: dict[str, str]) -> None:
        await shop.make(*changes, "good")
        for id, change in changes.items():
            await shop.edit(id, change)
        async with shop.at_work():
            states = await shop.ends(*changes, "good")
        assert states.pop("good") is RecordState.COMPLETED
        assert {id: state for id, state in states.items() if state is not RecordState.DEAD} == {}
        assert {id for id in changes if "can't be read" not in await shop.reason(id)} == set()
        assert len((await shop.ledger.jobs.list(QUEUE)).records) == len(changes) + 1


class TestARowEditedWhileItRuns:
    async def test_back_to_pending_still_ends(self, shop: Shop) -> None:
        async with self.running(shop):
            await shop.edit("a", "state = 'pending'")
            shop.gate.set()
            states = await shop.ends("a", "b")
        assert set(states.values()) == {RecordState.COMPLETED}

    async def test_and_deleted_is_seen_in_redis(self, shop: Shop) -> None:
        async with self.running(shop):
            await shop.delete("a")
            shop.gate.set()
            await shop.ends("b")
            await shop.is_dead("a", "RecordMissing")

    async def test_to_a_later_fence_ends_by_a_later_attempt(self, shop: Shop) -> None:
        """As if another attempt had begun, on a Redis whose clock is an hour ahead."""
        async with self.running(shop):
            await shop.edit("a", "fence = fence + 3600000000")
            later = (await shop.ledger.jobs.get(QUEUE, "a")).fence
            shop.gate.set()
            await shop.ends("a", "b")
        assert (await shop.ledger.jobs.get(QUEUE, "a")).fence > later
        assert sorted(id for id, _ in shop.ran) == ["a", "a", "b"]

    @asynccontextmanager
    async def running(self, shop: Shop) -> AsyncGenerator[None]:
        shop.gate.clear()
        async with shop.at_work():
            await shop.make("a", "b")
            await shop.have_run(2)
            yield


class TestACorruptEntry:
    @pytest.mark.parametrize(
        "junk", [b"", b"x", b"\x01" * 60, b"\x01" + b"\0" * 32 + b"w\0\xc1\xff"],
        ids=["nothing", "short", "endless", "broken"],
    )  # fmt: skip
    async def test_in_redis_does_not_stop_the_others(self, shop: Shop, junk: bytes) -> None:
        """The row is whole, so its record is queued anew or ends dead with the reason."""
        ids = [f"r{n}" for n in range(6)]
        await shop.queue(*ids)
        shop.server.ask("SET", f"{{{QUEUE}}}:job:r2", junk)
        shop.server.ask("ZADD", f"{{{QUEUE}}}:queue", 1, "stray")
        async with shop.at_work():
            states = await shop.ends(*ids)
            await shop.is_dead("stray", "NO_RECORD")
        ended = states.pop("r2")
        assert ended is RecordState.COMPLETED or "NO_RECORD" in await shop.reason("r2")
        assert set(states.values()) == {RecordState.COMPLETED}

    async def test_of_a_job_that_runs_does_not_stop_its_worker(self, shop: Shop) -> None:
        shop.gate.clear()
        async with shop.at_work():
            await shop.make("a", "b", "c")
            await shop.have_run(3)
            shop.server.ask("SET", f"{{{QUEUE}}}:job:b", "garbage")
            shop.gate.set()
            states = await shop.ends("a", "c")
            await shop.ends("b")
        assert set(states.values()) == {RecordState.COMPLETED}

    async def test_of_a_whole_queue_does_not_stop_other_queues(self, shop: Shop) -> None:
        shop.server.ask("SET", "{another}:meta", "in the way")
        await shop.ledger.jobs.submit("another", b"1", id="a")
        await shop.make("a")
        async with shop.at_work():
            assert await shop.ends("a") == {"a": RecordState.COMPLETED}
        assert (await shop.ledger.jobs.get("another", "a")).state is RecordState.PENDING


async def test_a_job_without_a_row_is_dead_with_the_reason(shop: Shop) -> None:
    await shop.engine.submit(QUEUE, b"1", id="nobodys")
    async with shop.at_work():
        await shop.make("a")
        assert await shop.ends("a") == {"a": RecordState.COMPLETED}
        await shop.is_dead("nobodys", "RecordMissing: the ledger has no record of this job")
    assert shop.ran == [("a", 1)]
