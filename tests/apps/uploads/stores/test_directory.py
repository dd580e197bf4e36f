"""A directory as object store, beyond the contract: crashes, a full disk, foreign files."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from towpath.apps.uploads.stores.checksums import Algorithm
from towpath.apps.uploads.stores.directory import DirectoryStore
from towpath.apps.uploads.stores.errors import (
    MultipartNotFound,
    StoreDamaged,
    StoreFull,
    StoreRefused,
    StoreUnreachable,
)
from towpath.apps.uploads.stores.folders import Begun, Folders
from towpath.apps.uploads.stores.options import StoreOptions
from towpath.apps.uploads.stores.port import Multipart
from towpath.errors import InvalidName

CRASHES = """
import os, sys
from pathlib import Path
from towpath.apps.uploads.stores.checksums import Algorithm, Checksum
from towpath.apps.uploads.stores.folders import Begun, Folders
from towpath.apps.uploads.stores.port import Multipart

Checksum.of(Algorithm.CRC64NVME, [b"loads a library, once for all"])
WRITES = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"}
begun = Begun("a/key", "u", Algorithm.CRC64NVME, {}, "text/plain", 0)

def die_at(step, root):
    steps = iter(range(1_000_000))
    def hook(event, args):
        if event in WRITES and root in str(args[0]) and next(steps) == step:
            os._exit(9)
    sys.addaudithook(hook)

def replace(folders):
    folders.put(begun, [b"old"], None)
    multipart = Multipart("a/key", folders.begin(begun), "u")
    folders.put_part(multipart, 1, [b"wrong"])
    parts = [folders.put_part(multipart, 1, [b"n", b"ew"])]
    folders.put_part(multipart, 2, [b"left out"])
    folders.complete(multipart, parts, None)
    folders.delete("a/key")

for step in range(1000):
    root = f"{sys.argv[1]}/{step}"
    if os.fork() == 0:
        folders = Folders(Path(root))
        folders.make()
        die_at(step, root)
        replace(folders)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.wait()[1]) != 9:
        break
print(step)
"""
FULL = """
import asyncio, resource, sys
from pathlib import Path
from towpath.apps.uploads.stores.directory import DirectoryStore
from towpath.apps.uploads.stores.errors import StoreFull
from towpath.apps.uploads.stores.options import StoreOptions

async def main():
    async with DirectoryStore(StoreOptions(directory=Path(sys.argv[1]))) as store:
        multipart = await store.begin_multipart("key", upload="u")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * 1024, resource.RLIM_INFINITY))
        try:
            await store.put_part(multipart, 1, [bytes(1024 * 1024)] * 2)
        except StoreFull as refusal:
            print(refusal)
        print([part.number for part in await store.list_parts(multipart)])
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        part = await store.put_part(multipart, 1, [bytes(1024 * 1024)] * 2)
        print((await store.complete(multipart, [part])).size)

