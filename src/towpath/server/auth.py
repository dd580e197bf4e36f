"""Who may do what: a key in each request, checked against the ledger, with scopes and queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Protocol

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, HTTPBearer
from fastapi.security.http import HTTPAuthorizationCredentials

from towpath.ledger.key import KeyInfo, Scope
from towpath.server.limits import Rates
from towpath.server.problems import Refused

_bearer = HTTPBearer(auto_error=False, description="`Authorization: Bearer tp_…`")
_header = APIKeyHeader(name="X-API-Key", auto_error=False, description="The same key, plain.")


class Checks(Protocol):
    """Where keys are known."""

    async def check(self, secret: str) -> KeyInfo | None: ...


async def _key(
    request: Request,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
    plain: Annotated[str | None, Security(_header)],
) -> KeyInfo:
    """The key of the request. 401 without a valid one, 429 above its rate."""
    secret = bearer.credentials if bearer is not None else plain
    keys: Checks = request.app.state.keys
    key = await keys.check(secret) if secret else None
    if key is None:
        raise Refused(
            401,
            "unauthorized",
            "no key" if not secret else "the key is not valid",
            remedy="Send `Authorization: Bearer <key>`; `towpath keys create` makes one.",
            headers={"WWW-Authenticate": "Bearer"},
        )
    rates: Rates = request.app.state.rates
    rates.take(key.id)
    return key


Key = Annotated[KeyInfo, Depends(_key)]


def scoped(scope: Scope) -> Callable[[Request, KeyInfo], Awaitable[KeyInfo]]:
    """A dependency: the request's key has *scope*, and for a path with a queue, that queue."""

    async def check(request: Request, key: Key) -> KeyInfo:
        require(key, scope, request.path_params.get("queue"))
        return key

    return check


def require(key: KeyInfo, scope: Scope, queue: str | None) -> None:
    """403 unless *key* has *scope* for *queue*."""
    if not key.may(scope):
        raise Refused(
            403,
            "scope_missing",
            f"the key has no scope `{scope}`",
            remedy=f"Use a key with it: `towpath keys create --scope {scope}`.",
        )
    if queue is not None and not key.covers(queue):
        raise Refused(
            403,
            "queue_forbidden",
            "the key is for other queues",
            remedy="Use a key whose queue patterns match.",
        )


CanSubmit = Annotated[KeyInfo, Depends(scoped(Scope.SUBMIT))]
CanWork = Annotated[KeyInfo, Depends(scoped(Scope.WORK))]
CanRead = Annotated[KeyInfo, Depends(scoped(Scope.READ))]
CanAdmin = Annotated[KeyInfo, Depends(scoped(Scope.ADMIN))]
