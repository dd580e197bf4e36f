"""A database that commit 47ef80a has left, with its Redis: records go on where they were."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.ledger.memory_sinks import MemorySink
from tests.ledger.numbered_events import QUICK
from tests.programs import COMMAND, run
from tests.server.serving import serve
from tests.stored import database_dump
from tests.stored import facts as asked
from tests.stored.fill_database import KEYS, ORDERS, REVIEWS, end
from tests.stored.make import KEPT
from tests.waiting import eventually_async
from towpath import Context, Engine, State, Towpath, Worker, hours, minutes
from towpath.apps.reviews.model import ReviewState, Verdict
from towpath.apps.reviews.service import Reviews
from towpath.clock import ManualClock
from towpath.embedded import EmbeddedServer
from towpath.engine.model import Bury, Complete, Fail, Lease, job_ref
from towpath.ledger.ledger import Ledger
from towpath.ledger.outbox.courier import Courier
from towpath.ledger.records.record import RecordState

OPEN = {
    "pending", "delayed", "unseen", "retried", "subject-r3", "failed", "running", "lane-a",
    "lane-b", "lane-c",
}  # fmt: skip
"""Records that are still to run: all that are open but the one that was cancelled."""


@pytest.fixture
async def app(filled: EmbeddedServer, ledger: Ledger, clock: ManualClock) -> AsyncIterator[Towpath]:
    """Today's app on the old data, with handlers for all of it."""
    app = Towpath(filled.url, clock=clock, ledger=ledger)

    @app.handler(ORDERS, record=True)
    async def order(name: str, ctx: Context) -> list[Any]:
        return [name, ctx.attempt]

    @app.handler(ORDERS, record=True, name="bill")
    async def bill(name: str, ctx: Context) -> list[Any]:
        return ["bill", name, ctx.attempt, ctx.headers["tenant"]]

    @app.handler(REVIEWS, record=True)
    async def review(task: bytes) -> bytes:
        return task

    async with app:
        yield app


async def held(app: Towpath, id: str) -> Lease:
    """The lease of an attempt that had begun, read from Redis."""
    job = await app.engine.inspect.job(job_ref(ORDERS, id))
    assert job.token is not None
    return Lease(
        job=job.ref,
        payload=b"",
        token=job.token,
        attempt=job.attempts,
        worker="anna",
        expires_ms=0,
        submitted_ms=0,
    )


async def state(app: Towpath, id: str) -> RecordState:
    return (await app.ledger.jobs.get(ORDERS, id)).state


async def queued(app: Towpath) -> None:
    """Waits until the relay has enqueued the records that only the database had."""

    async def is_there() -> bool:
        return await app.engine.inspect.state(job_ref(ORDERS, "unseen")) is State.READY

    await eventually_async(is_there)


class TestAStoredDatabase:
    async def test_is_migrated_without_losing_anything(
        self, url: str, facts: dict[str, Any]
    ) -> None:
        async with Ledger(url) as ledger:
            assert (await ledger.migrate())[0].before == "0006"
            told = await asked.of_database(ledger)
            assert asked.differences(facts["database"], told) == []
            await ledger.migrate()
            assert await asked.of_database(ledger) == told

    async def test_is_migrated_by_the_command(self, url: str, tmp_path: Path) -> None:
        ran = run([COMMAND, "migrate", "--json", "--database", url], cwd=tmp_path)
        assert ran.code == 0, ran.err
        before = {row["line"]: row["before"] for row in ran.objects}
        assert before["ledger"] == "0006"

    def test_has_records_of_every_state(self, facts: dict[str, Any]) -> None:
        states = {record["state"] for record in facts["database"]["records"]}
        assert states == set(RecordState)


class TestStoredKeys:
    async def test_allow_what_they_allowed_before(self, ledger: Ledger) -> None:
        admin, submit = [await ledger.keys.check(KEYS[name]) for name in ("admin", "submit")]
        assert admin is not None
        assert submit is not None
        assert admin.covers("orders")
        assert (submit.covers("mails-7"), submit.covers("orders")) == (True, False)
        assert set(submit.scopes) == {"submit"}

    async def test_that_were_revoked_stay_so(self, ledger: Ledger) -> None:
        assert await ledger.keys.check(KEYS["revoked"]) is None


