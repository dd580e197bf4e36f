"""The requests of the dashboard's buttons, and what open pages cost Redis."""

import asyncio
import re

import httpx

from tests.dashboard.sessions import log_in
from tests.server.in_process import client_of, key_of
from tests.server.messaging import app_on
from tests.server.serving import Api, RunningServer, code
from tests.waiting import eventually
from towpath import Engine
from towpath.dashboard.snapshot_cache import SnapshotCache
from towpath.embedded import EmbeddedServer
from towpath.embedded.process import ask, ask_fields
from towpath.engine.model import NewJob, new_job
from towpath.engine.schedule import Cron
from towpath.ledger.ledger import Ledger


class TestDeadJobs:
    def test_are_retried_by_id_and_by_a_part_of_their_reason(self, api: Api) -> None:
        for n, reason in enumerate(["Disk full", "disk FULL on b", "no route", "no route"]):
            api.bury(f"d{n}", reason=reason)
        assert api.post("/dead/retry", {"text": "disk full"}).json() == {"retried": 2, "left": 2}
        answer = api.post("/dead/retry", {"ids": ["d2", "d0", "nobody"]}).json()
        assert answer == {"retried": 1, "left": 1}
        assert [api.look(f"d{n}")["state"] for n in range(4)] == ["ready"] * 3 + ["dead"]
        assert api.post("/dead/retry", {}).json() == {"retried": 1, "left": 0}

    def test_are_deleted_one_by_one(self, api: Api) -> None:
        api.bury("gone")
        assert api.delete("/dead/gone").status_code == 204
        assert code(api.get("/jobs/gone"), 404) == "job-not-found"
        api.submit(id="open")
        assert code(api.delete("/dead/open"), 409) == "job-open"


class TestLanes:
    def test_show_what_their_jobs_wait_for(self, api: Api) -> None:
        for n in range(3):
            api.submit(id=f"a{n}", lane="ann")
        [held] = api.claim(lease=600)
        lane = {"lane": "ann", "head": held["id"], "head_state": "leased", "behind": 2}
        assert api.get("/lanes").json() == {"lanes": [lane], "after": None}
        assert code(api.post("/lanes/ann/drop"), 409) == "lane-not-parked"


class TestTheChecks:
    def test_are_those_of_doctor(self, running: RunningServer) -> None:
        client, answers = running.client(), list[httpx.Response]()

        def answered() -> bool:  # a Redis that a busy machine kept from answering is 503
            answers.append(client.get("/api/v1/doctor"))
            return answers[-1].is_success

        eventually(answered)
        told = answers[-1].json()
        assert told["durability"] == "disk"
        verdicts = {finding["check"]: finding["verdict"] for finding in told["findings"]}
        assert (verdicts["eviction"], verdicts["memory"]) == ("ok", "warn")

    def test_and_the_overview_show_a_class_that_was_weakened_while_it_runs(
        self, running: RunningServer
    ) -> None:
        client, page = running.client(), log_in(running, running.key)

        def shown() -> tuple[str | None, bool]:
            told = client.get("/api/v1/doctor").json().get("durability")
            return told, f"durability <b>{told}</b>" in page.get("/").text

        eventually(lambda: shown() == ("disk", True))
        ask(running.store, "CONFIG", "SET", "appendfsync", "everysec")
        try:
            eventually(lambda: shown() == ("second", True))
        finally:
            ask(running.store, "CONFIG", "SET", "appendfsync", "always")
        eventually(lambda: shown() == ("disk", True))


def jobs(count: int) -> list[NewJob]:
    """Half of the jobs are in lanes, each in one of its own."""
    return [new_job(b"", lane=f"lane-{n}" if n % 2 else None) for n in range(count)]


def commands(server: EmbeddedServer) -> int:
    """The commands of Redis so far, except this one."""
    stats = ask_fields(server.address, "INFO", "commandstats")
    calls = {
        name: int(str(numbers).partition("calls=")[2].split(",")[0])
        for name, numbers in stats.items()
    }
    return sum(n for name, n in calls.items() if name != "cmdstat_info")


class TestTheSnapshotCache:
    async def test_fifty_open_pages_cost_redis_as_much_as_one(
        self, engine: Engine, server: EmbeddedServer
    ) -> None:
        """Each queue is asked for once, however many pages are open."""
        for queue in ("a", "b", "c"):
            await engine.submit(queue, b"")
        snapshots = SnapshotCache(engine)

        def asked() -> int:
            told = str(server.ask("INFO", "commandstats"))
            return sum(map(int, re.findall(r"cmdstat_evalsha(?:_ro)?:calls=(\d+)", told)))

        await SnapshotCache(engine).read()  # the scripts are loaded
        before = asked()
        await snapshots.read()
        one = asked() - before
        assert one >= 3
        other = SnapshotCache(engine)
        found = await asyncio.gather(*(other.read() for _ in range(50)))
        assert asked() - before - one == one
        assert {counts.queues["a"].ready for counts in found} == {1}

    async def test_the_calls_of_an_overview_do_not_depend_on_the_number_of_jobs(
        self, engine: Engine, server: EmbeddedServer
    ) -> None:
        """Commands inside of scripts are counted, too: nothing is scanned."""

        async def cost(visitors: int) -> int:
            snapshots, before = SnapshotCache(engine), commands(server)
            await asyncio.gather(*(snapshots.read() for _ in range(visitors)))
            await asyncio.gather(*(snapshots.histories() for _ in range(visitors)))
            while len(await snapshots.histories()) < 2:
                pass  # it is being read
            return commands(server) - before

        for queue in ("a", "b"):
            await engine.submit_many(queue, jobs(2))
        await cost(1)  # the scripts are loaded
        few = await cost(1)
        assert await cost(50) == few
        for queue in ("a", "b"):
            await engine.submit_many(queue, jobs(1500))
        assert await cost(1) == few

    async def test_a_queue_that_was_just_created_is_found(self, engine: Engine) -> None:
        snapshots = SnapshotCache(engine)
        await engine.submit("old", b"")
        assert "new" not in (await snapshots.read()).queues
        await engine.submit("new", b"")
        assert "new" in (await snapshots.read_with("new")).queues

    async def test_fifty_open_pages_of_schedules_cost_redis_as_much_as_one(
        self, engine: Engine, server: EmbeddedServer, prepared_file_url: str
    ) -> None:
        """Each queue is asked for its schedules once."""
        for queue in ("a", "b", "c"):
            await engine.submit(queue, b"")
            await engine.schedules.set(queue, "nightly", Cron("0 3 * * *"))

        async def cost(visitors: int) -> int:
            app.state.snapshots, before = SnapshotCache(engine), commands(server)
            asked = [client.get("/ui/schedules") for _ in range(visitors)]
            pages = [answer.text for answer in await asyncio.gather(*asked)]
            assert [page.count(">nightly<") for page in pages] == [6] * visitors
            return commands(server) - before

        async with Ledger(prepared_file_url) as ledger:
            app = app_on(server.url, ledger)  # it is not started: nothing else calls Redis
            app.state.engine = engine
            async with client_of(app, await key_of(app, "read")) as client:
                await cost(1)  # the scripts are loaded
                one = await cost(1)
                assert await cost(50) == one
