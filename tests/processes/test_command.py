"""A command that hangs, floods, forks or is stopped leaves nothing behind, under every event
loop.
"""

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

from tests.embedded.processes import has_ended, python
from tests.waiting import eventually, eventually_async, eventually_in_loop
from towpath.clock import Duration, milliseconds, minutes
from towpath.processes.command import Command, CommandTimedOut, Ended, OutputTooLarge, run

R = TypeVar("R")
NewLoop = Callable[[], asyncio.AbstractEventLoop]

LOOPS: list[Any] = [pytest.param(asyncio.new_event_loop, id="asyncio")]
if find_spec("uvloop") is not None:  # workers use it where it is installed
    LOOPS.append(pytest.param(import_module("uvloop").new_event_loop, id="uvloop"))

LONG = minutes(10)
every_loop = pytest.mark.parametrize("new_loop", LOOPS)

# Both write their pids to the file first: the shell that hangs, and the process that it started.
FAMILY = "sleep 1000 & echo $$ $! > {pids}.new; mv {pids}.new {pids}; "
HANGS = FAMILY + "wait"
DEAF = "trap '' TERM; " + FAMILY + "while :; do wait; done"
LEAVES_ONE_BEHIND = FAMILY + "echo fine"


def under(new_loop: NewLoop, work: Coroutine[Any, Any, R]) -> R:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(work)


def ran(*argv: str, within: Duration = LONG) -> Coroutine[Any, Any, Ended]:
    environment = {"PATH": os.environ["PATH"]}
    command = Command(argv, environment, Path.cwd(), within=within, largest=1 << 20)
    return run(command, b"given")


def shell(script: str, pids: Path, **options: Any) -> Coroutine[Any, Any, Ended]:
    return ran("sh", "-c", script.format(pids=pids), **options)


def numbers(pids: Path) -> list[int]:
    return [int(pid) for pid in pids.read_text().split()]


def all_ended(pids: Path) -> bool:
    return all(has_ended(pid) for pid in numbers(pids))


@every_loop
class TestACommandThatTakesTooLong:
    @pytest.mark.parametrize("script", [HANGS, DEAF], ids=["hangs", "heeds no SIGTERM"])
    def test_is_ended_with_all_processes_that_it_started(
        self, new_loop: NewLoop, pids: Path, script: str
    ) -> None:
        with pytest.raises(CommandTimedOut) as failure:
            under(new_loop, shell(script, pids, within=milliseconds(500)))
        assert failure.value.within == milliseconds(500)
        eventually(lambda: all_ended(pids))

    def test_returns_what_it_wrote_to_standard_error(self, new_loop: NewLoop) -> None:
        script = "echo waiting for the model >&2; exec sleep 1000"
        with pytest.raises(CommandTimedOut) as raised:
            under(new_loop, ran("sh", "-c", script, within=milliseconds(500)))
        assert raised.value.complaint == "waiting for the model"


@every_loop
class TestACommandThatIsStopped:
    @pytest.mark.parametrize("script", [HANGS, DEAF], ids=["hangs", "heeds no SIGTERM"])
    def test_is_dead_before_the_cancelled_caller_goes_on(
        self, new_loop: NewLoop, pids: Path, script: str
    ) -> None:
        async def cancelled() -> bool:
            task = asyncio.create_task(shell(script, pids))
            await eventually_in_loop(pids.exists)
            task.cancel()
            await asyncio.wait((task,))
            return task.cancelled()

        assert under(new_loop, cancelled())
        leader, _ = numbers(pids)
        assert not Path(f"/proc/{leader}").exists()  # collected, too
        eventually(lambda: all_ended(pids))

    def test_during_its_start_is_dead_as_well(self, new_loop: NewLoop, pids: Path) -> None:
        """asyncio waits for ever for a program whose start was cancelled half-way."""

        async def cancelled_after(steps: int) -> bool:
            task = asyncio.create_task(shell(HANGS, pids))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait((task,))
            return task.cancelled()

        for steps in range(12):
            assert under(new_loop, cancelled_after(steps)), steps
            if pids.exists():
                eventually(lambda: all_ended(pids))
                pids.unlink()

    def test_is_dead_even_if_it_is_cancelled_many_times(
        self, new_loop: NewLoop, pids: Path
    ) -> None:
        async def cancelled_often() -> bool:
            task = asyncio.create_task(shell(DEAF, pids))
            await eventually_in_loop(pids.exists)
            while not task.done():
                task.cancel()
                await asyncio.wait((task,), timeout=0.05)
            return task.cancelled()

        assert under(new_loop, cancelled_often())
        assert has_ended(numbers(pids)[0])

    def test_gets_sigterm_first_and_may_clean_up(
        self, new_loop: NewLoop, pids: Path, tmp_path: Path
    ) -> None:
        cleared = tmp_path / "cleared"
        script = f"trap 'touch {cleared}; exit' TERM; " + HANGS

        async def cancelled() -> None:
            task = asyncio.create_task(shell(script, pids))
            await eventually_in_loop(pids.exists)
            task.cancel()
            await asyncio.wait((task,))

        under(new_loop, cancelled())
        assert cleared.exists()

    def test_ends_with_a_loop_that_closes(self, new_loop: NewLoop, pids: Path) -> None:
        async def leave() -> None:
            left.append(asyncio.create_task(shell(HANGS, pids)))
            await eventually_in_loop(pids.exists)

        left: list[asyncio.Task[Ended]] = []
        under(new_loop, leave())
        eventually(lambda: all_ended(pids))

    def test_ends_with_a_loop_that_closes_during_its_start(
        self, new_loop: NewLoop, pids: Path
    ) -> None:
        """A loop that closes cancels all tasks at once, including those inside of a start."""

        async def leave(steps: int) -> None:
            left.append(asyncio.create_task(shell(HANGS, pids)))
            for _ in range(steps):
                await asyncio.sleep(0)

        left: list[asyncio.Task[Ended]] = []
        for steps in range(12):
            under(new_loop, leave(steps))
            if pids.exists():
                eventually(lambda: all_ended(pids))
                pids.unlink()


