"""Health: is the process alive, can it serve, what do its metrics say."""

from __future__ import annotations

import asyncio
from typing import Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from towpath.engine.engine import Engine
from towpath.server.readings import seen_with
from towpath.supervise import troubles
from towpath.web.auth import CanRead
from towpath.web.fields import Answer, example
from towpath.web.parts import PartOut, TheEngine, checked
from towpath.web.problems import documented

router = APIRouter(tags=["health"])
_RESTARTED = "It is started again by itself; the server's log says where it failed. Report it."


class ReadyOut(Answer):
    """Whether every part works."""

    model_config = example(
        ready=False,
        status="degraded",
        parts={
            "store": {"ok": False, "error": "server_unreachable", "remedy": "Check that …"},
            "ledger": {"ok": True},
        },
    )

    ready: bool
    status: Literal["ready", "degraded", "down"]
    """degraded: a part does not work. Without the store, jobs with a record are still taken;
    without the ledger, keys that were seen a moment ago still count. down: no part works."""
    parts: dict[str, PartOut]
    """`store`: Redis or Valkey. `ledger`: the database. Applications that tell. Others are tasks in
    the background, such as the relay, while they do not run."""


@router.head("/livez", response_class=PlainTextResponse, include_in_schema=False)
@router.get("/livez", response_class=PlainTextResponse)
async def livez() -> str:
    """The process answers. Needs no key."""
    return "ok"


@router.head("/readyz", include_in_schema=False)
@router.get(
    "/readyz",
    response_model=ReadyOut,
    response_model_exclude_none=True,
    responses={503: {"model": ReadyOut, "description": "A part does not work: it is named."}},
)
async def readyz(request: Request, engine: TheEngine) -> Response:
    """Every part takes a write; the ones that don't are named. Needs no key.

    Why is in the server's log: whoever has no key learns no address from it.
    """
    state = request.app.state
    probes = {"store": _is_fit(engine), "ledger": state.ledger.probe()}
    probes |= {name: probe(state.services[name]) for name, probe in state.probes.items()}
    found = await asyncio.gather(*map(checked, probes.values()))
    works = [it.ok for it in found]
    ended = {
        task: PartOut(ok=False, error=error, remedy=_RESTARTED)
        for task, error in troubles().items()
    }
    fine = all(works) and not ended
    ready = ReadyOut(
        ready=fine,
        status="ready" if fine else "degraded" if any(works) else "down",
        parts=dict(zip(probes, found, strict=True)) | ended,
    )
    status = 200 if ready.ready else 503
    return JSONResponse(ready.model_dump(exclude_none=True), status, headers=_again(status))


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={200: {"description": "In Prometheus' text format."}, **documented()},
)
async def metrics(request: Request, key: CanRead) -> Response:
    """For Prometheus: every queue of the store, and the handlers that run beside the server.

    Needs a key with the scope `read`; one for some queues sees those.
    """
    seen = seen_with(key, request.app.state.metrics.registry)
    # In a thread: the collector waits for this loop, which looks at the queues.
    text = await asyncio.to_thread(generate_latest, seen)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


async def _is_fit(engine: Engine) -> None:
    """See that the store takes a write and evicts no jobs. Raises ServerError."""
    await engine.try_write()
    await engine.check()


def _again(status: int) -> dict[str, str]:
    return {} if status == 200 else {"Retry-After": "1"}
