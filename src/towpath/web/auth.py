"""Who may do what: a key in each request, checked against the ledger, with scopes and queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Annotated, Any, Protocol

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from starlette.types import ASGIApp, Receive, Scope, Send

from towpath.errors import TowpathError
from towpath.ledger.keys.key import KeyInfo
from towpath.ledger.keys.key import Scope as KeyScope
from towpath.web.limits import Rates
from towpath.web.paths import decoded, keep_as_sent
from towpath.web.problems import Refused, of_error

_SCOPED: set[Callable[..., Any]] = set()
"""All that `scoped` made."""
_KEY, _RECHECK = "towpath.key", "towpath.recheck"


class Checks(Protocol):
    """Where keys are known."""

    async def check(self, secret: str) -> KeyInfo | None: ...


class Door:
    """ASGI middleware: nothing of a request is looked at before its key is.

    So who has no key learns neither which paths there are, nor how large a body may be. Webhooks
    have none: their signature is looked at before anything else of them is. *open* paths answer to
    everybody, *signed* ones are those of webhooks.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Checks,
        rates: Rates,
        *,
        open: Collection[str] = (),
        signed: Collection[str] = (),
    ) -> None:
        self._app, self._keys, self._rates = app, keys, rates
        self._open, self._signed = frozenset(open), frozenset(signed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._needs_none(scope):
            try:
                key = await self._checked(scope)
            except Refused as refused:
                await refused.response()(scope, receive, send)
                return
            except TowpathError as error:
                await of_error(error)(scope, receive, send)
                return
            scope[_KEY] = key
            scope[_RECHECK] = partial(self._keys.check, _secret(scope))
            keep_as_sent(scope)
        await self._app(scope, receive, send)

    def _needs_none(self, scope: Scope) -> bool:
        path = scope["path"]
        return path in self._open or (path in self._signed and scope["method"] == "POST")

    async def _checked(self, scope: Scope) -> KeyInfo:
        """The key of the request. 401 without a valid one, 429 above its rate."""
        secret = _secret(scope)
        key = await self._keys.check(secret) if secret else None
        if key is None:
            raise Refused(
                401,
                "unauthorized",
                "the key is not valid" if secret else "no key",
                remedy="Send `Authorization: Bearer <key>`; `towpath keys create` makes one.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        self._rates.take(key.id)
        return key


def _secret(scope: Scope) -> str:
    """What was sent as a key; a bearer token wins over the plain header."""
    plain = ""
    for name, value in scope["headers"]:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return value[7:].strip().decode("latin-1")
        if name == b"x-api-key":
            plain = value.decode("latin-1")
    return plain


def key_of(request: Request) -> KeyInfo:
    """The key that the request came with."""
    return request.scope[_KEY]


def recheck_of(request: Request) -> Callable[[], Awaitable[KeyInfo | None]]:
    """What asks again for that key: None once it has ended. Raises LedgerError."""
    return request.scope[_RECHECK]


async def _key(request: Request) -> KeyInfo:
    return key_of(request)


Key = Annotated[KeyInfo, Depends(_key)]


def scoped(scope: KeyScope, *, queue: str | None = None) -> Callable[[Request], Awaitable[KeyInfo]]:
    """A dependency: the request's key has *scope*, for *queue* or else the path's, if any."""

    async def check(request: Request) -> KeyInfo:
        key = key_of(request)
        require(key, scope, queue or request.path_params.get("queue"))
        return key

    _SCOPED.add(check)
    return check


def has_scope(dependant: Dependant) -> bool:
    """Whether a route looks at the scope of the key, through whatever it depends on."""
    return dependant.call in _SCOPED or any(map(has_scope, dependant.dependencies))


def require(key: KeyInfo, scope: KeyScope, queue: str | None) -> None:
    """403 unless *key* has *scope* for *queue*."""
    if not key.may(scope):
        raise Refused(
            403,
            "scope_missing",
            f"the key has no scope `{scope}`",
            remedy=f"Use a key with it: `towpath keys create --scope {scope}`.",
        )
    if queue is not None and not key.covers(_plain(queue)):
        raise Refused(
            403,
            "queue_forbidden",
            "the key is for other queues",
            remedy="Use a key whose queue patterns match.",
        )


def _plain(queue: str) -> str:
    """The queue's name; what can't be one is covered by no pattern but `*`."""
    try:
        return decoded(queue)
    except ValueError:
        return queue


CanSubmit = Annotated[KeyInfo, Depends(scoped(KeyScope.SUBMIT))]
CanWork = Annotated[KeyInfo, Depends(scoped(KeyScope.WORK))]
CanRead = Annotated[KeyInfo, Depends(scoped(KeyScope.READ))]
CanAdmin = Annotated[KeyInfo, Depends(scoped(KeyScope.ADMIN))]
