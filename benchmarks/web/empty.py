"""The reference for `POST /api/v1/message` and for webhooks: the same bodies, and nothing done with
them.

`python -m benchmarks.web.empty DATABASE` prints its address as one JSON object. It runs like our
server, with the same event loop and settings of uvicorn; it lacks limits on bodies, signatures, and
the queue.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request

from benchmarks.web.deliveries import PATH
from towpath.apps.messages.http import CanSend, MessageIn, QueuedOut
from towpath.apps.reviews.http import TakenOut
from towpath.apps.reviews.model import ReviewState
from towpath.ledger.ledger import Ledger
from towpath.server.run import listen, serve
from towpath.supervise import new_loop
from towpath.telemetry.logs import Log
from towpath.web.auth import KeyMiddleware
from towpath.web.limits import DEFAULTS, Guesses, Rates
from towpath.web.open_requests import OpenRequests


def build(database: str) -> FastAPI:
    ledger = Ledger(database)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncGenerator[None]:
        async with ledger:
            yield

    app = FastAPI(lifespan=life)
    app.state.stopping = asyncio.Event()
    app.state.open_requests = OpenRequests(DEFAULTS)
    app.add_middleware(
        KeyMiddleware,
        keys=ledger.keys,
        rates=Rates(0),
        requests=app.state.open_requests,
        guesses=Guesses(0),
        signed=[PATH],
    )
    app.add_api_route("/api/v1/message", _send, methods=["POST"], response_model=QueuedOut)
    app.add_api_route(PATH, _deliver, methods=["POST"], status_code=202, response_model=TakenOut)
    return app


async def _send(body: MessageIn, _: CanSend) -> QueuedOut:
    return QueuedOut(status="queued", queue_position=1, message_id=body.user_id)


async def _deliver(request: Request) -> TakenOut:
    read = await request.body()
    return TakenOut(id=str(len(read)), state=ReviewState.PENDING, existed=False, superseded=[])


async def _started(address: str) -> None:
    print(json.dumps({"address": address}), flush=True)


async def _main(database: str) -> None:
    with listen("127.0.0.1", 0) as sock:
        await serve(build(database), sock, started=_started, log=Log())


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_main(sys.argv[1]))
