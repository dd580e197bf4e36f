"""The reference for chunks: a bare endpoint of FastAPI that reads a body and drops it.

`python -m benchmarks.objects.dropping` prints its address as one JSON object.
"""

from __future__ import annotations

import asyncio
import json

from fastapi import FastAPI, Request

from towpath.server.run import listen, serve
from towpath.supervise import new_loop
from towpath.telemetry.logs import Log


def build() -> FastAPI:
    app = FastAPI()
    app.state.stopping = asyncio.Event()

    app.add_api_route("/drop", _drop, methods=["PUT"])
    return app


async def _drop(request: Request) -> dict[str, int]:
    size = 0
    async for piece in request.stream():
        size += len(piece)
    return {"size": size}


async def _started(address: str) -> None:
    print(json.dumps({"address": address}), flush=True)


async def _main() -> None:
    with listen("127.0.0.1", 0) as sock:
        await serve(build(), sock, started=_started, log=Log())


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_main())
