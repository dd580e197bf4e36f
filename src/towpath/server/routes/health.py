"""Health: is the process alive, can it serve, what do its metrics say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from towpath.errors import TowpathError
from towpath.server.auth import CanRead
from towpath.server.models import Answer, example
from towpath.server.parts import TheGateway
from towpath.server.problems import documented

router = APIRouter(tags=["health"])
_WITHIN = 2.0


class PartOut(Answer):
    """Whether a part of the server works."""

    ok: bool
    error: str | None = None
    """The error's code."""
    remedy: str | None = None


class ReadyOut(Answer):
    """Whether every part works."""

    model_config = example(
        ready=False,
        parts={
            "store": {"ok": False, "error": "server_unreachable", "remedy": "Check that …"},
            "ledger": {"ok": True},
        },
    )

    ready: bool
    parts: dict[str, PartOut]
    """`store`: Redis or Valkey. `ledger`: the database."""


@router.get("/livez", response_class=PlainTextResponse)
async def livez() -> str:
    """The process answers. Needs no key."""
    return "ok"


@router.get(
    "/readyz",
    response_model=ReadyOut,
    response_model_exclude_none=True,
    responses={503: {"model": ReadyOut, "description": "A part does not work: it is named."}},
)
async def readyz(request: Request, gateway: TheGateway) -> Response:
    """Every part takes a write; the ones that don't are named. Needs no key.

    Why is in the server's log: whoever has no key learns no address from it.
    """
    probes = {"store": gateway.probe(), "ledger": request.app.state.ledger.probe()}
    found = await asyncio.gather(*map(_checked, probes.values()))
    ready = ReadyOut(ready=all(it.ok for it in found), parts=dict(zip(probes, found, strict=True)))
    status = 200 if ready.ready else 503
    return JSONResponse(ready.model_dump(exclude_none=True), status, headers=_again(status))


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={200: {"description": "In Prometheus' text format."}, **documented()},
)
async def metrics(request: Request, _: CanRead) -> Response:
    """For Prometheus. Needs a key with the scope `read`."""
    registry = request.app.state.metrics.registry
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


async def _checked(probe: Awaitable[None]) -> PartOut:
    try:
        async with asyncio.timeout(_WITHIN):
            await probe
    except TowpathError as error:
        return PartOut(ok=False, error=error.code, remedy=error.remedy)
    except TimeoutError:
        return PartOut(ok=False, error="timeout", remedy="See whether it hangs.")
    return PartOut(ok=True)


def _again(status: int) -> dict[str, str]:
    return {} if status == 200 else {"Retry-After": "1"}
