"""Two releases on one store at the same time: commit 47ef80a, kept as it was, and this one.

What is kept of the older one is what workers and submitters run on, without applications, server
and command line: `tests/stored/kept/towpath-47ef80a.tar.xz`. Its processes find it by PYTHONPATH.
"""

import json
import os
import signal
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.programs import Bounded
from tests.stored.make import KEPT
from tests.waiting import eventually, eventually_async
from towpath import Engine, State
from towpath.embedded import EmbeddedServer
from towpath.engine.model import job_ref, new_job

LANES, LENGTH, SLOTS = 5, 6, 3
PROGRAM = """
import asyncio, json, os, sys
from pathlib import Path

import towpath
from towpath import Context, Engine, Towpath, Worker, seconds

url, folder, queue = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
assert (str(folder) in towpath.__file__) is (os.environ["RELEASE"] == "old"), towpath.__file__
app = Towpath(url)


def note(*words):
    with (folder / "notes").open("a") as notes:
        notes.write(json.dumps([os.environ["RELEASE"], *words]) + "\\n")


async def submit():
    async with Engine(url) as engine:
        for line in sys.stdin:
            job = json.loads(line)
            payload = json.dumps(job["payload"]).encode()
            await engine.submit(queue, payload, id=job["id"], lane=job["lane"])


@app.handler(queue, max_attempts=9)
async def work(job: list, ctx: Context) -> str:
    kind, *which = job
    note("begun", kind, *which)
    if kind == "door":
        while not (folder / which[0]).exists():
            await asyncio.sleep(0.01)
    elif kind == "fails first" and ctx.attempt == 1:
        raise towpath.Retry("once", after=seconds(0))
    note("ended", kind, *which)
    return os.environ["RELEASE"]


if sys.argv[4:] == ["submit"]:
    asyncio.run(submit())
else:
    raise SystemExit(Worker(app, concurrency=%d, grace=seconds(5)).run_forever())
"""


class Releases:
    """Programs of both, and what their handlers note."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder
        with tarfile.open(KEPT / "towpath-47ef80a.tar.xz") as kept:
            kept.extractall(folder / "old", filter="data")
        self._program = folder / "program.py"
        self._program.write_text(PROGRAM % SLOTS)
        self.started: list[subprocess.Popen[bytes]] = []

    def run(self, release: str, queue: str, *words: str, given: bytes = b"") -> None:
        """Run a program to its end."""
        process = self.start(release, queue, *words)
        process.communicate(given)
        assert process.returncode == 0

    def start(self, release: str, queue: str, *words: str) -> subprocess.Popen[bytes]:
        env = {"PATH": os.environ["PATH"], "RELEASE": release}
        if release == "old":
            env["PYTHONPATH"] = str(self._folder / "old")
        command = [sys.executable, str(self._program), self._url, str(self._folder), queue, *words]
        process = Bounded[bytes](command, stdin=subprocess.PIPE, env=env, cwd=self._folder)
        self.started.append(process)
        return process

    def open_door(self, name: str) -> None:
        (self._folder / name).touch()

    @property
    def notes(self) -> list[list[str]]:
        file = self._folder / "notes"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()


@pytest.fixture
async def engine(server: EmbeddedServer) -> AsyncIterator[Engine]:
    """Today's, on one server and by its clock."""
    async with Engine(server.url) as engine:
        yield engine


@pytest.fixture
def releases(server: EmbeddedServer, tmp_path: Path) -> Iterator[Releases]:
    programs = Releases(server.url, tmp_path)
    yield programs
    programs.end()


async def test_workers_of_two_releases_share_the_jobs_of_a_queue(
    releases: Releases, engine: Engine
) -> None:
    """Lanes stay in order and one at a time, retries included, whoever has the next job."""
    workers = [releases.start("old", "shop"), releases.start("new", "shop")]
    # More doors than one of them has slots: each of the two has begun some.
    doors = [new_job(json.dumps(["door", "door", str(n)]).encode()) for n in range(2 * SLOTS)]
    await engine.submit_many("shop", doors)
    eventually(lambda: len(releases.notes) == 2 * SLOTS)
    assert Counter(note[0] for note in releases.notes) == {"old": SLOTS, "new": SLOTS}
    releases.open_door("door")

    jobs = [
        {
            "id": f"{lane}-{n}",
            "lane": f"lane-{lane}",
            "payload": ["fails first" if n % 3 == 1 else "plain", str(lane), str(n)],
        }
        for n in range(LENGTH)
        for lane in range(LANES)
    ]
    given = "".join(json.dumps(job) + "\n" for job in jobs).encode()
    releases.run("old", "shop", "submit", given=given)
    releases.run("new", "shop", "submit", given=given)  # the same ids: the same jobs

    done = 2 * SLOTS + LANES * LENGTH

    async def all_are_done() -> bool:
        return (await engine.inspect.counts("shop")).totals["completed"] == done

    await eventually_async(all_are_done)
    counts = await engine.inspect.counts("shop")
    assert (counts.totals["submitted"], counts.totals["died"], counts.leased) == (done, 0, 0)
    ended = [note[2:] for note in releases.notes if note[1] == "ended" and note[2] != "door"]
    for lane in range(LANES):
        assert [note[2] for note in ended if note[1] == str(lane)] == [
            str(n) for n in range(LENGTH)
        ]
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    assert [worker.wait() for worker in workers] == [0, 0]


@pytest.mark.parametrize(("gone", "left"), [("old", "new"), ("new", "old")])
async def test_a_job_that_one_release_releases_runs_on_the_other(
    gone: str, left: str, releases: Releases, engine: Engine
) -> None:
    """A rolling update, and the way back."""
    first = releases.start(gone, "shop")
    await engine.submit("shop", json.dumps(["door", "door"]).encode(), id="j-1")
    eventually(lambda: [note[:2] for note in releases.notes] == [[gone, "begun"]])
    releases.start(left, "shop")
    first.send_signal(signal.SIGTERM)
    first.send_signal(signal.SIGTERM)
    assert first.wait() == 0
    eventually(lambda: [left, "begun"] in [note[:2] for note in releases.notes])
    releases.open_door("door")
    ref = job_ref("shop", "j-1")

    async def is_done() -> bool:
        return await engine.inspect.state(ref) is State.DONE

    await eventually_async(is_done)
    job = await engine.inspect.job(ref)
    assert (job.result, job.attempts) == (json.dumps(left).encode(), 1)


async def test_the_newer_release_pauses_and_cancels_jobs_of_the_older_one(
    releases: Releases, engine: Engine
) -> None:
    releases.start("old", "shop")
    running = (await engine.submit("shop", json.dumps(["door", "never"]).encode(), id="j-1")).job
    eventually(lambda: len(releases.notes) == 1)
    await engine.queues.pause("shop")
    waiting = (await engine.submit("shop", json.dumps(["plain"]).encode(), id="j-2")).job
    await engine.cancel(running)

    async def is_cancelled() -> bool:
        return await engine.inspect.state(running) is State.CANCELLED

    await eventually_async(is_cancelled)
    assert await engine.inspect.state(waiting) is State.READY
    await engine.queues.resume("shop")

    async def is_done() -> bool:
        return await engine.inspect.state(waiting) is State.DONE

    await eventually_async(is_done)
    assert ["old", "ended", "plain"] in releases.notes
