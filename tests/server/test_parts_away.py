"""Redis or the database is away: requests are refused, and answered again once it is back.

How soon they are refused is the limit of the server's engine and of its ledger.
"""

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.server.serving import Api, RunningServer, begin, code, problem, serve
from tests.waiting import HANGS, eventually
from towpath.embedded import EmbeddedServer


@pytest.fixture(scope="module")
def served(home: Path, store: EmbeddedServer) -> Iterator[RunningServer]:
    with serve(home, store.url) as running:
        yield running


@pytest.fixture
def api(served: RunningServer, queue: str) -> Api:
    return served.api(queue)


def _ask(ask: Callable[[], httpx.Response]) -> httpx.Response:
    return ask()


def every_kind_is_refused(api: Api) -> None:
    asks: list[Callable[[], httpx.Response]] = [
        lambda: api.post("/jobs", {"payload": 1}),
        lambda: api.post("/claim", {"worker": "w"}),
        lambda: api.post("/claim", {"worker": "w", "wait": 50}),
        lambda: api.post("/jobs/a/complete", {"token": 1}),
        lambda: api.get("/jobs/a"),
        api.get,
    ]
    with ThreadPoolExecutor(len(asks)) as askers:
        answers = list(askers.map(_ask, asks))
    assert {code(answer, 503) for answer in answers} == {"server-unreachable"}


def part_is_named(client: httpx.Client, part: str) -> None:
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    told = answer.json()
    assert told["ready"] is False
    assert [name for name, state in told["parts"].items() if not state["ok"]] == [part]
    assert told["parts"][part]["remedy"]
    assert client.get("/livez").text == "ok"


class TestRedis:
    def test_that_is_frozen_is_reported_until_it_answers_again(
        self, api: Api, store: EmbeddedServer
    ) -> None:
        api.submit(1, id="a")
        store.pause()
        try:
            every_kind_is_refused(api)
            part_is_named(api.client, "store")
            scraped = api.client.get("/metrics")
            assert "\ntowpath_queues_readable 0.0\n" in scraped.text
        finally:
            store.unpause()
        eventually(lambda: api.client.get("/readyz").status_code == 200)
        assert api.look("a")["payload"] == 1

    def test_that_is_killed_is_reported_until_it_answers_again(
        self, api: Api, store: EmbeddedServer
    ) -> None:
        api.submit(1, id="a")
        store.kill()
        every_kind_is_refused(api)
        part_is_named(api.client, "store")
        store.start()
        eventually(lambda: api.client.get("/readyz").status_code == 200)
        assert api.look("a")["payload"] == 1
        assert api.post("/jobs", {"payload": 2}).status_code == 202

    @pytest.mark.parametrize("fault", ["frozen", "killed"])
    def test_that_is_back_makes_the_server_ready_at_once(self, tmp_path: Path, fault: str) -> None:
        """No background task fails because Redis was away."""
        sweeping = {
            "TOWPATH_UPLOADS__DIRECTORY": str(tmp_path / "objects"),
            "TOWPATH_UPLOADS__SWEEP_EVERY": "1s",
        }
        with (
            EmbeddedServer(data=tmp_path / "valkey") as store,
            serve(tmp_path, store.url, **sweeping) as served,
        ):
            client = served.client()

            def failing() -> set[str]:
                parts = client.get("/readyz").json()["parts"]
                return {name for name, part in parts.items() if not part["ok"]}

            def of_tasks() -> list[str]:
                events = [event["event"] for event in served.events()]
                return [event for event in events if event.startswith("task.")]

            eventually(lambda: failing() == set())
            (store.pause if fault == "frozen" else store.kill)()
            eventually(lambda: "store" in failing())
            eventually(of_tasks)
            assert "uploads: sweep" not in failing()
            (store.unpause if fault == "frozen" else store.start)()
            while failed := failing():
                assert "store" in failed
            eventually(lambda: of_tasks()[-1] == "task.recovered")
            assert set(of_tasks()) == {"task.interrupted", "task.recovered"}

    def test_that_is_away_at_the_start_is_reported_until_it_answers(self, tmp_path: Path) -> None:
        store = EmbeddedServer(data=tmp_path / "valkey")
        with serve(tmp_path, store.url) as served:
            api = served.api("mails")
            assert code(api.get(), 503) == "server-unreachable"
            part_is_named(api.client, "store")
            store.start()
            eventually(lambda: api.client.get("/readyz").status_code == 200)
            assert api.submit(1)["state"] == "ready"

            def said() -> list[str]:
                return [e["event"] for e in served.events() if e["event"].startswith("server")]

            eventually(lambda: said() == ["server.unreachable", "server.back"])
        store.stop()

    def test_that_may_evict_jobs_is_reported_as_unsafe(
        self, served: RunningServer, store: EmbeddedServer
    ) -> None:
        """It is reported as unsafe, not as unreachable; also if the setting is changed later."""
        client = served.client()
        store.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        try:
            told = client.get("/readyz").json()["parts"]["store"]
            assert told["error"] == "eviction_unsafe"
            assert "noeviction" in told["remedy"]
        finally:
            store.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        eventually(lambda: client.get("/readyz").status_code == 200)

    def test_that_may_evict_jobs_at_the_start_is_reported_as_unsafe(
        self, tmp_path: Path, store: EmbeddedServer
    ) -> None:
        store.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        try:
            with serve(tmp_path, store.url) as served:
                api = served.api("mails")
                told = api.client.get("/readyz").json()["parts"]["store"]
                assert told["error"] == "eviction_unsafe"
                assert "noeviction" in told["remedy"]
                assert code(api.get(), 503) == "eviction-unsafe"
                store.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
                eventually(lambda: api.client.get("/readyz").status_code == 200)
        finally:
            store.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")

    def test_that_is_full_refuses_submits_and_lets_workers_finish(
        self, api: Api, store: EmbeddedServer
    ) -> None:
        api.submit(1, id="a")
        store.ask("CONFIG", "SET", "maxmemory", "1")
        try:
            assert code(api.post("/jobs", {"payload": 1}), 503) == "memory-full"
            [job] = api.claim()
            assert api.say("complete", job).json()["state"] == "done"
        finally:
            store.ask("CONFIG", "SET", "maxmemory", "0")


