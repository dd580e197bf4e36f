"""How soon a chunk of 8 MiB is acknowledged, compared with an endpoint that reads it and
drops it.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from asyncio import to_thread
from typing import Any

from benchmarks.bench import Persistence, Plan
from benchmarks.figure import Figure, Reference, measured
from benchmarks.measure import percentile
from benchmarks.objects.upload_bench import MIB, UploadBench, upload_bench
from benchmarks.web.serving import KEY, dropping

CHUNK = 8 * MIB
_HEADERS = {"X-API-Key": KEY}


async def run(plan: Plan) -> list[Figure]:
    chunks, rounds = plan.count(60, 10), plan.count(3, 2)
    body = os.urandom(CHUNK)
    figures: list[Figure] = []
    for kept in (Persistence.MEMORY, Persistence.DISK):
        ours, theirs = list[list[float]](), list[list[float]]()
        async with upload_bench(kept) as bench, dropping() as nothing:
            for _ in range(rounds):
                ours.append(await to_thread(_acknowledged, bench, body, chunks))
                theirs.append(await to_thread(_dropped, nothing.place, body, chunks))
                await bench.clear()
        for word, share in (("p50", 0.5), ("p99", 0.99)):
            figures.append(
                measured(
                    f"uploads_ack.{kept}.{word}",
                    f"PUT of a chunk of 8 MiB to its answer, Redis at {kept}, {word}",
                    "ms",
                    [percentile(times, share) for times in ours],
                    beside=Reference(
                        "ms, read and dropped", [percentile(times, share) for times in theirs]
                    ),
                )
            )
        sys.stderr.write(f"{kept}: {figures[-2].value:.1f} / {figures[-1].value:.1f} ms\n")
    return figures


def _acknowledged(bench: UploadBench, body: bytes, chunks: int) -> list[float]:
    connection = http.client.HTTPConnection(*bench.serving.place)
    wanted = json.dumps({"name": "a", "size": chunks * CHUNK, "chunk_size": CHUNK})
    json_type = {**_HEADERS, "Content-Type": "application/json"}
    connection.request("POST", "/api/v1/uploads", wanted, json_type)
    upload: dict[str, Any] = json.loads(connection.getresponse().read())
    path = f"/api/v1/uploads/{upload['upload_id']}/chunks/"
    times: list[float] = []
    number = 0
    while number < chunks:
        began = time.perf_counter()
        connection.request("PUT", f"{path}{number}", body, _HEADERS)
        answer = connection.getresponse()
        answer.read()
        if answer.status == 200:
            times.append((time.perf_counter() - began) * 1000)
            number += 1
        else:  # there was no room, so it was not acknowledged
            time.sleep(0.2)
    connection.close()
    return times


def _dropped(place: tuple[str, int], body: bytes, chunks: int) -> list[float]:
    connection = http.client.HTTPConnection(*place)
    times: list[float] = []
    for _ in range(chunks):
        began = time.perf_counter()
        connection.request("PUT", "/drop", body)
        connection.getresponse().read()
        times.append((time.perf_counter() - began) * 1000)
    connection.close()
    return times