asyncio.run(main())
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, if the system has one: syncing thousands of files would be slow."""
    fast = Path("/dev/shm")  # noqa: S108 -- a directory of the test's own in it
    with TemporaryDirectory(dir=fast if fast.is_dir() else tmp_path) as made:
        yield Path(made)


@pytest.fixture
async def store(root: Path) -> AsyncIterator[DirectoryStore]:
    async with DirectoryStore(StoreOptions(directory=root)) as store:
        yield store


def run(program: str, *given: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", program, *map(str, given)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def files_in(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if not path.is_dir()}


def all_in(root: Path) -> list[Path]:
    return [root, *root.rglob("*")]


def swept(folders: Folders, root: Path) -> None:
    """Sweep the directory as an hour later."""
    for path in root.rglob(".*"):
        os.utime(path, (0, 0))
    for found in list(folders.unfinished()):
        folders.abort(found)


class TestACrash:
    def test_a_crash_at_any_step_leaves_a_whole_object_or_none_and_no_lost_files(
        self, memory: Path
    ) -> None:
        """Each step in turn is the last one. Then the old or the new object exists, or none, and a
        sweep deletes all other files.
        """
        ran = run(CRASHES, memory)
        assert ran.stdout, ran.stderr
        seen: list[bytes | None] = []
        for step in range(int(ran.stdout) + 1):
            root = memory / str(step)
            folders = Folders(root)
            seen.append(content_of(folders))
            swept(folders, root)
            assert content_of(folders) == seen[-1]
            assert list(folders.unfinished()) == []
            left = len(files_in(root))
            assert left == 0 if seen[-1] is None else left in (3, 4), files_in(root)
        changes = [seen[0], *(now for before, now in pairwise(seen) if now != before)]
        assert changes == [None, b"old", b"new", None]

    def test_a_repeated_completion_finishes_one_that_crashed_before_the_rename(
        self, root: Path
    ) -> None:
        folders = Folders(root)
        folders.make()
        begun = Begun("key", "u", Algorithm.CRC64NVME, {}, "text/plain", 0)
        multipart = Multipart("key", folders.begin(begun), "u")
        part = folders.put_part(multipart, 1, [b"bytes"])
        (root / "open" / multipart.id).rename(root / "whole" / multipart.id)
        assert [found.id for found in folders.unfinished()] == [multipart.id]
        assert folders.complete(multipart, [part], None).size == 5
        assert list(folders.unfinished()) == []


def content_of(folders: Folders) -> bytes | None:
    try:
        name = folders.find("a/key")
    except Exception:  # noqa: BLE001 -- it is not there, however that is told
        return None
    return b"".join(folders.pieces(name, 0, name.size))


class TestTheDirectory:
    def test_a_full_disk_is_a_temporary_error(self, root: Path) -> None:
        """The part does not exist; once there is room, it can be sent again."""
        ran = run(FULL, root)
        [refusal, parts, size] = ran.stdout.splitlines() or [ran.stderr, "", ""]
        assert "File too large" in refusal
        assert (parts, size) == ("[]", str(2 * 1024 * 1024))
        assert StoreFull.retry == "later"

    async def test_a_directory_below_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        options = StoreOptions(directory=tmp_path / "file" / "objects")
        async with DirectoryStore(options) as store:
            for call in (store.check(), store.put("key", [b""])):
                with pytest.raises(StoreRefused, match="Not a directory"):
                    await call

    async def test_only_the_owner_can_read_the_directory(
        self, store: DirectoryStore, root: Path
    ) -> None:
        await store.put("a/b", [b"private"])
        assert {path.stat().st_mode & 0o077 for path in all_in(root)} == {0}

    async def test_a_damaged_file_raises_store_damaged(
        self, store: DirectoryStore, root: Path
    ) -> None:
        await store.put("key", [b"1"])
        (root / "names" / "key~").write_text("{")
        with pytest.raises(StoreDamaged, match="key~"):
            await store.head("key")

    async def test_a_truncated_file_raises_store_damaged(
        self, store: DirectoryStore, root: Path
    ) -> None:
        await store.put("key", [b"123"])
        [file] = [path for path in all_in(root) if path.name.startswith("00001.")]
        file.write_bytes(b"12")
        with pytest.raises(StoreDamaged):
            async with store.get("key") as pieces:
                assert [piece async for piece in pieces] == []

    async def test_the_directory_refuses_ids_that_it_did_not_make(
        self, store: DirectoryStore
    ) -> None:
        await store.check()
        for wrong in ("", "..", "../whole", "a/b", ".hidden", "x" * 100):
            with pytest.raises(InvalidName) as refused:
                await store.abort(Multipart("key", wrong))
            assert refused.value.value == wrong

    async def test_a_directory_that_is_not_entered_writes_nothing(self, root: Path) -> None:
        store = DirectoryStore(StoreOptions(directory=root))
        with pytest.raises(StoreUnreachable):
            await store.put("key", [b""])
        assert files_in(root) == set()


class TestTheThreadsOfADirectory:
    async def test_files_are_written_in_threads(self, store: DirectoryStore) -> None:
        """The event loop is not blocked while bytes are written."""
        names: set[str] = set()

        class Watched(list[bytes]):
            def __iter__(self) -> Iterator[bytes]:
                names.add(threading.current_thread().name)
                return super().__iter__()

        await store.put("key", Watched([b"1", b"2"]))
        assert names
        assert all(name.startswith("towpath-store") for name in names)

    async def test_of_concurrent_completions_one_succeeds_and_later_parts_are_refused(
        self, store: DirectoryStore
    ) -> None:
        multipart = await store.begin_multipart("key", upload="u")
        part = await store.put_part(multipart, 1, [b"bytes"])
        late = [store.put_part(multipart, 1, [b"bytes"]) for _ in range(5)]
        done = [store.complete(multipart, [part]) for _ in range(5)]
        answers = await asyncio.gather(*late, *done, return_exceptions=True)
        assert set(map(type, answers[:5])) <= {type(part), MultipartNotFound}
        assert len(set(map(str, answers[5:]))) == 1
        async with store.get("key") as pieces:
            assert [piece async for piece in pieces] == [b"bytes"]
        assert [found async for found in store.list_multiparts()] == []
