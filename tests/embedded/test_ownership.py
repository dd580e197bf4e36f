"""A server ends with its owner, and never shares its data directory."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.embedded.processes import (
    OWNER,
    OWNER_WITHOUT_DEATH_SIGNAL,
    first_number,
    has_ended,
    python,
)
from tests.waiting import eventually
from towpath.embedded import DataDirectoryInUse, EmbeddedServer

# Ends without stopping its server, and prints where the server's files are.
FORGETFUL = """
from towpath.embedded import EmbeddedServer
server = EmbeddedServer().start()
print(server.pid, server.directory)
"""

# A forked child ends like a normal program; then it asks the server.
FORKING = """
import os, sys
from towpath.embedded import EmbeddedServer
with EmbeddedServer() as server:
    child = os.fork()
    if not child:
        sys.exit(0)
    os.waitpid(child, 0)
    print(server.ask("PING"), server.directory.exists())
"""

BYSTANDER = "import sys; print(0, flush=True); sys.stdin.read()"


class TestAServerEnds:
    def test_when_its_owner_is_killed(self, tmp_path: Path) -> None:
        with python(OWNER, tmp_path) as owner:
            server = first_number(owner)
            assert not has_ended(server)
            owner.kill()
            eventually(lambda: has_ended(server))

    def test_when_its_owner_is_killed_while_it_is_paused(self, tmp_path: Path) -> None:
        with python(OWNER, tmp_path) as owner:
            server = first_number(owner)
            os.kill(server, signal.SIGSTOP)
            owner.kill()
            eventually(lambda: has_ended(server))

    def test_when_its_owner_ends_without_stopping_it(self) -> None:
        said = subprocess.run([sys.executable, "-c", FORGETFUL], capture_output=True, check=True)
        pid, directory = said.stdout.decode().split()
        eventually(lambda: has_ended(int(pid)))
        assert not Path(directory).exists()

    def test_not_with_the_thread_that_started_it(self) -> None:
        """Linux ends a child with the *thread* that forked it, so a permanent launcher thread
        forks.
        """
        server = EmbeddedServer()
        starter = threading.Thread(target=server.start)
        starter.start()
        starter.join()
        with server:
            assert server.ask("PING") == b"PONG"
            assert server.running

    def test_not_with_a_forked_copy_of_its_owner(self) -> None:
        said = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, check=True)
        assert said.stdout.decode().split() == ["b'PONG'", "True"]


class TestADataDirectory:
    def test_is_refused_to_a_second_server_of_the_same_process(self, tmp_path: Path) -> None:
        with EmbeddedServer(data=tmp_path) as first:
            with pytest.raises(DataDirectoryInUse) as refusal:
                EmbeddedServer(data=tmp_path).start()
            assert (refusal.value.pid, refusal.value.owner) == (first.pid, os.getpid())
            assert first.ask("PING") == b"PONG"

    def test_is_refused_while_another_process_has_a_server_on_it(self, tmp_path: Path) -> None:
        with python(OWNER, tmp_path) as owner:
            server = first_number(owner)
            with pytest.raises(DataDirectoryInUse, match=f"{owner.pid}.*{server}") as refusal:
                EmbeddedServer(data=tmp_path).start()
            assert (refusal.value.pid, refusal.value.owner) == (server, owner.pid)
            assert not has_ended(server)

    def test_is_free_again_once_its_server_was_killed(self, tmp_path: Path) -> None:
        with EmbeddedServer(data=tmp_path) as first:
            first.kill()
            with EmbeddedServer(data=tmp_path) as second:
                assert second.ask("PING") == b"PONG"

    def test_is_free_at_once_after_its_owner_was_killed(self, tmp_path: Path) -> None:
        with python(OWNER, tmp_path) as owner:
            first_number(owner)
            owner.kill()
            owner.wait()
            with EmbeddedServer(data=tmp_path) as server:
                assert server.ask("GET", "written") == b"before"

    def test_is_taken_over_from_a_server_whose_owner_is_dead(self, tmp_path: Path) -> None:
        """Where the system does not end a child with its parent, the next start ends it."""
        with python(OWNER_WITHOUT_DEATH_SIGNAL, tmp_path) as owner:
            orphan = first_number(owner)
            owner.kill()
            owner.wait()
            assert not has_ended(orphan)
            with EmbeddedServer(data=tmp_path) as server:
                assert has_ended(orphan)
                assert server.ask("GET", "written") == b"before"

    def test_is_not_taken_from_a_process_that_is_not_its_server(self, tmp_path: Path) -> None:
        """A stale record may name the pid of another program, which must not be killed."""
        with python(BYSTANDER) as bystander, (tmp_path / "server.lock").open("w") as lock:
            first_number(bystander)
            fcntl.flock(lock, fcntl.LOCK_EX)
            json.dump({"owner": 1, "server": bystander.pid, "socket": "", "port": 1}, lock)
            lock.flush()
            with pytest.raises(DataDirectoryInUse) as refusal:
                EmbeddedServer(data=tmp_path).start()
            assert refusal.value.pid == bystander.pid
            assert not has_ended(bystander.pid)

    def test_is_waited_for_while_its_server_is_ending(self, tmp_path: Path) -> None:
        """A server that is being ended can no longer be identified, and still holds the lock."""
        with python("print(0)") as ended, (tmp_path / "server.lock").open("w") as lock:
            eventually(lambda: not Path(f"/proc/{ended.pid}/cmdline").read_bytes())
            fcntl.flock(lock, fcntl.LOCK_EX)
            json.dump({"owner": 1, "server": ended.pid, "socket": "", "port": 1}, lock)
            lock.flush()
            threading.Timer(0.2, lambda: fcntl.flock(lock, fcntl.LOCK_UN)).start()
            with EmbeddedServer(data=tmp_path) as server:
                assert server.ask("PING") == b"PONG"
