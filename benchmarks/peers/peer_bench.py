"""The Redis on which all rows run, and the processes of a row."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import msgspec

from benchmarks.measure import Meter
from benchmarks.peers.environments import command, variables
from benchmarks.peers.peer_list import ROOT, Peer
from benchmarks.peers.side.process_tree import kill_tree
from towpath.embedded import EmbeddedServer, Listen
from towpath.embedded.process import fields

Facts: TypeAlias = dict[str, Any]
_LOOK_EVERY = 0.002
_READY_WITHIN = 30.0
_LIFELINE = "benchmarks.peers.side.lifeline"


class NotMeasured(Exception):
    """Why a figure is missing, in one line."""


class ServerUsage(msgspec.Struct, frozen=True):
    """What Redis has used so far."""

    cpu: float
    calls: int
    """Commands, those inside scripts too, without our own."""
    memory: int
    """Bytes, without those of the connections."""


class PeerBench:
    """A Redis without persistence, on a port for the rows and on a socket for the meter."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        self.server, self.meter = server, Meter(server)
        self._folder, self._number, self._asked = folder, 0, 0

    @property
    def url(self) -> str:
        return self.server.tcp_url

    @property
    def report(self) -> Path:
        return self._folder / f"report-{self._number}.jsonl"

    @property
    def log(self) -> Path:
        return self._folder / f"log-{self._number}.txt"

    def clear(self) -> None:
        """Empties Redis and starts new files, so that late lines of earlier processes are not
        read.
        """
        self.meter.empty()
        self._number += 1

    def reading(self) -> ServerUsage:
        said = fields(self.meter.ask("INFO", "cpu", "memory", "commandstats"))
        calls = (value for name, value in said.items() if name.startswith("cmdstat_"))
        total = sum(int(value.partition(",")[0].removeprefix("calls=")) for value in calls)
        self._asked += 1
        return ServerUsage(
            cpu=float(said["used_cpu_user"]) + float(said["used_cpu_sys"]),
            calls=total - self._asked,
            memory=int(said["used_memory"]) - int(said["mem_clients_normal"]),
        )

    def tail(self) -> str:
        """The last line that the row's processes wrote."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:200] if lines else "it said nothing"

    def environment(self, peer: Peer, *, defaults: bool = False) -> dict[str, str]:
        """The environment of the row's processes; with *defaults*, without chosen settings."""
        chosen = {"BENCH_DEFAULTS": "1"} if defaults else {}
        told = {"BENCH_URL": self.url, "BENCH_REPORT": str(self.report)}
        return variables(peer) | told | chosen


@asynccontextmanager
async def peer_bench() -> AsyncGenerator[PeerBench]:
    with (
        TemporaryDirectory(prefix="towpath-peers-") as folder,
        EmbeddedServer(listen=Listen.BOTH) as server,
    ):
        bench = PeerBench(server, Path(folder))
        try:
            yield bench
        finally:
            bench.meter.close()


# -- a worker -------------------------------------------------------------------------------------


class RowProcess:
    """A worker or a scheduler: a process of a row, with all processes that it started."""

    def __init__(self, bench: PeerBench, peer: Peer, words: str, *, defaults: bool = False) -> None:
        self._bench = bench
        with bench.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _LIFELINE, *command(peer, words, url=bench.url)],
                cwd=ROOT,
                env=bench.environment(peer, defaults=defaults),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def check(self) -> None:
        """Raises NotMeasured if the process has ended by itself."""
        if (code := self._process.poll()) is not None:
            raise NotMeasured(f"its worker ended with {code}: {self._bench.tail()}")

    def kill(self) -> None:
        """Sends SIGKILL to it and to all processes that it started, like a crash of the machine."""
        if self._process.poll() is None:
            kill_tree(self._process.pid)
        self._process.wait()
        if self._process.stdin:
            self._process.stdin.close()


@asynccontextmanager
async def running(
    bench: PeerBench, peer: Peer, words: str, *, defaults: bool = False
) -> AsyncGenerator[RowProcess]:
    """Starts such a process; it is killed at the end, because nothing in Redis is needed any
    more.
    """
    process = RowProcess(bench, peer, words, defaults=defaults)
    try:
        yield process
    finally:
        process.kill()


class HandlerReports:
    """The reports of a row's handler, line by line."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0
        self.twice = 0
        """Jobs that were handled although all had been: deliveries too many."""

    async def next(self, kind: str, *, within: float, worker: RowProcess) -> Facts:
        """The next line of that kind. Raises NotMeasured when it does not come."""
        end = time.monotonic() + within
        while time.monotonic() < end:
            for told in self._new():
                if told["kind"] == kind:
                    return told
                self.twice += told["kind"] == "excess"
            worker.check()
            await asyncio.sleep(_LOOK_EVERY)
        raise NotMeasured(f"not within {within:g} s")

    def _new(self) -> list[Facts]:
        """Yields one line at a time, so that none is lost between two calls."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            line = file.readline()
        if not line.endswith(b"\n"):
            return []
        self._read += len(line)
        return [json.loads(line)]


# -- a producer -----------------------------------------------------------------------------------


class RowProducer:
    """A row's producer, which carries out orders."""

    def __init__(self, bench: PeerBench, process: asyncio.subprocess.Process) -> None:
        self._bench, self._process = bench, process

    async def order(self, do: str, *, within: float = 120.0, **facts: object) -> Facts:
        """The answer after the order is carried out. Raises NotMeasured."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **facts}).encode() + b"\n")
        return await self.answer(within=within)

    async def answer(self, *, within: float) -> Facts:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(within):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise NotMeasured(f"its producer gave no answer within {within:g} s") from None
        if not line:
            raise NotMeasured(f"its producer ended: {self._bench.tail()}")
        return json.loads(line)


@asynccontextmanager
async def producing(
    bench: PeerBench, peer: Peer, words: str = "", *, defaults: bool = False
) -> AsyncGenerator[RowProducer]:
    """The row's producer once it is ready, or the process of *words* that reports readiness in its
    own way.
    """
    with bench.log.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *command(peer, words or peer.producer, url=bench.url),
            cwd=ROOT,
            env=bench.environment(peer, defaults=defaults),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    try:
        producer = RowProducer(bench, process)
        await producer.answer(within=_READY_WITHIN)
        yield producer
    finally:
        if process.stdin:
            process.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 5)
        if process.returncode is None:
            kill_tree(process.pid)
            await process.wait()
