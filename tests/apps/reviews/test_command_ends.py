"""A command that hangs, floods, forks or is stopped leaves nothing behind: under every loop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tracemalloc
from collections.abc import Callable, Coroutine
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.apps.reviews.reviewing import a_task, an_attempt
from tests.embedded.processes import has_ended, python
from tests.faults.meanwhile import meanwhile
from tests.waiting import eventually, eventually_async
from tests.worker.running import SOON, working
from towpath.app.app import Towpath
from towpath.apps.reviews.model import REVIEWS, Review, ReviewTask
from towpath.apps.reviews.reviewers.command import CommandReviewer
from towpath.apps.reviews.reviewers.errors import ReviewerTimedOut, ReviewTooLarge
from towpath.clock import milliseconds, minutes, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.states import State
from towpath.worker.context import Context
from towpath.worker.verdicts import Retry

R = TypeVar("R")
NewLoop = Callable[[], asyncio.AbstractEventLoop]

LOOPS: list[Any] = [pytest.param(asyncio.new_event_loop, id="asyncio")]
if find_spec("uvloop") is not None:  # workers use it where it is installed
    LOOPS.append(pytest.param(import_module("uvloop").new_event_loop, id="uvloop"))

every_loop = pytest.mark.parametrize("new_loop", LOOPS)

# Both write their pids to the file first: the shell that hangs, and what it has begun.
FAMILY = "sleep 1000 & echo $$ $! > {pids}.new; mv {pids}.new {pids}; "
HANGS = FAMILY + "wait"
DEAF = "trap '' TERM; " + FAMILY + "while :; do wait; done"
LEAVES_ONE_BEHIND = FAMILY + "echo fine"


def run(new_loop: NewLoop, work: Coroutine[Any, Any, R]) -> R:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(work)


def shell(script: str, pids: Path, **options: Any) -> CommandReviewer:
    return CommandReviewer(["sh", "-c", script.format(pids=pids)], **options)


def numbers(pids: Path) -> list[int]:
    return [int(it) for it in pids.read_text().split()]


def all_ended(pids: Path) -> bool:
    return all(has_ended(pid) for pid in numbers(pids))


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    return tmp_path / "pids"


@every_loop
class TestACommandThatTakesTooLong:
    @pytest.mark.parametrize("script", [HANGS, DEAF], ids=["hangs", "heeds no SIGTERM"])
    def test_is_ended_with_all_that_it_started(
        self, new_loop: NewLoop, pids: Path, script: str
    ) -> None:
        reviewer = shell(script, pids, within=milliseconds(500))
        with pytest.raises(Retry, match="no review within") as raised:
            run(new_loop, reviewer.review(a_task(), an_attempt()))
        assert isinstance(raised.value.__cause__, ReviewerTimedOut)
        eventually(lambda: all_ended(pids))

    def test_says_what_it_complained_about(self, new_loop: NewLoop) -> None:
        script = "echo waiting for the model >&2; exec sleep 1000"
        reviewer = CommandReviewer(["sh", "-c", script], within=milliseconds(500))
        with pytest.raises(Retry, match="it said: waiting for the model"):
            run(new_loop, reviewer.review(a_task(), an_attempt()))


@every_loop
class TestACommandThatIsStopped:
    @pytest.mark.parametrize("script", [HANGS, DEAF], ids=["hangs", "heeds no SIGTERM"])
    def test_is_dead_when_the_cancelled_one_goes_on(
        self, new_loop: NewLoop, pids: Path, script: str
    ) -> None:
        async def cancelled() -> bool:
            task = asyncio.create_task(shell(script, pids).review(a_task(), an_attempt()))
            await meanwhile(pids.exists)
            task.cancel()
            await asyncio.wait((task,))
            return task.cancelled()

        assert run(new_loop, cancelled())
        leader, _ = numbers(pids)
        assert not Path(f"/proc/{leader}").exists()  # collected, too
        eventually(lambda: all_ended(pids))

    def test_while_it_starts_is_dead_as_well(self, new_loop: NewLoop, pids: Path) -> None:
        """asyncio waits for ever for a program whose start was cancelled half-way."""

        async def cancelled_after(steps: int) -> bool:
            task = asyncio.create_task(shell(HANGS, pids).review(a_task(), an_attempt()))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait((task,), timeout=20)
            return task.cancelled()

        for steps in range(12):
            assert run(new_loop, cancelled_after(steps)), steps
            if pids.exists():
                eventually(lambda: all_ended(pids))
                pids.unlink()

    def test_is_dead_even_if_somebody_is_impatient(self, new_loop: NewLoop, pids: Path) -> None:
        async def cancelled_often() -> bool:
            task = asyncio.create_task(shell(DEAF, pids).review(a_task(), an_attempt()))
            await meanwhile(pids.exists)
            while not task.done():
                task.cancel()
                await asyncio.wait((task,), timeout=0.05)
            return task.cancelled()

        assert run(new_loop, cancelled_often())
        assert has_ended(numbers(pids)[0])

    def test_may_clear_away_first(self, new_loop: NewLoop, pids: Path, tmp_path: Path) -> None:
        """SIGTERM comes first."""
        cleared = tmp_path / "cleared"
        script = f"trap 'touch {cleared}; exit' TERM; " + HANGS

        async def cancelled() -> None:
            task = asyncio.create_task(shell(script, pids).review(a_task(), an_attempt()))
            await meanwhile(pids.exists)
            task.cancel()
            await asyncio.wait((task,))

        run(new_loop, cancelled())
        assert cleared.exists()

    def test_ends_with_a_loop_that_closes(self, new_loop: NewLoop, pids: Path) -> None:
        async def leave() -> None:
            reviewing.append(asyncio.create_task(shell(HANGS, pids).review(a_task(), an_attempt())))
            await meanwhile(pids.exists)

        reviewing: list[asyncio.Task[Review]] = []
        run(new_loop, leave())
        eventually(lambda: all_ended(pids))


@every_loop
class TestACommandThatSaysTooMuch:
    def test_is_ended_and_takes_no_memory(self, new_loop: NewLoop, pids: Path) -> None:
        """100 MB, of which one is held at most."""
        script = FAMILY + "head -c 100000000 /dev/zero; wait"
        tracemalloc.start()
        try:
            with pytest.raises(Retry, match="more than 1048576 bytes") as raised:
                run(new_loop, shell(script, pids).review(a_task(), an_attempt()))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert isinstance(raised.value.__cause__, ReviewTooLarge)
        assert peak < 8_000_000
        eventually(lambda: all_ended(pids))

    def test_on_standard_error_is_heard_to_the_end(self, new_loop: NewLoop) -> None:
        script = "head -c 100000000 /dev/zero | tr '\\0' x >&2; echo fine; exit $1"
        tracemalloc.start()
        try:
            said = CommandReviewer(["sh", "-c", script, "sh", "0"])
            assert run(new_loop, said.review(a_task(), an_attempt())).summary == "fine"
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 8_000_000


@every_loop
class TestACommandThatEnds:
    def test_takes_what_it_left_in_the_background_with_it(
        self, new_loop: NewLoop, pids: Path
    ) -> None:
        review = run(new_loop, shell(LEAVES_ONE_BEHIND, pids).review(a_task(), an_attempt()))
        assert review.summary == "fine"
        eventually(lambda: all_ended(pids))

    def test_is_not_held_up_by_one_who_left_the_group(self, new_loop: NewLoop, pids: Path) -> None:
        leaves = "setsid sh -c 'echo $$ > {pids}.new; mv {pids}.new {pids}; exec sleep 1000'"
        script = leaves + " & while [ ! -e {pids} ]; do :; done; echo fine"
        review = run(new_loop, shell(script, pids).review(a_task(), an_attempt()))
        assert review.summary == "fine"
        assert not all_ended(pids)  # who wants to stay does
        os.kill(numbers(pids)[0], signal.SIGKILL)

    def test_leaves_no_descriptor_open(self, new_loop: NewLoop) -> None:
        async def many() -> tuple[int, int]:
            reviewer = CommandReviewer(["echo", "fine"])
            await reviewer.review(a_task(), an_attempt())
            before = open_descriptors()
            for _ in range(5):
                await asyncio.gather(*(reviewer.review(a_task(), an_attempt()) for _ in range(4)))

            async def closed() -> bool:
                return open_descriptors() <= before

            await eventually_async(closed)
            return before, open_descriptors()

        before, after = run(new_loop, many())
        assert after <= before


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# Has the task of its first argument reviewed by the command behind it.
WORKER = """
import asyncio, sys
from towpath.apps.reviews.model import ReviewTask
from towpath.apps.reviews.reviewers.command import CommandReviewer
from towpath.worker.context import Context
task, *command = sys.argv[1:]
review = CommandReviewer(command).review
asyncio.run(review(ReviewTask.unpacked(task.encode()), Context.here("reviews", handler="review")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_command_ends_with_a_worker_that_is_killed(pids: Path) -> None:
    script = f"echo $$ > {pids}.new; mv {pids}.new {pids}; exec sleep 1000"
    with python(WORKER, a_task().packed().decode(), "sh", "-c", script) as worker:
        eventually(pids.exists)
        assert not all_ended(pids)
        worker.kill()
        eventually(lambda: all_ended(pids))


class TestInAWorker:
    async def test_a_cancelled_task_ends_its_command(
        self, server: EmbeddedServer, pids: Path
    ) -> None:
        app, reviewer = Towpath(server.url), shell(HANGS, pids)

        @app.handler(REVIEWS, time_limit=minutes(1))
        async def review(task: ReviewTask, ctx: Context) -> Review:
            return await reviewer.review(task, ctx)

        async with app, working(app, lease=seconds(1)):
            job = await review.submit(a_task())
            await meanwhile(pids.exists)
            await app.engine.cancel(job.job)
            ended = await app.engine.ended(job.job, within=SOON)
            assert ended.state is State.CANCELLED
            await meanwhile(lambda: all_ended(pids))

    async def test_a_lost_task_ends_its_command(self, server: EmbeddedServer, pids: Path) -> None:
        app, reviewer = Towpath(server.url), shell(HANGS, pids)

        @app.handler(REVIEWS, time_limit=minutes(1))
        async def review(task: ReviewTask, ctx: Context) -> Review:
            return await reviewer.review(task, ctx)

        async with app, working(app, lease=seconds(1)):
            await review.submit(a_task())
            await meanwhile(pids.exists)
            server.ask("FLUSHALL")
            await meanwhile(lambda: all_ended(pids))
