"""One round of a row: submit, drain, pick up, delay; and its cost for Redis."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from benchmarks.bench import Plan
from benchmarks.peers.peer_bench import (
    HandlerReports,
    NotMeasured,
    PeerBench,
    RowProcess,
    RowProducer,
    ServerUsage,
    producing,
    running,
)
from benchmarks.peers.peer_list import Peer

RUN = "r"
_FIRST = "first"
"""The run of a job that comes before those that are counted: it is never over."""
_DRAIN_WITHIN = 240.0
_REPORT_WITHIN = 20.0
_SETTLED_AFTER = 0.5
"""The last job's handler has run; its end still has to reach the server."""
_COUNTED_AFTER = 1.2
"""The server looks once a second at how much memory its connections take."""
_SCHEDULER_STARTS = 3.0
_FIRST_DUE_MS = 1_500
_DEFAULTS_OF_PEERS = 2_000
"""Some are slow with their defaults, and no promise is about that."""


class RowCounts(msgspec.Struct, frozen=True):
    """How many jobs a round has."""

    jobs: int
    one_by_one: int
    samples: int
    wire: int
    last_due_ms: int
    defaults: int
    """Jobs of the drain with default settings."""

    @classmethod
    def of(cls, plan: Plan) -> RowCounts:
        return cls(
            jobs=plan.count(20_000, 1_000),
            one_by_one=plan.count(2_000, 300),
            samples=plan.count(100, 20),
            wire=plan.count(1_000, 200),
            last_due_ms=plan.count(4_500, 2_500),
            defaults=plan.count(20_000, 500),
        )

    def for_(self, peer: Peer) -> RowCounts:
        """The same, with no more jobs than a slow peer can run in time."""
        jobs = min(self.jobs, peer.most)
        defaults = jobs if peer.ours else min(self.defaults, jobs, _DEFAULTS_OF_PEERS)
        one_by_one = min(self.one_by_one, jobs)
        return msgspec.structs.replace(self, jobs=jobs, one_by_one=one_by_one, defaults=defaults)


class RowRound(msgspec.Struct):
    """The results; what could not be measured is missing, and *stopped* says why."""

    jobs: int = 0
    submit_one: float | None = None
    """Jobs per second, as the other rates."""
    submit_blocking: float | None = None
    """One by one too, by code without an event loop."""
    submit_many: float | None = None
    drain: float | None = None
    drain_defaults: float | None = None
    worker_us: float | None = None
    """CPU of the worker's process, per job."""
    defaults_worker_us: float | None = None
    """The same of the drain with default settings."""
    defaults_run_cpu_us: float | None = None
    submit_cpu_us: float | None = None
    """CPU of the server, per job submitted one by one."""
    run_cpu_us: float | None = None
    submit_calls: float | None = None
    """Commands that the server ran, per job; those inside scripts too."""
    run_calls: float | None = None
    submit_wire: float | None = None
    """Commands that were sent, per job."""
    run_wire: float | None = None
    bytes_per_job: float | None = None
    pickup_ms: list[float] = []
    late_ms: list[float] = []
    twice: int = 0
    """Jobs of the drain that were handled again."""
    stopped: str = ""


async def measure_row(bench: PeerBench, peer: Peer, counts: RowCounts, *, seed: int) -> RowRound:
    """Measures everything but the commands and the defaults; never raises NotMeasured."""
    seen = RowRound(jobs=counts.jobs)
    bench.clear()
    told = HandlerReports(bench.report)
    try:
        async with _watching(bench, peer), producing(bench, peer) as producer:
            await _submit(bench, producer, peer, seen, counts=counts)
            before = bench.reading()
            async with running(bench, peer, peer.worker) as worker:
                idle = IdleWorker(producer, told, worker, counts.samples, seed=seed)
                await _drain(bench, idle, before, seen)
                await idle.pick_up(seen.pickup_ms)
                async with _scheduler(bench, peer):
                    await idle.delay(seen.late_ms, until_ms=counts.last_due_ms)
    except NotMeasured as problem:
        seen.stopped = str(problem)
    seen.twice = told.twice
    return seen


async def _submit(
    bench: PeerBench, producer: RowProducer, peer: Peer, seen: RowRound, *, counts: RowCounts
) -> None:
    """Submits one by one first, the rest in bulk where that exists: all before the worker
    starts.
    """
    # What Redis stores once, such as scripts and options of the queue, is not memory of a job; and
    # a queue of Towpath writes its events for the first second.
    await producer.order("one", count=1, run=_FIRST, of=2)
    await asyncio.sleep(_COUNTED_AFTER)
    empty = bench.reading()
    took = await producer.order("one", count=counts.one_by_one, run=RUN, of=counts.jobs)
    some = bench.reading()
    seen.submit_one = counts.one_by_one / took["seconds"]
    seen.submit_cpu_us = (some.cpu - empty.cpu) / counts.one_by_one * 1e6
    seen.submit_calls = (some.calls - empty.calls) / counts.one_by_one
    left = counts.jobs - counts.one_by_one
    if peer.ways == 2 and left >= counts.one_by_one:
        took = await producer.order("blocking", count=counts.one_by_one, run=RUN, of=counts.jobs)
        seen.submit_blocking = counts.one_by_one / took["seconds"]
        left -= counts.one_by_one
    elif peer.ways == 1 and not peer.asyncio:
        seen.submit_blocking = seen.submit_one
    if left:
        do = "many" if peer.bulk else "one"
        took = await producer.order(do, count=left, run=RUN, of=counts.jobs)
        if peer.bulk:
            seen.submit_many = left / took["seconds"]
    await asyncio.sleep(_COUNTED_AFTER)
    seen.bytes_per_job = (bench.reading().memory - empty.memory) / counts.jobs