class TestStoredRecords:
    async def test_that_are_open_all_run(self, app: Towpath, clock: ManualClock) -> None:
        await queued(app)
        clock.advance(hours=2)
        await Worker(app, concurrency=1).drain()
        # The leases of that time had to end first: these attempts are the second.
        assert {id: await state(app, id) for id in OPEN} == dict.fromkeys(
            OPEN, RecordState.COMPLETED
        )
        bill = await app.ledger.jobs.get(ORDERS, "running")
        assert bill.result == b'["bill","running",2,"seven"]'
        assert (await app.ledger.jobs.get(ORDERS, "failed")).result == b'["failed",2]'
        lane = [await app.ledger.jobs.get(ORDERS, f"lane-{name}") for name in "abc"]
        ends = [record.started_at for record in lane if record.started_at is not None]
        assert sorted(ends) == ends
        [review] = (
            await app.ledger.jobs.list(REVIEWS, state=RecordState.COMPLETED, size=1)
        ).records
        assert review.id == "api-waits"

    async def test_that_have_ended_are_unchanged(self, app: Towpath, clock: ManualClock) -> None:
        await queued(app)
        clock.advance(hours=2)
        await Worker(app, concurrency=1).drain()
        done = await app.ledger.jobs.get(ORDERS, "completed")
        assert (done.state, done.result) == (RecordState.COMPLETED, b'"a result"')
        for id, was in (("dead", RecordState.DEAD), ("cancelled", RecordState.CANCELLED)):
            assert await state(app, id) is was
        for id in ("subject-r1", "subject-r2"):
            assert await state(app, id) is RecordState.SUPERSEDED

    async def test_that_had_begun_are_settled_with_their_tokens(self, app: Towpath) -> None:
        await end(app, Complete(await held(app, "running"), b'"at last"'))
        done = await app.ledger.jobs.get(ORDERS, "running")
        assert (done.state, done.result) == (RecordState.COMPLETED, b'"at last"')
        await end(app, Fail(await held(app, "lane-a"), "no", minutes(1)))
        assert await state(app, "lane-a") is RecordState.FAILED

    async def test_are_not_settled_by_an_outdated_token(
        self, app: Towpath, clock: ManualClock
    ) -> None:
        old = await held(app, "running")
        clock.advance(hours=2)
        [new] = await app.engine.claim(ORDERS, worker="ben", lease=hours(1))
        assert (new.id, new.token > old.token) == ("running", True)
        assert isinstance(await app.recorder.begin(new), Lease)
        assert await app.recorder.end(old, Complete(old), cancelled=False) is None
        assert await state(app, "running") is RecordState.RUNNING

    async def test_that_were_cancelled_while_they_ran_end_cancelled(self, app: Towpath) -> None:
        lease = await held(app, "running-cancelled")
        await end(app, Fail(lease, "stopped"))
        assert await state(app, "running-cancelled") is RecordState.CANCELLED

    async def test_that_are_dead_can_be_retried(self, app: Towpath) -> None:
        await queued(app)
        await app.ledger.jobs.retry(ORDERS, "dead")
        await Worker(app, concurrency=1).drain()
        assert (await app.ledger.jobs.get(ORDERS, "dead")).result == b'["dead",1]'
        with_posting = await Reviews(app.ledger.jobs).get("api-done")
        assert with_posting.state is ReviewState.COMPLETED

    async def test_are_dead_after_their_remaining_attempts(
        self, app: Towpath, clock: ManualClock
    ) -> None:
        await queued(app)
        clock.advance(minutes=4)
        jobs = {str(lease.id): lease for lease in await _claimed(app)}
        begun = await app.recorder.begin(jobs["failed"])
        assert isinstance(begun, Lease)
        assert (begun.attempt, begun.max_attempts) == (2, 3)
        await end(app, Bury(begun, "no use"))
        assert await state(app, "failed") is RecordState.DEAD

    async def test_about_one_subject_are_superseded_by_the_latest(self, app: Towpath) -> None:
        jobs = app.ledger.jobs
        about = {"subject": "order#7", "version": 3, "revision": "r3", "follows": "r2"}
        again = await jobs.submit(ORDERS, b'"r3"', id="another-id", **about)  # type: ignore[arg-type]
        assert (again.existed, again.record.id) == (True, "subject-r3")
        late = await jobs.submit(ORDERS, b'"r0"', subject="order#7", version=0)
        assert late.record.state is RecordState.SUPERSEDED
        newer = await jobs.submit(ORDERS, b'"r4"', subject="order#7", version=4, revision="r4")
        assert newer.superseded == ("subject-r3",)

    async def test_of_reviews_are_listed(self, ledger: Ledger) -> None:
        reviews = Reviews(ledger.jobs)
        done = await reviews.get("api-done")
        assert done.review is not None
        assert done.task is not None
        assert (done.review.verdict, done.task.title) == (Verdict.COMMENT, "Ü")
        assert [comment.path for comment in done.review.comments] == ["a.py"]
        waiting = (await reviews.list(state=ReviewState.PENDING)).reviews
        assert [record.id for record in waiting] == ["api-waits"]


