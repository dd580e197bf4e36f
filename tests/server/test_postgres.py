"""The server on a PostgreSQL: the same API, several servers at once, and recovery by itself."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import PostgresServer
from tests.server.serving import RunningServer, begin, code, serving
from tests.server.test_parts_away import part_is_named
from tests.waiting import HANGS, eventually
from towpath.embedded import EmbeddedServer


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory,
    postgres: PostgresServer,
    running_server: EmbeddedServer,
) -> Iterator[RunningServer]:
    """`towpath serve` on a database without any tables."""
    database = postgres.new_database("served")
    log = tmp_path_factory.mktemp("postgres") / "log"
    words = ("serve", "--url", running_server.url, "--database", database)
    with serving(*words, database=database, log=log) as running:
        _, running.own_key = running.make_key("admin")
        yield running


def test_jobs_and_keys_work_on_postgresql(served: RunningServer, queue: str) -> None:
    """The first start made the tables; another process made the keys."""
    api = served.api(queue)
    api.submit("hello", id="a")
    [job] = api.claim()
    assert api.say("complete", job).json()["state"] == "done"
    id, secret = served.make_key("read", queues=(queue,))
    assert served.api(queue, secret).get().status_code == 200
    assert code(served.api("another", secret).get(), 403) == "queue-forbidden"
    served.revoke(id)
    eventually(lambda: served.api(queue, secret).get().status_code == 401)


def test_several_servers_on_one_database_know_the_same_keys(
    served: RunningServer, queue: str, tmp_path: Path, running_server: EmbeddedServer
) -> None:
    words = ("serve", "--url", running_server.url, "--database", served.database)
    with serving(*words, database=served.database, log=tmp_path / "log") as two:
        two.own_key = served.key
        two.api(queue).submit(1, id="a")
        assert served.api(queue).look("a")["state"] == "ready"


def test_a_database_that_crashes_is_reported_until_it_answers_again(
    served: RunningServer, queue: str, postgres: PostgresServer
) -> None:
    """Refused within two seconds while it is away; nobody has to restart anything."""
    api = served.api(queue)
    api.submit(1, id="a")
    postgres.stop(signal.SIGQUIT)
    try:
        eventually(lambda: api.get().status_code == 503)
        assert code(api.get(), 503) == "ledger-unreachable"
        part_is_named(api.client, "ledger")
    finally:
        postgres.start()
    eventually(lambda: api.client.get("/readyz").status_code == 200)
    assert api.look("a")["payload"] == 1


def test_a_frozen_database_is_reported_until_it_answers_again(
    served: RunningServer, queue: str, postgres: PostgresServer
) -> None:
    api = served.api(queue)
    postgres.freeze()
    try:
        eventually(lambda: api.get().status_code == 503)
        part_is_named(api.client, "ledger")
    finally:
        postgres.thaw()
    eventually(lambda: api.get().status_code == 200)


def test_a_database_that_is_away_at_the_start_stops_the_server(
    tmp_path: Path, running_server: EmbeddedServer
) -> None:
    database = f"postgresql://towpath@/postgres?host={tmp_path}"
    words = ("serve", "--url", running_server.url, "--database", database)
    with begin(*words, log=tmp_path / "log") as process:
        process.communicate(timeout=HANGS)
    assert process.returncode == 75
    assert "ledger_unreachable" in (tmp_path / "log").read_text()