async def _drain(bench: PeerBench, idle: IdleWorker, before: ServerUsage, seen: RowRound) -> None:
    """Drains with a worker that was just started; from the first to the last job that it
    handled.
    """
    done = await idle.told.next("drain", within=_DRAIN_WITHIN, worker=idle.worker)
    await asyncio.sleep(_SETTLED_AFTER)
    after = bench.reading()
    seen.drain = seen.jobs / done["seconds"]
    seen.worker_us = done["cpu"] / seen.jobs * 1e6
    seen.run_cpu_us = (after.cpu - before.cpu) / seen.jobs * 1e6
    seen.run_calls = (after.calls - before.calls) / seen.jobs


async def measure_defaults(bench: PeerBench, peer: Peer, counts: RowCounts, seen: RowRound) -> None:
    """Drains with a worker that has default settings."""
    bench.clear()
    try:
        async with producing(bench, peer, defaults=True) as producer:
            do = "many" if peer.bulk else "one"
            await producer.order(do, count=counts.defaults, run=RUN, of=counts.defaults)
            before = bench.reading()
            async with running(bench, peer, peer.defaults, defaults=True) as worker:
                told = HandlerReports(bench.report)
                done = await told.next("drain", within=_DRAIN_WITHIN, worker=worker)
                await asyncio.sleep(_SETTLED_AFTER)
                used = bench.reading().cpu - before.cpu
                seen.drain_defaults = counts.defaults / done["seconds"]
                seen.defaults_worker_us = done["cpu"] / counts.defaults * 1e6
                seen.defaults_run_cpu_us = used / counts.defaults * 1e6
    except NotMeasured as problem:
        seen.stopped = seen.stopped or f"with its defaults, {problem}"


@asynccontextmanager
async def _watching(bench: PeerBench, peer: Peer) -> AsyncGenerator[None]:
    """Starts the followers of a row's jobs, if it has any."""
    if not peer.watchers:
        yield
        return
    async with producing(bench, peer, peer.watchers):
        yield


@asynccontextmanager
async def _scheduler(bench: PeerBench, peer: Peer) -> AsyncGenerator[None]:
    """Starts the process that a row needs for delayed jobs, if any."""
    if not peer.scheduler:
        yield
        return
    async with running(bench, peer, peer.scheduler):
        await asyncio.sleep(_SCHEDULER_STARTS)
        yield


class IdleWorker:
    """A worker with nothing to do, and the producer that submits to it."""

    def __init__(
        self,
        producer: RowProducer,
        told: HandlerReports,
        worker: RowProcess,
        samples: int,
        *,
        seed: int,
    ) -> None:
        self.told, self.worker = told, worker
        self._producer, self._samples, self._chance = producer, samples, random.Random(seed)

    async def pick_up(self, times_ms: list[float]) -> None:
        """Submits one job at a time, with pauses of varying length, because the worker may poll."""
        for _ in range(self._samples):
            await asyncio.sleep(self._chance.uniform(0.005, 0.025))
            await self._producer.order("pickup")
            await self._note("pickup", times_ms)

    async def delay(self, times_ms: list[float], *, until_ms: int) -> None:
        """Submits jobs that become due one after the other, at random."""
        delays = [self._chance.randint(_FIRST_DUE_MS, until_ms) for _ in range(self._samples)]
        await self._producer.order("delayed", delays_ms=delays)
        for _ in delays:
            await self._note("delayed", times_ms)

    async def _note(self, kind: str, times_ms: list[float]) -> None:
        report = await self.told.next(kind, within=_REPORT_WITHIN, worker=self.worker)
        times_ms.append(report["ms"])


# -- the wire -------------------------------------------------------------------------------------


async def watch_wire(bench: PeerBench, peer: Peer, counts: RowCounts, seen: RowRound) -> None:
    """Counts the commands by MONITOR: in a round of its own, because it slows Redis down."""
    bench.clear()
    try:
        async with (
            producing(bench, peer) as producer,
            CommandMonitor(bench.server.socket) as monitor,
        ):
            await producer.order("one", count=counts.wire, run=RUN, of=counts.wire)
            submitted = await monitor.lines()
            async with running(bench, peer, peer.worker) as worker:
                told = HandlerReports(bench.report)
                await told.next("drain", within=_DRAIN_WITHIN, worker=worker)
                await asyncio.sleep(_SETTLED_AFTER)
                ran = await monitor.lines() - submitted
    except NotMeasured as problem:
        seen.stopped = seen.stopped or str(problem)
        return
    seen.submit_wire, seen.run_wire = submitted / counts.wire, ran / counts.wire


class CommandMonitor:
    """Counts the commands that clients send; those of scripts are marked and left out."""

    def __init__(self, socket: Path) -> None:
        self._socket, self._lines = socket, 0

    async def __aenter__(self) -> CommandMonitor:
        self._reader, self._writer = await asyncio.open_unix_connection(self._socket)
        self._writer.write(b"MONITOR\r\n")
        await self._reader.readline()
        self._counting = asyncio.create_task(self._count())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._counting.cancel()
        self._writer.close()
        await asyncio.gather(self._counting, return_exceptions=True)

    async def lines(self) -> int:
        """How many commands so far, after those under way have arrived."""
        await asyncio.sleep(_SETTLED_AFTER)
        return self._lines

    async def _count(self) -> None:
        while line := await self._reader.readline():
            self._lines += b" lua]" not in line[:60]
