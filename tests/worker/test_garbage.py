"""Attempts are freed by reference counts: garbage collection would pause every job."""

import gc
import subprocess
import sys
from collections.abc import Generator

import pytest

from tests.waiting import HANGS
from towpath.app.app import Towpath
from towpath.embedded import EmbeddedServer
from towpath.engine.model import new_job
from towpath.worker.attempt import Attempt
from towpath.worker.context import Context
from towpath.worker.handler import Place
from towpath.worker.worker import Worker

JOBS = 50


@pytest.fixture
def _no_collection() -> Generator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collection")
@pytest.mark.parametrize("place", [Place.LOOP, Place.THREAD])
async def test_objects_of_an_attempt_are_freed_with_it(app: Towpath, place: Place) -> None:
    if place is Place.LOOP:

        @app.handler("tidy", name="note")
        async def note(n: int, ctx: Context) -> int:
            ctx.progress(n)
            return n
    else:

        @app.handler("tidy", name="note")
        def note_in_thread(n: int, ctx: Context) -> int:
            ctx.progress(n)
            return n

    async with app:
        jobs = [new_job(b"1", headers={"handler": "note"}) for _ in range(JOBS)]
        await app.engine.submit_many("tidy", jobs)
        await Worker(app, signals=()).drain()
        counts = await app.engine.inspect.counts("tidy")
        assert counts.totals["completed"] == JOBS
    left = sum(isinstance(one, Attempt | Context) for one in gc.get_objects())
    assert left <= 2, "those that the last step of the worker still names"


PROGRAM = """
import gc, os, signal, sys
from towpath import Towpath, Worker

app = Towpath(sys.argv[1])

@app.handler("tidy")
async def count(n: int) -> None:
    print(gc.get_freeze_count(), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

count.blocking.submit(1)
sys.exit(Worker(app).run_forever())
"""


def test_a_workers_process_does_not_collect_what_it_imported(
    server: EmbeddedServer,
) -> None:
    """Modules are nearly all of its objects, and no job could begin while they are traversed."""
    words = [sys.executable, "-c", PROGRAM, server.url]
    ran = subprocess.run(words, stdout=subprocess.PIPE, timeout=HANGS, check=True)
    assert int(ran.stdout) > 10_000
