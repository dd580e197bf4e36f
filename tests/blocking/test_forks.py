"""Programs that fork, as servers with worker processes do, after they have submitted."""

import subprocess
import sys
from pathlib import Path

from tests.waiting import HANGS
from towpath import Engine
from towpath.app.blocking import Blocking
from towpath.embedded import EmbeddedServer

ROOT = Path(__file__).parents[2]


class TestAForkedChild:
    def test_submits_to_handlers_over_its_own_connection(self, server: EmbeddedServer) -> None:
        assert forking(server, "handlers") == ["child False", "ended 0", "parent False"]
        assert submitted(server) == 3

    def test_gets_its_own_answers_while_a_thread_of_its_parent_submits(
        self, server: EmbeddedServer
    ) -> None:
        assert forking(server, "middle") == ["ended 0"] * 5
        assert submitted(server) >= 1 + 5 * 21

    def test_ends_without_waiting_for_its_parents_thread(self, server: EmbeddedServer) -> None:
        assert forking(server, "ends") == ["ended 0", "parent False"]
        assert submitted(server) == 2

    def test_waits_for_results_over_its_own_connections(self, server: EmbeddedServer) -> None:
        assert forking(server, "results") == [
            "child cancelled",
            "ended 0",
            "parent cancelled",
        ]

    def test_may_not_use_the_engine_of_its_parent(self, server: EmbeddedServer) -> None:
        """The inherited engine is left untouched, so the parent can go on."""
        assert forking(server, "engine") == [
            "child engine_closed",
            "child False",
            "ended 0",
            "parent False",
        ]
        assert submitted(server) == 3


def forking(server: EmbeddedServer, what: str) -> list[str]:
    """The output lines of a program that forks, ended by a time limit if it hangs."""
    # Newer versions of Python warn of any fork beside threads; this test forks on purpose.
    program = ["-W", "ignore", "-m", "tests.blocking.forking_program"]
    command = [sys.executable, *program, server.url, what]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=HANGS, check=False)
    assert (done.returncode, done.stderr.decode()) == (0, "")
    return done.stdout.decode().splitlines()


def submitted(server: EmbeddedServer) -> int:
    with Blocking(Engine(server.url)) as blocking:
        return blocking.run(lambda engine: engine.inspect.counts("mails")).ready
