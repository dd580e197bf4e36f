"""Health: is the process alive, can it serve, what do its metrics say. Needs no key."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from towpath.errors import TowpathError
from towpath.server.gateway import Gateway
from towpath.server.parts import TheGateway

router = APIRouter(tags=["health"])
_PROBE_QUEUE = "towpath.readyz"
_WITHIN = 2.0


@router.get("/livez", response_class=PlainTextResponse)
async def livez() -> str:
    """The process answers."""
    return "ok"


@router.get("/readyz", responses={503: {"description": "A part does not work: its name and why."}})
async def readyz(request: Request, gateway: TheGateway) -> JSONResponse:
    """Every part takes a write; the ones that don't are named."""
    parts = {"store": _store(gateway), "ledger": request.app.state.ledger.probe()}
    found = dict(zip(parts, await asyncio.gather(*map(_checked, parts.values())), strict=True))
    ready = all(it["ok"] for it in found.values())
    return JSONResponse({"ready": ready, "parts": found}, 200 if ready else 503)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """For Prometheus."""
    registry = request.app.state.metrics.registry
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


async def _store(gateway: Gateway) -> None:
    """A write that leaves nothing: a pause that is taken back would be seen, a sweep is not."""
    await gateway.engine.promote(_PROBE_QUEUE, 1)


async def _checked(probe: Any) -> dict[str, Any]:
    try:
        async with asyncio.timeout(_WITHIN):
            await probe
    except TowpathError as error:
        return {"ok": False, "error": error.code, "detail": str(error), "remedy": error.remedy}
    except TimeoutError:
        return {"ok": False, "error": "timeout", "detail": f"no answer within {_WITHIN} s"}
    return {"ok": True}
