"""tus-js-client is 5 times as fast as with @tus/server on S3 in 1 MiB chunks, 1.1 times in 8."""

from __future__ import annotations

import sys
from contextlib import aclosing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.bench import Persistence, Plan
from benchmarks.figure import Figure, Reference, at_least, measured, not_measured
from benchmarks.objects.upload_bench import BUCKET, MIB, UploadBench, new_file, node, upload_bench
from benchmarks.peers.environments import NotInstalled, node_environment
from benchmarks.web.serving import KEY

REQUIRES = ("tus-js-client@4.3.1", "@tus/server@2.4.5", "@tus/s3-store@2.0.7")
CHUNKS = {1: 5.0, 8: 1.1}
"""MiB, and how many times as fast it should be."""


async def run(plan: Plan) -> list[Figure]:
    try:
        modules = node_environment("tus", REQUIRES)
    except NotInstalled as error:
        return [not_measured("uploads_tus", "tus-js-client", "MiB/s", why=str(error))]
    size, rounds = plan.count(512, 32) * MIB, 2
    figures: list[Figure] = []
    with TemporaryDirectory(prefix="towpath-bench-") as folder:
        file = new_file(folder, size)
        for kept in (
            (Persistence.MEMORY, Persistence.DISK) if not plan.quick else (Persistence.MEMORY,)
        ):
            async with upload_bench(kept) as bench, aclosing(_server(bench, modules)) as server:
                port = (await anext(server))["port"]
                for chunk in CHUNKS:
                    ours, theirs = list[float](), list[float]()
                    for _ in range(rounds):
                        here = (f"{bench.url}/files", KEY)
                        ours.append(await _sent(bench, file, chunk, here, modules))
                        there = (f"http://127.0.0.1:{port}/files", "")
                        theirs.append(await _sent(bench, file, chunk, there, modules))
                        await bench.clear()
                        told = f"ours {ours[-1]:.1f} s, @tus/server {theirs[-1]:.1f} s"
                        sys.stderr.write(f"{kept} {chunk} MiB: {told}\n")
                    figures.append(_figure(kept, size, chunk, ours, theirs))
    return figures


def _server(bench: UploadBench, modules: Path) -> Any:
    objects = bench.objects
    told = {
        "bucket": BUCKET,
        "endpoint": objects.url,
        "access_key": objects.access_key,
        "secret_key": objects.secret_key,
    }
    return node("tus_server.js", told, modules)


async def _sent(
    bench: UploadBench, file: Path, chunk: int, where: tuple[str, str], modules: Path
) -> float:
    """The seconds until the client is done; with Towpath, until the object exists."""
    endpoint, key = where
    told = {"file": str(file), "endpoint": endpoint, "chunk": chunk * MIB, "key": key}
    async with aclosing(node("tus_send.js", told, modules)) as said:
        answer = await anext(said)
    assert "seconds" in answer, answer
    return answer["seconds"] + (await bench.stored(answer["url"]) if key else 0.0)


def _figure(
    kept: Persistence, size: int, chunk: int, ours: list[float], theirs: list[float]
) -> Figure:
    return measured(
        f"uploads_tus.{kept}.{chunk}m",
        f"{size // MIB} MiB by tus-js-client in chunks of {chunk} MiB, Redis at {kept}",
        "MiB/s",
        [size / MIB / seconds for seconds in ours],
        at_least(CHUNKS[chunk], "@tus/server"),
        beside=Reference("MiB/s, @tus/server", [size / MIB / seconds for seconds in theirs]),
        bound="the client, the server, Redis and the store share two cores",
    )
