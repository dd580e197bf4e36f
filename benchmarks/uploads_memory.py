"""Memory of server, workers and Redis stays within the budget while 10 GiB flow through."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.bench import Persistence, Plan
from benchmarks.figure import Figure, at_most, measured
from benchmarks.objects.upload_bench import MIB, UploadBench, new_file, upload_bench

BUDGET = 128 * MIB
_EVERY = 0.1


async def run(plan: Plan) -> list[Figure]:
    size, times = plan.count(512, 64) * MIB, plan.count(20, 3)
    with TemporaryDirectory(prefix="towpath-bench-") as folder:
        file = new_file(folder, size)
        async with upload_bench(Persistence.MEMORY, TOWPATH_UPLOADS__BUDGET=str(BUDGET)) as bench:
            await bench.uploaded(file, "8m")
            peaks = await _flowing(bench, file, times)
    total = size * times / MIB / 1024
    what = f"while {total:.1f} GiB flow through, budget {BUDGET // MIB} MiB"
    first, last = peaks[0], peaks[-1]
    bound = f"Redis itself had at most {max(peak[1] for peak in peaks):.0f} MiB"
    return [
        measured(
            "uploads_memory.redis", f"memory of Redis {what}: highest of each file", "MiB",
            [peak[1] for peak in peaks], at_most(2 * BUDGET / MIB), bound=bound,
        ),
        measured(
            "uploads_memory.server", f"memory of server and workers (one process) {what}", "MiB",
            [peak[0] for peak in peaks],
        ),
        measured(
            "uploads_memory.growth", "the same, of the last file beside the first", "MiB",
            [last[0] - first[0]], at_most(32), bound="",
        ),
    ]  # fmt: skip


async def _flowing(bench: UploadBench, file: Path, times: int) -> list[tuple[float, float]]:
    """The highest memory of server and Redis, in MiB, for each uploaded file."""
    peaks: list[tuple[float, float]] = []
    for number in range(times):
        sending = asyncio.create_task(bench.uploaded(file, "8m"))
        server = redis = 0.0
        while not sending.done():
            server = max(server, bench.serving.resident() / MIB)
            redis = max(redis, bench.workbench.meter.memory() / MIB)
            await asyncio.wait([sending], timeout=_EVERY)
        await sending
        await bench.clear()
        peaks.append((server, redis))
        sys.stderr.write(f"file {number + 1}: server {server:.0f} MiB, Redis {redis:.0f} MiB\n")
    return peaks
