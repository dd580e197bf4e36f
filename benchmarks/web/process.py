"""Processes that a bench starts and that do not outlive it, with their CPU and memory."""

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
    """A process that was started, and its output on stdout."""

    def __init__(self, keeper: asyncio.subprocess.Process, said: asyncio.StreamReader) -> None:
        self._keeper, self.said = keeper, said

    @property
    def pid(self) -> int:
        """Its own pid, not that of its keeper: known after its first output."""
        [pid] = [pid for pid in process_tree(self._keeper.pid) if pid != self._keeper.pid]
        return pid


@asynccontextmanager
async def started(
    command: Sequence[str], settings: Mapping[str, str], *, longest_line: int = 2**16
) -> AsyncGenerator[StartedProcess]:
    """Runs a command with these settings and no other settings of Towpath; killed at the end,
    because its data is not needed.
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
    """The CPU seconds of these processes, including those of their ended children."""
    return sum(sum(_times(pid)) for pid in pids) / _TICKS


def _times(pid: int) -> list[int]:
    # it ended just now, and its parent counts its time
    with suppress(FileNotFoundError, ProcessLookupError):
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return [int(field) for field in fields[11:15]]
    return []
