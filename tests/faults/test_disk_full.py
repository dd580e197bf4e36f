"""The disk of `towpath up` is full, and then it is not: the store comes back by itself."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.server.serving import PATIENCE, Serving, serving
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
DISK = 24 * 2**20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, and a small one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "towpath-test", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no mounts")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(ballast: Path) -> None:
    """Leave no byte free."""
    with ballast.open("ab", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)


def submitted(it: Serving, id: str) -> bool:
    """Whether a job of 100 kB is taken."""
    try:
        answer = it.api("mails").post("/jobs", {"payload": "x" * 100_000, "id": id})
    except httpx.TransportError:
        return False
    return answer.status_code == 202


def starts(it: Serving) -> int:
    """How often the store was started again, or could not be."""
    return sum(line["event"] in ("store.down", "store.restarted") for line in it.events())


def test_the_store_ends_with_the_disk_full_and_comes_back_when_there_is_room(
    disk: Path, tmp_path: Path
) -> None:
    """It ends because it can't write its append-only file; what it acknowledged is there again."""
    data, ballast = disk / "data", disk / "ballast"
    database = f"sqlite:///{data}/towpath.db"
    with serving("up", "--data", str(data), database=database, log=tmp_path / "log") as it:
        taken = [f"job-{n}" for n in range(20) if submitted(it, f"job-{n}")]
        assert len(taken) == 20
        fill(ballast)
        while submitted(it, f"late-{len(taken)}"):
            taken.append(f"late-{len(taken)}")
        eventually(lambda: starts(it) >= 2, within=PATIENCE)
        eventually(lambda: it.client(key="").get("/readyz").status_code == 503, within=PATIENCE)
        ballast.unlink()
        eventually(lambda: it.client(key="").get("/readyz").status_code == 200, within=PATIENCE)
        api = it.api("mails")
        assert {api.look(id)["state"] for id in taken} == {"ready"}
        assert submitted(it, "after")
