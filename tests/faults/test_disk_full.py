"""The disk of `towpath up` fills up and is freed again: Redis comes back by itself."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.counted_load import CountedLoad, under_load
from tests.faults.queue_contents import contents_of
from tests.server.serving import RunningServer, serving
from tests.waiting import HANGS, eventually, eventually_in_loop
from towpath.clock import hours
from towpath.engine.durability import Durability
from towpath.engine.engine import Engine
from towpath.engine.options import QueueOptions

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
DISK = 64 * 2**20
QUEUE = "disk-full"
OPTIONS = QueueOptions(keep=hours(1), keep_most=1_000_000)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
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
    """Leaves no free byte."""
    with ballast.open("ab", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)


def starts(server: RunningServer) -> int:
    """How often Redis was started again, or failed to start."""
    return sum(line["event"] in ("store.down", "store.restarted") for line in server.events())


async def test_redis_comes_back_with_all_that_it_acknowledged_once_there_is_room(
    disk: Path, tmp_path: Path
) -> None:
    """Redis ends because it cannot write its append-only file, again and again until it can."""
    data, ballast = disk / "data", disk / "ballast"
    database = f"sqlite:///{data}/towpath.db"
    with serving("up", "--data", str(data), database=database, log=tmp_path / "log") as server:
        async with Engine(server.said["store"]) as engine:
            await engine.queues.configure(QUEUE, OPTIONS)
            load = CountedLoad(engine, QUEUE, Durability.parse("disk"))
            async with under_load(load):
                await load.more(1_000)
                fill(ballast)
                await eventually_in_loop(lambda: starts(server) >= 2, within=HANGS)
                ballast.unlink()
                await load.more(1_000)
            found = await contents_of(engine, QUEUE)
        eventually(lambda: server.client(key="").get("/readyz").status_code == 200)
    assert load.losses(found) == {}
    assert len(load.tokens) == len(set(load.tokens))
