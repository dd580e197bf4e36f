"""What a request handler may ask for: the parts of the running server."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Request

from towpath.engine.engine import Engine
from towpath.engine.model import Call
from towpath.server.auth import Key
from towpath.server.gateway import Gateway
from towpath.server.limits import Streams


def _gateway(request: Request) -> Gateway:
    return request.app.state.gateway


def _engine(request: Request) -> Engine:
    gateway: Gateway = request.app.state.gateway
    return gateway.engine


def _streams(request: Request) -> Streams:
    return request.app.state.streams


def _call(
    key: Key,
    idempotency_key: Annotated[
        str | None,
        Header(
            max_length=255,
            description="Makes the request repeatable: the same key again within ten minutes has "
            "no effect and the same answer.",
        ),
    ] = None,
) -> Call | None:
    """The name of the caller's call: under his own key, so that no other can guess his answers."""
    if not idempotency_key:
        return None
    return Call(f"http/{key.id}/{idempotency_key.encode().hex()}", 1)


TheGateway = Annotated[Gateway, Depends(_gateway)]
TheEngine = Annotated[Engine, Depends(_engine)]
TheStreams = Annotated[Streams, Depends(_streams)]
NamedCall = Annotated[Call | None, Depends(_call)]
