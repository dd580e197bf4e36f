"""How many small files per second, compared with one `put_object` each."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.bench import Persistence, Plan
from benchmarks.figure import Figure, Reference, measured
from benchmarks.objects.upload_bench import BUCKET, UploadBench, upload_bench

SIZE = 100 * 1024
AT_ONCE = 16


async def run(plan: Plan) -> list[Figure]:
    count, rounds = plan.count(1000, 100), plan.count(3, 2)
    figures: list[Figure] = []
    with TemporaryDirectory(prefix="towpath-bench-") as folder:
        files = [Path(folder) / f"{number}.bin" for number in range(count)]
        for file in files:
            file.write_bytes(os.urandom(SIZE))
        for kept in (Persistence.MEMORY, Persistence.DISK):
            ours, theirs = list[float](), list[float]()
            async with upload_bench(kept) as bench:
                for _ in range(rounds):
                    began = time.perf_counter()
                    await bench.told(files, "--parallel", str(AT_ONCE))
                    ours.append(count / (time.perf_counter() - began))
                    theirs.append(count / await _put(bench, files))
                    await bench.clear()
                    sys.stderr.write(f"{kept}: {ours[-1]:.0f} beside {theirs[-1]:.0f} files/s\n")
            figures.append(
                measured(
                    f"uploads_small.{kept}",
                    f"{count} files of 100 KiB by `towpath upload` until all are COMPLETED, "
                    f"{AT_ONCE} at once, Redis at {kept}",
                    "files/s",
                    ours,
                    beside=Reference("files/s, put_object", theirs),
                )
            )
    return figures


async def _put(bench: UploadBench, files: list[Path]) -> float:
    """The seconds for a `put_object` of each, as many at once."""
    room = asyncio.Semaphore(AT_ONCE)
    bodies = {file.name: file.read_bytes() for file in files}

    async def put(file: Path) -> None:
        async with room:
            await bench.s3.put_object(Bucket=BUCKET, Key=file.name, Body=bodies[file.name])

    began = time.perf_counter()
    await asyncio.gather(*map(put, files))
    return time.perf_counter() - began