@every_loop
class TestACommandThatPrintsTooMuch:
    def test_is_ended_and_takes_no_memory(self, new_loop: NewLoop, pids: Path) -> None:
        """It prints 100 MB, of which one is kept at most."""
        script = FAMILY + "head -c 100000000 /dev/zero; wait"
        tracemalloc.start()
        try:
            with pytest.raises(OutputTooLarge) as failure:
                under(new_loop, shell(script, pids))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert failure.value.limit == 1 << 20
        assert peak < 8_000_000
        eventually(lambda: all_ended(pids))

    def test_to_standard_error_is_read_to_its_end(self, new_loop: NewLoop) -> None:
        script = "head -c 100000000 /dev/zero | tr '\\0' x >&2; echo fine; exit $1"
        tracemalloc.start()
        try:
            ended = under(new_loop, ran("sh", "-c", script, "sh", "0"))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert ended.output == b"fine\n"
        assert len(ended.complaint) < 1000
        assert peak < 8_000_000


@every_loop
class TestACommandThatEnds:
    def test_ends_the_processes_that_it_left_in_the_background(
        self, new_loop: NewLoop, pids: Path
    ) -> None:
        ended = under(new_loop, shell(LEAVES_ONE_BEHIND, pids))
        assert ended.output == b"fine\n"
        eventually(lambda: all_ended(pids))

    def test_does_not_wait_for_a_process_that_left_the_group(
        self, new_loop: NewLoop, pids: Path
    ) -> None:
        leaves = "setsid sh -c 'echo $$ > {pids}.new; mv {pids}.new {pids}; exec sleep 1000'"
        script = leaves + " & while [ ! -e {pids} ]; do :; done; echo fine"
        ended = under(new_loop, shell(script, pids))
        assert ended.output == b"fine\n"
        assert not all_ended(pids)  # a process that leaves the group on purpose stays
        os.kill(numbers(pids)[0], signal.SIGKILL)

    def test_leaves_no_descriptor_open(self, new_loop: NewLoop) -> None:
        async def many() -> tuple[int, int]:
            await ran("echo", "fine")
            before = open_descriptors()
            for _ in range(5):
                await asyncio.gather(*(ran("echo", "fine") for _ in range(4)))

            async def closed() -> bool:
                return open_descriptors() <= before

            await eventually_async(closed)
            return before, open_descriptors()

        before, after = under(new_loop, many())
        assert after <= before


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# Runs the command of its arguments.
PARENT = """
import asyncio, os, pathlib, sys
from towpath.clock import minutes
from towpath.processes.command import Command, run
command = Command(sys.argv[1:], dict(os.environ), pathlib.Path.cwd(), minutes(10), 1 << 20)
asyncio.run(run(command, b""))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_command_ends_with_a_parent_that_is_killed(pids: Path) -> None:
    script = f"echo $$ > {pids}.new; mv {pids}.new {pids}; exec sleep 1000"
    with python(PARENT, "sh", "-c", script) as parent:
        eventually(pids.exists)
        assert not all_ended(pids)
        parent.kill()
        eventually(lambda: all_ended(pids))
