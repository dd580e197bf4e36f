"""512 MiB by `towpath upload` reach 0.7 times the rate of `upload_part` itself, in any chunks."""

from __future__ import annotations

import sys
from tempfile import TemporaryDirectory

from benchmarks.bench import Persistence, Plan
from benchmarks.figure import Figure, Reference, at_least, measured
from benchmarks.objects.upload_bench import MIB, new_file, upload_bench
from benchmarks.web.process import cpu_of

CHUNKS = {"8m": "8 MiB", "1m": "1 MiB", "256k": "256 KiB"}


async def run(plan: Plan) -> list[Figure]:
    size = plan.count(512, 64) * MIB
    rounds = plan.count(5, 2)
    figures: list[Figure] = []
    with TemporaryDirectory(prefix="towpath-bench-") as folder:
        file = new_file(folder, size)
        for kept in (Persistence.MEMORY, Persistence.DISK):
            async with upload_bench(kept) as bench:
                await bench.uploaded(file, "8m")
                await bench.direct(file)
                times: dict[str, list[float]] = {name: [] for name in ("direct", *CHUNKS)}
                spent = 0.0
                for number in range(rounds):
                    order = list(times)
                    for name in order if number % 2 == 0 else reversed(order):
                        before = cpu_of([bench.serving.pid])
                        if name == "direct":
                            times[name].append(await bench.direct(file))
                        else:
                            times[name].append(await bench.uploaded(file, name))
                        if name == "8m":
                            spent = cpu_of([bench.serving.pid]) - before
                    await bench.clear()
                    told = ", ".join(f"{name} {found[-1]:.1f} s" for name, found in times.items())
                    sys.stderr.write(f"{kept}, round {number + 1}: {told}\n")
                figures += _figures(kept, size, times, spent)
    return figures


def _figures(
    kept: Persistence, size: int, times: dict[str, list[float]], spent: float
) -> list[Figure]:
    def rates(name: str) -> list[float]:
        return [size / MIB / seconds for seconds in times[name]]

    direct = Reference("MiB/s, upload_part", rates("direct"))
    bound = (
        f"the server's process used {spent / (size / MIB) * 1000:.1f} ms of CPU per MiB to receive "
        "and to store; it, Redis, the store and the client share the cores"
    )
    found = [
        measured(
            f"uploads_throughput.{kept}.{name}",
            f"{size // MIB} MiB by `towpath upload`, chunks of {told}, Redis at {kept}",
            "MiB/s",
            rates(name),
            at_least(0.7, "upload_part") if name != "256k" else None,
            beside=direct,
            bound=bound,
        )
        for name, told in CHUNKS.items()
    ]
    found.append(
        measured(
            f"uploads_throughput.{kept}.small_chunks",
            "the same in chunks of 256 KiB, beside 8 MiB",
            "MiB/s",
            rates("256k"),
            at_least(0.9, "8 MiB"),
            beside=Reference("MiB/s, 8 MiB", rates("8m")),
            bound=bound,
        )
    )
    return found