class TestRedisBesideAStoredDatabase:
    async def test_is_filled_again_after_it_lost_everything(
        self, filled: EmbeddedServer, app: Towpath
    ) -> None:
        await queued(app)
        filled.ask("FLUSHALL")

        async def are_all_there() -> bool:
            counts = await app.engine.inspect.counts(ORDERS)
            # One of them was asked to stop while it ran: it is there to learn that.
            here = counts.ready + counts.delayed + counts.waiting + counts.leased
            return here == len(OPEN) + 1

        await eventually_async(are_all_there)
        await Worker(app, concurrency=1).drain()
        assert await state(app, "lane-c") is RecordState.COMPLETED


class TestAStoredOutbox:
    async def test_is_sent_in_order_with_refused_events_on_request(self, ledger: Ledger) -> None:
        [aside] = await ledger.outbox.refused("audit")
        assert (aside.event.id, aside.reason) == ("aside/1", "it is malformed")
        events, audit = MemorySink("events"), MemorySink("audit")

        async def are_sent() -> bool:
            return not any(count.pending for count in (await ledger.outbox.counts()).values())

        async with Courier(ledger, [events, audit], options=QUICK):
            await eventually_async(are_sent)
            assert audit.ids == ["k/1", "k/2"]
            assert events.ids[-4:] == ["aside/1", "taken/1", "k/1", "k/2"]
            assert f"{ORDERS}/retried/dead" in events.ids
            assert await ledger.outbox.resend("audit", ["aside/1"]) == 1
            await eventually_async(are_sent)
        assert audit.ids[-1] == "aside/1"


class TestTheServerOnAStoredDatabase:
    def test_accepts_the_stored_keys(
        self, filled: EmbeddedServer, tmp_path: Path, facts: dict[str, Any]
    ) -> None:
        file, written_ms = KEPT / "ledger.sqlite.sql", facts["written_ms"]
        database_dump.load_file(file, tmp_path / "ledger.db", written_ms=written_ms)
        with serve(tmp_path, filled.url) as served:
            api = served.api("shop", KEYS["admin"])
            job = api.look("ready-named")
            assert (job["state"], job["headers"]) == ("ready", {"handler": "bill"})
            [claimed] = api.claim()
            assert api.say("complete", claimed, result=1).json()["state"] == "done"
            refused = served.api("shop", KEYS["revoked"]).get("/jobs/ready-named")
            assert refused.status_code == 401
            path = "/api/v1/reviews/api-done"
            review = served.client(KEYS["admin"]).get(path).json()
            assert review["review"]["summary"] == "a few remarks"


async def _claimed(app: Towpath) -> list[Lease]:
    engine: Engine = app.engine
    return await engine.claim(ORDERS, worker="ben", lease=hours(1), count=50)
