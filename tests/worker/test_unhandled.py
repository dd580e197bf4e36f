"""A worker that cannot run a job leaves it to others: it lacks the handler, or the payload's type
is that of another release.
"""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.fixtures import SLOW_ANSWERS
from tests.waiting import eventually_async
from tests.worker import process_handlers
from tests.worker.in_process_worker import SOON, LogLines, spoil, working
from towpath.app.app import Towpath
from towpath.clock import ZERO, milliseconds, minutes, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.explain import Why
from towpath.engine.model import JobInfo, JobRef, Release, job_ref
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.engine.worker_registry import HandlerReport, WorkerReport
from towpath.worker import unhandled
from towpath.worker.handler import HandlerOptions
from towpath.worker.unhandled import LONGEST, SHORTEST, SOON_PER_SECOND, UnhandledJobs
from towpath.worker.worker import Worker

MAIL = "mail"
SHRED = {"handler": "shred"}
NEVER = minutes(60)


@pytest.fixture
async def newer(server: EmbeddedServer) -> AsyncIterator[Towpath]:
    """An app of a newer release, on the same Redis."""
    newer = Towpath(server.url, limits=SLOW_ANSWERS)
    async with newer:
        yield newer


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets such jobs come back soon, however often they were released."""
    monkeypatch.setattr(unhandled, "LONGEST", milliseconds(300))


def sending(app: Towpath) -> None:
    """Gives *app* the handlers of the older release."""

    @app.handler(MAIL)
    async def send(to: str) -> str:
        return f"sent to {to}"


def shredding(app: Towpath) -> None:
    """Gives *app* the handlers of the newer release."""
    sending(app)

    @app.handler(MAIL, name="shred")
    async def shred(to: str) -> str:
        return f"shredded {to}"


async def given_back(engine: Engine, times: int) -> None:
    """Returns once workers have left jobs of the queue to others so many times."""

    async def so_often() -> bool:
        return (await engine.inspect.counts(MAIL)).totals["unhandled"] >= times

    await eventually_async(so_often)


async def seen(engine: Engine, job: JobRef, *states: State) -> JobInfo:
    found: list[JobInfo] = []

    async def there() -> bool:
        found[:] = [await engine.inspect.job(job)]
        return found[0].state in states

    await eventually_async(there)
    return found[0]


def another(*handlers: HandlerReport, **more: Any) -> WorkerReport:
    """The report of another worker that serves the same queue."""
    about: dict[str, Any] = {
        "host": "build-3", "pid": 7, "queues": [MAIL], "serving": 1, "slots": 10, "running": 0,
        "jobs": [], "handlers": handlers, "handling": len(handlers),
    }  # fmt: skip
    return WorkerReport(**about | more)


class TestAJobWhoseHandlerIsMissing:
    @pytest.mark.usefixtures("quick")
    async def test_waits_for_a_worker_that_has_it(self, app: Towpath, newer: Towpath) -> None:
        await app.engine.queues.configure(MAIL, QueueOptions(max_attempts=1, keep=NEVER))
        sending(app)
        shredding(newer)
        async with working(app):
            job = (await app.engine.submit(MAIL, b'"ada"', headers=SHRED)).job
            await given_back(app.engine, 2)
            waiting = await app.engine.inspect.job(job)
            assert waiting.state in (State.DELAYED, State.READY, State.LEASED)
            assert (waiting.unhandled, waiting.reason) == ("HandlerNotFound", None)
            assert waiting.unhandled_since is not None
            async with working(newer):
                done = await app.engine.events.ended(job, within=SOON)
        assert (done.state, done.result, done.attempts) == (State.DONE, b'"shredded ada"', 1)
        assert done.unhandled_since is None

    @pytest.mark.usefixtures("quick")
    async def test_is_never_lost_while_workers_of_both_releases_run(
        self, app: Towpath, newer: Towpath
    ) -> None:
        sending(app)
        shredding(newer)
        ids = [f"j{n}" for n in range(20)]
        async with working(app, concurrency=2), working(newer, concurrency=2):
            for id in ids:
                await app.engine.submit(MAIL, b'"ada"', id=id, headers=SHRED, keep=NEVER)
            for id in ids:
                done = await app.engine.events.ended(job_ref(MAIL, id), within=SOON)
                assert done.state is State.DONE

    async def test_comes_back_after_twice_the_time_each_time(self, app: Towpath) -> None:
        sending(app)
        async with working(app):
            job = (await app.engine.submit(MAIL, b'"ada"', headers=SHRED)).job
            await given_back(app.engine, 3)
            found = await seen(app.engine, job, State.DELAYED)
        assert found.unhandled_since is not None
        assert found.next_try_at is not None
        # Delays of 1, 2 and 4 seconds: a busy machine only makes them later.
        assert found.next_try_at - found.unhandled_since >= seconds(7)
        assert found.attempts == 0

    async def test_is_dead_if_no_live_worker_has_it_for_long(
        self, app: Towpath, lines: LogLines
    ) -> None:
        sending(app)
        async with working(app, unhandled_for=milliseconds(500)):
            job = (await app.engine.submit(MAIL, b'"ada"', headers=SHRED)).job
            dead = await app.engine.events.ended(job, within=SOON)
        assert (dead.state, dead.attempts) == (State.DEAD, 1)
        reason = str(dead.reason)
        assert reason.startswith("HandlerNotFound: ")
        assert ["shred" in reason, "send" in reason] == [True, True]
        assert [line["handler"] for line in lines.of("handler.not_found")] == ["shred"]
        assert (await app.engine.inspect.counts(MAIL)).totals["unhandled"] == 1

    @pytest.mark.parametrize(
        "report",
        [
            pytest.param(another(HandlerReport(MAIL, "shred", "1f")), id="has it"),
            pytest.param(another(handlers=None), id="of an older release"),
            pytest.param(another(handling=101), id="has more than it lists"),
        ],
    )
    async def test_is_not_dead_while_a_live_worker_may_have_it(
        self, app: Towpath, report: WorkerReport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(unhandled, "SHORTEST", milliseconds(10))
        sending(app)
        await app.engine.workers.report("other", report, lasts=NEVER)
        async with working(app, unhandled_for=ZERO):
            job = (await app.engine.submit(MAIL, b'"ada"', headers=SHRED)).job
            await given_back(app.engine, 5)
            assert (await app.engine.inspect.job(job)).attempts <= 1
            assert (await app.engine.inspect.counts(MAIL)).dead == 0
            await app.engine.workers.remove("other")
            dead = await app.engine.events.ended(job, within=SOON)
        assert dead.state is State.DEAD

    @pytest.mark.parametrize(
        "report",
        [
            pytest.param(another(HandlerReport(MAIL, None)), id="another handler"),
            pytest.param(
                another(HandlerReport("other", "shred"), queues=["other"]), id="another queue"
            ),
            pytest.param(another(handlers=None, queues=["other"]), id="older, of another queue"),
        ],
    )
    async def test_is_dead_even_if_live_workers_without_it_exist(
        self, app: Towpath, report: WorkerReport
    ) -> None:
        sending(app)
        await app.engine.workers.report("other", report, lasts=NEVER)
        async with working(app, unhandled_for=ZERO):
            job = (await app.engine.submit(MAIL, b'"ada"', headers=SHRED)).job
            assert (await app.engine.events.ended(job, within=SOON)).state is State.DEAD

    async def test_is_not_dead_soon_after_the_only_worker_with_it_has_gone(
        self, app: Towpath
    ) -> None:
        """Its time starts anew with each survey that finds such a worker."""
        sending(app)
        other = another(HandlerReport(MAIL, "shred"))
        await app.engine.workers.report("other", other, lasts=NEVER)
        async with working(app, unhandled_for=milliseconds(800)):
            job = (await app.engine.submit(MAIL, b'"ada"', headers=SHRED)).job
            since = [(await seen(app.engine, job, State.DELAYED)).unhandled_since]

            async def anew() -> bool:
                now = (await seen(app.engine, job, State.DELAYED)).unhandled_since
                since.extend([now] if now != since[-1] else [])
                return len(since) > 1

            await eventually_async(anew)
        assert None not in since

    async def test_is_not_dead_while_redis_does_not_list_the_workers(
        self, app: Towpath, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(unhandled, "SHORTEST", milliseconds(10))
        sending(app)
        spoil(server, "towpath:{workers}:living")
        async with working(app, unhandled_for=ZERO):
            job = (await app.engine.submit(MAIL, b'"ada"', headers=SHRED)).job
            await given_back(app.engine, 3)
            assert (await app.engine.inspect.counts(MAIL)).dead == 0
            server.ask("DEL", "towpath:{workers}:living")
            assert (await app.engine.events.ended(job, within=SOON)).state is State.DEAD

    async def test_has_all_its_time_again_after_a_retry(self, app: Towpath) -> None:
        sending(app)
        async with working(app, unhandled_for=milliseconds(500)):
            job = (await app.engine.submit(MAIL, b'"ada"', headers=SHRED)).job
            await app.engine.events.ended(job, within=SOON)
            await app.engine.retry(job)
            await app.engine.events.ended(job, within=SOON)
        totals = (await app.engine.inspect.counts(MAIL)).totals
        assert (totals["unhandled"], totals["died"]) == (2, 2)

    @pytest.mark.usefixtures("quick")
    async def test_keeps_its_lane_waiting(self, app: Towpath, newer: Towpath) -> None:
        ran: list[str] = []
        for each in (app, newer):

            @each.handler(MAIL)
            async def send(to: str) -> None:
                ran.append(to)

        @newer.handler(MAIL, name="shred")
        async def shred(to: str) -> None:
            ran.append(to)

        async with working(app):
            await app.engine.submit(MAIL, b'"first"', lane="ada", headers=SHRED)
            second = await app.engine.submit(MAIL, b'"second"', lane="ada", keep=NEVER)
            await app.engine.submit(MAIL, b'"beside"')
            await given_back(app.engine, 2)
            assert ran == ["beside"]
            explained = await app.engine.inspect.explain(second.job)
            assert explained.why is Why.BEHIND_LANE
            async with working(newer):
                await app.engine.events.ended(second.job, within=SOON)
        assert ran == ["beside", "first", "second"]

    async def test_is_logged_as_a_warning_once_and_counted_each_time(
        self, app: Towpath, lines: LogLines
    ) -> None:
        sending(app)
        async with working(app) as worker:
            for _ in range(30):
                await app.engine.submit(MAIL, b'"ada"', headers=SHRED)
            await given_back(app.engine, 31)

            async def all_counted() -> bool:
                counts = await app.engine.inspect.counts(MAIL)
                return counted(worker) == counts.totals["unhandled"]

            await eventually_async(all_counted)
            # A worker that stops releases the jobs that it has just claimed: that is another log
            # line.
            assert "job.released" not in lines.events()
        [line] = lines.of("job.unhandled")
        told = (line["queue"], line["handler"], line["reason"])
        assert told == (MAIL, "shred", "HandlerNotFound")


def counted(worker: Worker) -> float | None:
    """How many such jobs the worker's metrics show."""
    labels = {"queue": MAIL, "handler": "unknown"}
    return worker.metrics.registry.get_sample_value("towpath_jobs_unhandled_total", labels)


