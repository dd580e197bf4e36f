"""Rows that somebody edits, queue entries that somebody corrupts, jobs without a row (A6).

What cannot be processed is set aside with its reason, and everything else goes on.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import text

from tests.waiting import eventually_async, eventually_in_loop
from tests.worker.in_process_worker import working
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


class RecordedApp:
    """An app with a handler of records, and a relay that reads all of them at each poll."""

    def __init__(self, server: EmbeddedServer, ledger: Ledger, engine: Engine) -> None:
        self.server, self.ledger, self.engine = server, ledger, engine
        often = {"look_every": milliseconds(100), "reconcile_every": milliseconds(100)}
        self.relay = Relay(ledger, engine, log=Log(), **often)
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
        """Makes records that are not in Redis yet."""
        for id in ids:
            await self.ledger.jobs.submit(QUEUE, b"1", id=id)

    async def queue(self, *ids: str) -> None:
        """Makes records that are in Redis."""
        self.ledger.jobs.relay = self.relay
        await self.make(*ids)

    async def edit(self, id: str, change: str) -> None:
        """Changes a row as somebody does who edits the database."""
        line = text(f"UPDATE towpath_jobs SET {change} WHERE id = '{id}'")  # noqa: S608 -- ours
        await self.ledger.write(lambda connection: connection.execute(line))

    async def delete(self, id: str) -> None:
        line = text("DELETE FROM towpath_jobs WHERE id = :id")
        await self.ledger.write(lambda connection: connection.execute(line, {"id": id}))

    async def have_run(self, count: int) -> None:
        """Returns when so many attempts have begun."""
        await eventually_in_loop(lambda: len(self.ran) >= count)

    async def ends(self, *ids: str) -> dict[str, RecordState]:
        """How these records ended, once all have."""
        found: dict[str, Record] = {}

        async def ended() -> bool:
            found.update({id: await self.ledger.jobs.get(QUEUE, id) for id in ids})
            return not any(row.open for row in found.values())

        await eventually_async(ended)
        return {id: row.state for id, row in found.items()}

    async def reason(self, id: str) -> str:
        return (await self.ledger.jobs.get(QUEUE, id)).last_error or ""

    async def is_dead(self, id: str, reason: str) -> None:
        """Returns when Redis shows the job as dead for that reason."""

        async def dead() -> bool:
            if await self.engine.inspect.state(job_ref(QUEUE, id)) is not State.DEAD:
                return False
            return reason in ((await self.engine.inspect.job(job_ref(QUEUE, id))).reason or "")

        await eventually_async(dead)

    @asynccontextmanager
    async def at_work(self) -> AsyncGenerator[None]:
        async with self.relay, working(self.app, lease=seconds(1)):
            yield


@pytest.fixture
async def recorded_app(server: EmbeddedServer, url: str) -> AsyncIterator[RecordedApp]:
    async with Ledger(url) as ledger, Engine(server.url) as engine:
        await ledger.migrate()
        yield RecordedApp(server, ledger, engine)


class TestARowEditedWhileItsJobIsQueued:
    async def test_decides_the_payload_that_runs(self, recorded_app: RecordedApp) -> None:
        await recorded_app.queue("good", "payload", "cancelled", "completed", "gone")
        sqlite = recorded_app.ledger.shown.startswith("sqlite")
        await recorded_app.edit(
            "payload", "payload = CAST('7' AS BLOB)" if sqlite else "payload = '7'"
        )
        await recorded_app.edit("cancelled", "state = 'cancelled'")
        await recorded_app.edit("completed", "state = 'completed'")
        await recorded_app.delete("gone")
        async with recorded_app.at_work():
            states = await recorded_app.ends("good", "payload", "cancelled", "completed")
            await recorded_app.is_dead("gone", "RecordMissing")
        assert sorted(recorded_app.ran) == [("good", 1), ("payload", 7)]
        assert list(states.values()) == ["completed", "completed", "cancelled", "completed"]

    @pytest.mark.parametrize("change", [f"fence = {FAR}", "attempts = -1", "max_attempts = 0"])
    async def test_to_an_invalid_number_is_dead_with_the_reason(
        self, recorded_app: RecordedApp, change: str
    ) -> None:
        """The worker itself finds it: no relay reads the row meanwhile."""
        await recorded_app.queue("bad", "good")
        await recorded_app.edit("bad", change)
        async with working(recorded_app.app, lease=seconds(1)):
            states = await recorded_app.ends("bad", "good")
            await recorded_app.is_dead("bad", change)
        assert states == {"bad": RecordState.DEAD, "good": RecordState.COMPLETED}
        assert recorded_app.ran == [("good", 1)]


class TestARowThatIsCorrupted:
    async def test_before_it_is_queued_is_set_aside_with_the_reason(
        self, recorded_app: RecordedApp
    ) -> None:
        """None of it reaches Redis, where a script or a worker would fail on it."""
        changes = {
            "priority": "priority = 1000", "due": f"due_at = {FAR}", "fence": f"fence = {FAR}",
            "lane": "lane = ''", "json": "options = '{nonsense'", "list": "options = '[]'",
            "lease": """options = '{"lease": "abc"}'""", "keep": """options = '{"keep": -1}'""",
            "retry": """options = '{"retry": "no policy"}'""",
            "headers": """options = '{"headers": "{}}"}'""", "other": """options = '{"x": 1}'""",
        }  # fmt: skip
        await self.spoil(recorded_app, changes)

    async def test_with_text_where_a_number_belongs_is_set_aside_with_the_reason(
        self, recorded_app: RecordedApp
    ) -> None:
        if not recorded_app.ledger.shown.startswith("sqlite"):
            pytest.skip("PostgreSQL takes no text for a number")
        names = ("attempts", "max_attempts", "fence", "priority", "due_at")
        await self.spoil(recorded_app, {name: f"{name} = 'abc'" for name in names})

    async def spoil(self, recorded_app: RecordedApp, changes: dict[str, str]) -> None:
        await recorded_app.make(*changes, "good")
        for id, change in changes.items():
            await recorded_app.edit(id, change)
        async with recorded_app.at_work():
            states = await recorded_app.ends(*changes, "good")
        assert states.pop("good") is RecordState.COMPLETED
        assert {id: state for id, state in states.items() if state is not RecordState.DEAD} == {}
        assert {id for id in changes if not await recorded_app.reason(id)} == set()
        assert recorded_app.ran == [("good", 1)]
        assert len((await recorded_app.ledger.jobs.list(QUEUE)).records) == len(changes) + 1


class TestARowEditedWhileItRuns:
    async def test_back_to_pending_still_ends(self, recorded_app: RecordedApp) -> None:
        async with self.running(recorded_app):
            await recorded_app.edit("a", "state = 'pending'")
            recorded_app.gate.set()
            states = await recorded_app.ends("a", "b")
        assert set(states.values()) == {RecordState.COMPLETED}

    async def test_and_deleted_ends_its_job_in_redis(self, recorded_app: RecordedApp) -> None:
        async with self.running(recorded_app):
            await recorded_app.delete("a")
            recorded_app.gate.set()
            await recorded_app.ends("b")
            await recorded_app.is_dead("a", "RecordMissing")

    async def test_to_a_higher_fencing_token_is_ended_by_a_later_attempt(
        self, recorded_app: RecordedApp
    ) -> None:
        """It looks as if another attempt had begun, on a Redis whose clock is an hour ahead."""
        async with self.running(recorded_app):
            await recorded_app.edit("a", "fence = fence + 3600000000")
            later = (await recorded_app.ledger.jobs.get(QUEUE, "a")).fence
            recorded_app.gate.set()
            await recorded_app.ends("a", "b")
        assert (await recorded_app.ledger.jobs.get(QUEUE, "a")).fence > later
        assert sorted(id for id, _ in recorded_app.ran) == ["a", "a", "b"]

    @asynccontextmanager
    async def running(self, recorded_app: RecordedApp) -> AsyncGenerator[None]:
        recorded_app.gate.clear()
        async with recorded_app.at_work():
            await recorded_app.make("a", "b")
            await recorded_app.have_run(2)
            yield


class TestACorruptQueueEntry:
    @pytest.mark.parametrize(
        "junk", [b"", b"x", b"\x01" * 60, b"\x01" + b"\0" * 32 + b"w\0\xc1\xff"],
        ids=["nothing", "short", "endless", "broken"],
    )  # fmt: skip
    async def test_in_redis_does_not_stop_the_others(
        self, recorded_app: RecordedApp, junk: bytes
    ) -> None:
        """The row is intact, so its record is queued again or ends dead with the reason."""
        ids = [f"r{n}" for n in range(6)]
        await recorded_app.queue(*ids)
        recorded_app.server.ask("SET", f"{{{QUEUE}}}:job:r2", junk)
        recorded_app.server.ask("ZADD", f"{{{QUEUE}}}:queue", 1, "stray")
        async with recorded_app.at_work():
            states = await recorded_app.ends(*ids)
            await recorded_app.is_dead("stray", "NO_RECORD")
        ended = states.pop("r2")
        assert ended is RecordState.COMPLETED or "NO_RECORD" in await recorded_app.reason("r2")
        assert set(states.values()) == {RecordState.COMPLETED}

    async def test_of_a_job_that_runs_does_not_stop_its_worker(
        self, recorded_app: RecordedApp
    ) -> None:
        recorded_app.gate.clear()
        async with recorded_app.at_work():
            await recorded_app.make("a", "b", "c")
            await recorded_app.have_run(3)
            recorded_app.server.ask("SET", f"{{{QUEUE}}}:job:b", "garbage")
            recorded_app.gate.set()
            states = await recorded_app.ends("a", "c")
            await recorded_app.ends("b")
        assert set(states.values()) == {RecordState.COMPLETED}

    async def test_that_is_the_whole_queue_does_not_stop_other_queues(
        self, recorded_app: RecordedApp
    ) -> None:
        recorded_app.server.ask("SET", "{another}:meta", "in the way")
        await recorded_app.ledger.jobs.submit("another", b"1", id="a")
        await recorded_app.make("a")
        async with recorded_app.at_work():
            assert await recorded_app.ends("a") == {"a": RecordState.COMPLETED}
        assert (await recorded_app.ledger.jobs.get("another", "a")).state is RecordState.PENDING


async def test_a_job_without_a_row_is_dead_with_the_reason(recorded_app: RecordedApp) -> None:
    await recorded_app.engine.submit(QUEUE, b"1", id="nobodys")
    async with recorded_app.at_work():
        await recorded_app.make("a")
        assert await recorded_app.ends("a") == {"a": RecordState.COMPLETED}
        await recorded_app.is_dead("nobodys", "RecordMissing")
    assert recorded_app.ran == [("a", 1)]
