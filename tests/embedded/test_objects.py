"""The private object store: objects persist, nobody else reads them, and it ends with its owner."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.embedded.processes import first_number, has_ended, python
from tests.embedded.s3_requests import ask, plain
from tests.waiting import eventually
from towpath.embedded import DataDirectoryInUse, ObjectsNotFound, ServerDidNotStart
from towpath.embedded.objects import EmbeddedObjects, find_weed

OWNER = """
import sys
from pathlib import Path
from towpath.embedded.objects import EmbeddedObjects
print(EmbeddedObjects(Path(sys.argv[1])).start().pid, flush=True)
sys.stdin.read()
"""


def s3(store: EmbeddedObjects, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    return ask(store.url, method, path, body, access=store.access_key, secret=store.secret_key)


def stored(store: EmbeddedObjects, path: str, body: bytes) -> None:
    assert s3(store, "PUT", path, body)[0] == 200


def ports(data: Path) -> dict[str, int]:
    return json.loads((data / "ports.json").read_text())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


@pytest.fixture(scope="module")
def objects(data: Path) -> Iterator[EmbeddedObjects]:
    with EmbeddedObjects(data) as store:
        stored(store, "/shelf", b"")
        yield store


class TestAStoredObject:
    def test_can_be_read_again(self, objects: EmbeddedObjects) -> None:
        stored(objects, "/shelf/book", b"once upon a time" * 100_000)
        assert s3(objects, "GET", "/shelf/book") == (200, b"once upon a time" * 100_000)
        assert s3(objects, "GET", "/shelf/none")[0] == 404

    def test_can_be_read_only_with_the_right_keys(
        self, objects: EmbeddedObjects, data: Path
    ) -> None:
        """This holds for every port that speaks HTTP."""
        stored(objects, "/shelf/diary", b"private")
        access, wrong = objects.access_key, objects.secret_key[::-1]
        assert ask(objects.url, "GET", "/shelf/diary", access=access, secret=wrong)[0] == 403
        at = ports(data)
        assert plain(at["s3"], "/shelf/diary") == 403
        for method in ("GET", "PUT", "DELETE"):
            assert plain(at["filer"], "/buckets/shelf/diary", method) == 401
            assert plain(at["volume"], "/1,0123456789ab", method) == 401
        assert s3(objects, "GET", "/shelf/diary") == (200, b"private")

    def test_is_reachable_from_this_machine_only(
        self, objects: EmbeddedObjects, data: Path
    ) -> None:
        """Every port is bound to the loopback address, including those for gRPC."""
        own = [number for port in ports(data).values() for number in (port, port + 10_000)]
        assert {address_of(port) for port in own} == {"127.0.0.1"}

    def test_outlasts_a_kill_during_writes_and_is_found_at_the_same_address(
        self, tmp_path: Path
    ) -> None:
        with EmbeddedObjects(tmp_path) as store:
            stored(store, "/shelf", b"")
            before = (store.url, store.access_key, store.secret_key)
            for n in range(20):
                stored(store, f"/shelf/{n}", b"%d" % n * 1000)
            os.kill(store.pid, signal.SIGKILL)
            eventually(lambda: not store.running)
            store.restart()
            assert (store.url, store.access_key, store.secret_key) == before
            for n in range(20):
                assert s3(store, "GET", f"/shelf/{n}") == (200, b"%d" % n * 1000)
            stored(store, "/shelf/new", b"room is left")


class TestTheDirectoryOfAnObjectStore:
    def test_is_refused_to_a_second_object_store(
        self, objects: EmbeddedObjects, data: Path
    ) -> None:
        with pytest.raises(DataDirectoryInUse) as refusal:
            EmbeddedObjects(data).start()
        assert (refusal.value.directory, refusal.value.pid) == (data, objects.pid)
        assert s3(objects, "GET", "/shelf")[0] == 200

    def test_holds_secrets_that_only_the_owner_may_read(
        self, objects: EmbeddedObjects, data: Path
    ) -> None:
        assert objects.secret_key in (data / "s3.json").read_text()
        for name in ("s3.json", "security.toml"):
            assert (data / name).stat().st_mode & 0o077 == 0


class TestTheObjectStore:
    def test_ends_with_its_owner(self, tmp_path: Path) -> None:
        with python(OWNER, tmp_path) as owner:
            pid = first_number(owner)
            owner.kill()
            eventually(lambda: has_ended(pid))

    def test_moves_to_other_ports_if_one_is_taken(self, tmp_path: Path) -> None:
        with EmbeddedObjects(tmp_path) as store:
            stored(store, "/shelf", b"")
            stored(store, "/shelf/book", b"kept")
            before = store.url
        with (
            socket.create_server(("127.0.0.1", ports(tmp_path)["s3"])),
            EmbeddedObjects(tmp_path) as store,
        ):
            assert store.url != before
            assert s3(store, "GET", "/shelf/book") == (200, b"kept")

    def test_that_does_not_start_says_why(self, tmp_path: Path) -> None:
        program = tmp_path / "weed"
        program.write_text("#!/bin/sh\necho no room on this disk\nexit 1\n")
        program.chmod(0o700)
        with pytest.raises(ServerDidNotStart, match="no room on this disk"):
            EmbeddedObjects(tmp_path / "data", binary=program).start()

    def test_without_its_program_names_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sysconfig.get_path", {"scripts": "/nowhere"}.get)
        monkeypatch.setenv("PATH", "/nowhere")
        with pytest.raises(ObjectsNotFound) as refusal:
            find_weed()
        assert "towpath[objects]" in refusal.value.remedy


def address_of(port: int) -> str:
    """The address that a process listens on at *port*, as the system lists it."""
    lines = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    [found] = [
        words[1] for words in lines if words[1].endswith(f":{port:04X}") and words[3] == "0A"
    ]
    return socket.inet_ntoa(bytes.fromhex(found.partition(":")[0])[::-1])