class TestManyJobsWhoseHandlerIsMissing:
    async def test_come_back_soon_only_up_to_a_limit_per_second_and_queue(
        self, app: Towpath, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [7.0]
        monkeypatch.setattr(unhandled, "steady", lambda: now[0])
        jobs = UnhandledJobs(app.engine, worker="anna", unhandled_for=minutes(5))
        [lease] = await leased(app.engine, MAIL)
        [other] = await leased(app.engine, "other")

        def delays(count: int) -> list[Release]:
            return [jobs.give_back(lease) for _ in range(count)]

        assert {one.delay for one in delays(SOON_PER_SECOND)} == {SHORTEST}
        late = {one.delay for one in delays(1000)}
        assert LONGEST / 2 <= min(late) < max(late) <= LONGEST
        assert jobs.give_back(other).delay == SHORTEST
        now[0] += 1
        assert delays(1)[0].delay == SHORTEST


async def leased(engine: Engine, queue: str) -> list[Any]:
    await engine.submit(queue, b"")
    return await engine.claim(queue, worker="anna", lease=minutes(1))


class Letter(msgspec.Struct):
    to: str


class Parcel(msgspec.Struct):
    to: str
    weight: int


def printing(app: Towpath, kind: type[Letter | Parcel], *, record: bool = False) -> Any:
    async def send(item: Any) -> str:
        return type(item).__name__

    send.__annotations__["item"] = kind
    return app.add(MAIL, send, HandlerOptions(record=record))


LETTER = b'{"to": "ada"}'


class TestAPayloadThatDoesNotFit:
    @pytest.mark.usefixtures("quick")
    async def test_waits_for_the_worker_whose_handler_it_fits(
        self, app: Towpath, newer: Towpath
    ) -> None:
        await app.engine.queues.configure(MAIL, QueueOptions(max_attempts=1, keep=NEVER))
        printing(app, Parcel)
        printing(newer, Letter)
        await app.engine.workers.report(
            "other", another(HandlerReport(MAIL, None, "x")), lasts=NEVER
        )
        async with working(app):
            job = (await app.engine.submit(MAIL, LETTER)).job
            await given_back(app.engine, 2)
            waiting = await seen(app.engine, job, State.DELAYED)
            assert (waiting.attempts, waiting.reason) == (0, None)
            assert "weight" in str(waiting.unhandled)
            assert (await app.engine.inspect.explain(job)).why is Why.NO_HANDLER
            async with working(newer):
                done = await app.engine.events.ended(job, within=SOON)
        assert (done.state, done.result, done.attempts) == (State.DONE, b'"Letter"', 1)

    async def test_is_dead_at_once_if_all_workers_have_the_same_type(
        self, app: Towpath, newer: Towpath, lines: LogLines
    ) -> None:
        printing(app, Parcel)
        printing(newer, Parcel)
        async with working(app), working(newer):
            await both_listed(app.engine)
            job = (await app.engine.submit(MAIL, LETTER)).job
            dead = await app.engine.events.ended(job, within=SOON)
        assert (dead.state, dead.attempts) == (State.DEAD, 1)
        assert (await app.engine.inspect.counts(MAIL)).totals["unhandled"] == 0
        assert "payload.invalid" in lines.events()

    async def test_is_dead_after_a_while_once_no_other_worker_is_alive(self, app: Towpath) -> None:
        printing(app, Parcel)
        await app.engine.workers.report(
            "other", another(HandlerReport(MAIL, None, "x")), lasts=NEVER
        )
        async with working(app, unhandled_for=milliseconds(1500)):
            job = (await app.engine.submit(MAIL, LETTER)).job
            await given_back(app.engine, 1)
            await app.engine.workers.remove("other")
            dead = await app.engine.events.ended(job, within=SOON)
        # not with the second delivery, which comes after a second
        assert (await app.engine.inspect.counts(MAIL)).totals["unhandled"] == 2
        assert "weight" in str(dead.reason)

    async def test_in_a_handlers_process_is_left_to_others_too(self, app: Towpath) -> None:
        app.add(MAIL, process_handlers.sell.function, HandlerOptions(processes=1))
        await app.engine.workers.report(
            "other", another(HandlerReport(MAIL, None, "x")), lasts=NEVER
        )
        async with working(app):
            job = (await app.engine.submit(MAIL, b'"no order"')).job
            await given_back(app.engine, 1)
            assert (await seen(app.engine, job, State.DELAYED)).attempts == 0
            await app.engine.workers.remove("other")


async def both_listed(engine: Engine) -> None:
    async def both() -> bool:
        return len(await engine.workers.list()) == 2

    await eventually_async(both)


@pytest.fixture
def releases(server: EmbeddedServer, prepared_file_url: str) -> list[Towpath]:
    """An older and a newer release, on the same Redis and database."""
    return [Towpath(server.url, ledger=prepared_file_url, limits=SLOW_ANSWERS) for _ in range(2)]


class TestARecordedJob:
    @pytest.mark.usefixtures("quick")
    async def test_whose_handler_is_missing_waits_with_its_row(
        self, releases: list[Towpath]
    ) -> None:
        app, newer = releases
        async with app, newer:
            sending(app)

            @newer.handler(MAIL, name="shred", record=True, max_attempts=1)
            async def shred(to: str) -> str:
                return f"shredded {to}"

            job = await shred.submit("ada")
            async with working(app):
                await given_back(app.engine, 3)
                found = await job.info()
                assert (found.attempts, found.state in OPEN) == (0, True)
                async with working(newer):
                    assert await job.result(within=SOON) == "shredded ada"
            assert (await job.info()).attempts == 1

    async def test_whose_handler_is_missing_is_dead_with_its_row(
        self, releases: list[Towpath]
    ) -> None:
        app, newer = releases
        async with app, newer:
            sending(app)

            @newer.handler(MAIL, name="shred", record=True)
            async def shred(to: str) -> None: ...

            job = await shred.submit("ada")

            async def dead() -> bool:
                return (await job.info()).state is State.DEAD

            async with working(app, unhandled_for=ZERO):
                await eventually_async(dead)
            assert str((await job.info()).reason).startswith("HandlerNotFound")

    @pytest.mark.usefixtures("quick")
    async def test_whose_payload_does_not_fit_loses_no_attempt(
        self, releases: list[Towpath]
    ) -> None:
        app, newer = releases
        async with app, newer:
            await app.engine.queues.configure(MAIL, QueueOptions(max_attempts=1))
            printing(app, Parcel, record=True)
            send = printing(newer, Letter, record=True)
            await app.engine.workers.report(
                "other", another(HandlerReport(MAIL, None, "x")), lasts=NEVER
            )
            async with working(app):
                job = await send.submit(Letter("ada"))
                await given_back(app.engine, 3)
                found = await job.info()
                assert (found.state in OPEN, found.reason) == (True, None)
                assert "weight" in str(found.unhandled)
                async with working(newer):
                    assert await job.result(within=SOON) == "Letter"
            assert (await job.info()).attempts == 1


OPEN = (State.READY, State.DELAYED, State.LEASED)
