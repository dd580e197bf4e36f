"""Processes that a bench starts and that do not outlive it, with what they use."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from benchmarks.claimer import ROOT
from benchmarks.peers.side.process_tree import PROC, process_tree

_LIFELINE = "benchmarks.peers.side.lifeline"
_TICKS = os.sysconf("SC_CLK_TCK")


class StartedProcess:
    """A process that was started, and what it says on stdout."""

    def __init__(self, keeper: asyncio.subprocess.Process, said: asyncio.StreamReader) -> None:
        self._keeper, self.said = keeper, said

    @property
    def pid(self) -> int:
        """Its own, not that of what keeps it: known once it has said something."""
        [pid] = [pid for pid in process_tree(self._keeper.pid) if pid != self._keeper.pid]
        return pid


@asynccontextmanager
async def started(
    command: Sequence[str], settings: Mapping[str, str], *, longest_line: int = 2**16
) -> AsyncGenerator[StartedProcess]:
    """Run a command with these settings and no others of ours; killed at the end, for nothing
    is kept.
    """
    others = {k: v for k, v in os.environ.items() if not k.startswith(("TOWPATH_", "REDIS_"))}
    keeper = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", _LIFELINE, *command),
        cwd=ROOT,
        env=others | dict(settings),
        stdin=PIPE,
        stdout=PIPE,
        start_new_session=True,
        limit=longest_line,
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        yield StartedProcess(keeper, keeper.stdout)
    finally:
        keeper.stdin.close()
        await keeper.wait()


def cpu_of(pids: Iterable[int]) -> float:
    """Seconds of CPU that these processes have used, with those of their children that ended."""
    return sum(sum(_times(pid)) for pid in pids) / _TICKS


def _times(pid: int) -> list[int]:
    with suppress(FileNotFoundError, ProcessLookupError):  # it ended just now: its parent has it
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return [int(field) for field in fields[11:15]]
    return []
