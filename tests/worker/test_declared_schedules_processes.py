"""Schedules fired by two processes at once, both with wrong clocks; one of them is killed."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from tests.programs import ROOT, Program
from tests.waiting import eventually
from towpath.clock import seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.states import State

QUEUE, NAME = "reports", "tick"


@contextmanager
def process(url: str, journal: Path, *, offset: int) -> Generator[Program[bytes]]:
    """Starts a process that fires; its own clock is wrong by *offset* seconds."""
    command = [
        sys.executable,
        "-m",
        "tests.worker.firing_program",
        url,
        QUEUE,
        NAME,
        str(offset),
        journal,
    ]
    with Program[bytes](command, cwd=ROOT, stdin=subprocess.PIPE) as child:
        try:
            yield child
        finally:
            child.kill()


def fired(*journals: Path) -> list[str]:
    """The ids of all jobs that processes fired by their journals, in order of their instants."""
    return sorted(id for path in journals if path.exists() for id in path.read_text().split())


def instant_of(id: str) -> datetime:
    return datetime.fromisoformat(id.removeprefix(f"{NAME}@"))


async def test_each_firing_happens_once_and_none_is_missing(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """The first process is killed while both fire, and the second goes on. Their clocks are an hour
    ahead and an hour behind.
    """
    one, two = tmp_path / "one", tmp_path / "two"
    with process(server.url, one, offset=3600) as first:
        eventually(lambda: fired(one))
        with process(server.url, two, offset=-3600):
            eventually(lambda: fired(two))
            first.kill()
            before = len(fired(one, two))
            eventually(lambda: len(fired(one, two)) >= before + 2)
    ids = fired(one, two)
    instants = [instant_of(id) for id in ids]
    # The kill may have come between a firing and its line, so the test reads the jobs from Redis.
    async with Engine(server.url) as engine:
        page = await engine.inspect.list(QUEUE, State.READY, size=1000)
        last = (await engine.schedules.of(QUEUE)).last[NAME].at
    submitted = [instant_of(job.id) for job in page.jobs]
    assert len(ids) == len(set(ids))
    assert set(instants) <= set(submitted)
    assert all(b - a == seconds(1) for a, b in pairwise(submitted))
    assert submitted[-1] == last
    assert all(job.submitted_at >= instant_of(job.id) for job in page.jobs)
