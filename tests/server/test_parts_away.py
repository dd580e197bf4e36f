"""The store or the database is away: refused within two seconds, and back by itself."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.server.serving import PATIENCE, Api, RunningServer, begin, code, problem, serve
from tests.waiting import SLACK, eventually
from towpath.embedded import EmbeddedServer

WITHIN = 2.0


@pytest.fixture(scope="module")
def served(home: Path, store: EmbeddedServer) -> Iterator[RunningServer]:
    with serve(home, store.url) as running:
        yield running


@pytest.fixture
def api(served: RunningServer, queue: str) -> Api:
    return served.api(queue)


def timed(ask: Callable[[], httpx.Response]) -> httpx.Response:
    """The answer, which came within two seconds."""
    began = time.monotonic()
    answer = ask()
    assert time.monotonic() - began < WITHIN + SLACK
    return answer


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
        answers = list(askers.map(timed, asks))
    assert {code(answer, 503) for answer in answers} == {"server-unreachable"}


def part_is_named(client: httpx.Client, part: str) -> None:
    answer = timed(lambda: client.get("/readyz"))
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    told = answer.json()
    assert told["ready"] is False
    assert [name for name, state in told["parts"].items() if not state["ok"]] == [part]
    assert told["parts"][part]["remedy"]
    assert client.get("/livez").text == "ok"


class TestTheStore:
    def test_frozen(self, api: Api, store: EmbeddedServer) -> None:
        api.submit(1, id="a")
        store.pause()
        try:
            every_kind_is_refused(api)
            part_is_named(api.client, "store")
            scraped = timed(lambda: api.client.get("/metrics"))
            assert "\ntowpath_queues_readable 0.0\n" in scraped.text
        finally:
            store.unpause()
        eventually(lambda: api.client.get("/readyz").status_code == 200, within=PATIENCE)
        assert api.look("a")["payload"] == 1

    def test_killed_and_started_again(self, api: Api, store: EmbeddedServer) -> None:
        api.submit(1, id="a")
        store.kill()
        every_kind_is_refused(api)
        part_is_named(api.client, "store")
        store.start()
        eventually(lambda: api.client.get("/readyz").status_code == 200, within=PATIENCE)
        assert api.look("a")["payload"] == 1
        assert api.post("/jobs", {"payload": 2}).status_code == 202

    def test_not_there_at_the_start(self, tmp_path: Path) -> None:
        store = EmbeddedServer(data=tmp_path / "valkey")
        with serve(tmp_path, store.url) as served:
            api = served.api("mails")
            assert code(timed(api.get), 503) == "server-unreachable"
            part_is_named(api.client, "store")
            store.start()
            eventually(lambda: api.client.get("/readyz").status_code == 200, within=PATIENCE)
            assert api.submit(1)["state"] == "ready"

            def said() -> list[str]:
                return [e["event"] for e in served.events() if e["event"].startswith("server")]

            eventually(lambda: said() == ["server.unreachable", "server.back"], within=PATIENCE)
        store.stop()

    def test_that_may_evict_jobs_is_called_that(
        self, served: RunningServer, store: EmbeddedServer
    ) -> None:
        """Not away: whoever reads it would look for it. Also for one that is changed later."""
        client = served.client()
        store.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        try:
            told = client.get("/readyz").json()["parts"]["store"]
            assert told["error"] == "eviction_unsafe"
            assert "noeviction" in told["remedy"]
        finally:
            store.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        eventually(lambda: client.get("/readyz").status_code == 200, within=PATIENCE)

    def test_that_may_evict_jobs_at_the_start_as_well(
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
                eventually(lambda: api.client.get("/readyz").status_code == 200, within=PATIENCE)
        finally:
            store.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")

    def test_full_refuses_submits_and_lets_workers_drain(
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
    """Keys that were seen a moment ago still count; nobody gets in unchecked."""

    def refused(self, api: Api) -> None:
        def is_refused() -> bool:
            return timed(api.get).status_code == 503

        eventually(is_refused, within=PATIENCE)
        told = problem(api.get(), 503)
        assert "ledger" in told["type"]
        assert "ledger.db" not in str(told)
        part_is_named(api.client, "ledger")

    def back(self, api: Api) -> None:
        eventually(lambda: api.client.get("/readyz").status_code == 200, within=PATIENCE)
        assert api.get().status_code == 200

    def test_locked_by_somebody_else(self, api: Api, home: Path) -> None:
        """Reading goes on beside a writer; readiness says that nothing can be written."""
        client = api.client
        other = sqlite3.connect(home / "ledger.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        part_is_named(client, "ledger")
        assert client.get("/api/v1/queues").status_code == 200
        other.execute("ROLLBACK")
        other.close()
        eventually(lambda: client.get("/readyz").status_code == 200, within=PATIENCE)

    def test_without_its_tables(self, served: RunningServer, api: Api, home: Path) -> None:
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

    def test_moved_away_tells_nobody_where_it_was(self, served: RunningServer, home: Path) -> None:
        """A key that was guessed is enough to have the database asked."""
        file, away = home / "ledger.db", home / "away.db"
        file.rename(away)
        try:
            told = problem(served.client("tp_guessed_0123456789").get("/api/v1/queues"), 503)
        finally:
            away.rename(file)
        assert told["type"].rpartition("/")[2].startswith("ledger")
        assert not any(word in str(told) for word in (home.name, "ledger.db", "sqlite")), told
        eventually(lambda: served.client().get("/readyz").status_code == 200, within=PATIENCE)

    def test_not_there_at_the_start(self, tmp_path: Path, server: EmbeddedServer) -> None:
        """It can't be served without knowing who may ask: the way out is told, at once."""
        words = ("serve", "--url", server.url, "--database", f"sqlite:///{tmp_path}/no/such.db")
        process = begin(*words, log=tmp_path / "log")
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 75
        assert "ledger_unreachable" in (tmp_path / "log").read_text()