class TestTheDatabase:
    """Keys that were checked a moment ago still count; no request is accepted unchecked."""

    def refused(self, api: Api) -> None:
        def is_refused() -> bool:
            return api.get().status_code == 503

        eventually(is_refused)
        told = problem(api.get(), 503)
        assert "ledger" in told["type"]
        assert "ledger.db" not in str(told)
        part_is_named(api.client, "ledger")

    def back(self, api: Api) -> None:
        eventually(lambda: api.client.get("/readyz").status_code == 200)
        assert api.get().status_code == 200

    def test_that_is_locked_by_another_process_can_still_be_read(
        self, api: Api, home: Path
    ) -> None:
        """Reading works beside a writer; readiness reports that nothing can be written."""
        client = api.client
        other = sqlite3.connect(home / "ledger.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        part_is_named(client, "ledger")
        assert client.get("/api/v1/queues").status_code == 200
        other.execute("ROLLBACK")
        other.close()
        eventually(lambda: client.get("/readyz").status_code == 200)

    def test_without_its_tables_is_reported_until_they_are_back(
        self, served: RunningServer, api: Api, home: Path
    ) -> None:
        other = sqlite3.connect(home / "ledger.db", isolation_level=None)
        tables = [
            name
            for (name,) in other.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if name.startswith("towpath")
        ]
        for name in tables:
            other.execute(f"ALTER TABLE {name} RENAME TO {name}_away")
        self.refused(api)
        assert served.client(key="").get("/api/v1/queues").status_code == 401
        for name in tables:
            other.execute(f"ALTER TABLE {name}_away RENAME TO {name}")
        other.close()
        self.back(api)

    def test_that_was_moved_does_not_reveal_its_path(
        self, served: RunningServer, home: Path
    ) -> None:
        """Any key that was not seen before makes the server ask the database."""
        file, away = home / "ledger.db", home / "away.db"
        file.rename(away)
        try:
            told = problem(served.client("tp_guessed_0123456789").get("/api/v1/queues"), 503)
        finally:
            away.rename(file)
        assert told["type"].rpartition("/")[2].startswith("ledger")
        assert not any(word in str(told) for word in (home.name, "ledger.db", "sqlite")), told
        eventually(lambda: served.client().get("/readyz").status_code == 200)

    def test_that_is_away_at_the_start_stops_the_server(
        self, tmp_path: Path, server: EmbeddedServer
    ) -> None:
        """Without keys nothing can be served, so the command ends at once with a remedy."""
        words = ("serve", "--url", server.url, "--database", f"sqlite:///{tmp_path}/no/such.db")
        with begin(*words, log=tmp_path / "log") as process:
            process.communicate(timeout=HANGS)
        assert process.returncode == 75
        assert "ledger_unreachable" in (tmp_path / "log").read_text()
