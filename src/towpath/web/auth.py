"""Who may do what: a key in each request, checked against the ledger, with scopes and queues.

Requests that stay open are sessions: so many at a time, and only while their keys count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Protocol

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from towpath.errors import TowpathError
from towpath.ledger.keys.key import KeyInfo
from towpath.ledger.keys.key import Scope as KeyScope
from towpath.ledger.keys.raw import RawQueues
from towpath.supervise import Background
from towpath.web.audit import Auditor
from towpath.web.fields import decoded, keep_as_sent
from towpath.web.limits import Rates, ServerLimits
from towpath.web.problems import Refused, of_error
from towpath.web.visits import Visits, cookie_of, login_of

_SCOPED: set[Callable[..., Any]] = set()
"""All that `scoped` made."""
_KEY, _RECHECK = "towpath.key", "towpath.recheck"


class Checks(Protocol):
    """Where keys are known."""

    async def check(self, secret: str) -> KeyInfo | None: ...


CredentialCheck = Callable[[Scope, str], Awaitable[KeyInfo | None]]
"""Checks a credential for one request: the key that issued it, with the scopes that the credential
gives; None if it does not count. Raises Refused with 403 for a request that it is not for."""
NO_CREDENTIALS: Mapping[str, CredentialCheck] = MappingProxyType({})


class Door:
    """ASGI middleware: checks the key of a request before anything else.

    So who has no key learns neither which paths there are, nor how large a body may be. Webhooks
    have none: their signature is looked at before anything else of them is. *open* paths, and
    methods of paths, answer to everybody, *signed* ones are those of webhooks. Where there are
    *visits*, a session of the dashboard stands for its key; *unknown* is what people see who come
    without either. *credentials* check tokens that keys have issued, by how
    the tokens begin.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Checks,
        rates: Rates,
        *,
        open: Collection[str] = (),
        signed: Collection[str] = (),
        visits: Visits | None = None,
        audit: Auditor | None = None,
        unknown: Callable[[Scope], Response] | None = None,
        credentials: Mapping[str, CredentialCheck] = NO_CREDENTIALS,
    ) -> None:
        self._app, self._keys, self._rates = app, keys, rates
        self._visits, self._audit, self._unknown = visits, audit, unknown
        self._credentials = credentials
        self._open, self._signed = frozenset(open), frozenset(signed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if _KEY in scope:  # asked by a path of ours, in the name of whoever asked that
            keep_as_sent(scope)
            await self._answer(scope, receive, send)
            return
        needs_none = (
            scope["type"] != "http"
            or scope["path"] in self._open
            or f"{scope['method']} {scope['path']}" in self._open
            or (scope["path"] in self._signed and scope["method"] == "POST")
        )
        if not needs_none:
            try:
                key = await self._checked(scope)
            except (Refused, TowpathError) as error:
                await self._refusal(error, scope)(scope, receive, send)
                return
            scope[_KEY] = key
            keep_as_sent(scope)
            if self._visits and login_of(scope):
                scope[_RECHECK] = partial(self._visits.again, cookie_of(scope))
            else:
                scope[_RECHECK] = partial(self._check, scope, _secret(scope))
            await self._answer(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose key is known. Changes are written to the audit log."""
        if self._audit is None:
            await self._app(scope, receive, send)
        else:
            await self._audit.answer(self._app, scope[_KEY], scope, receive, send)

    def _refusal(self, error: Refused | TowpathError, scope: Scope) -> Response:
        """Why not; people who open a page of the dashboard are shown where to log in."""
        by_browser = (b"sec-fetch-dest", b"document") in scope["headers"]
        if self._unknown and by_browser and isinstance(error, Refused) and error.status == 401:
            return self._unknown(scope)
        return of_error(error)

    async def _checked(self, scope: Scope) -> KeyInfo:
        """The key of the request. 401 without a valid one, 429 above its rate."""
        secret = _secret(scope)
        key = await self._check(scope, secret) if secret else await self._visiting(scope)
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

    async def _check(self, scope: Scope, secret: str) -> KeyInfo | None:
        """The key that *secret* belongs to, or that has issued it as a credential."""
        for prefix, check in self._credentials.items():
            if secret.startswith(prefix):
                return await check(scope, secret)
        return await self._keys.check(secret)

    async def _visiting(self, scope: Scope) -> KeyInfo | None:
        """The key of the session that the request belongs to. 403 for another site's request."""
        login = await self._visits.find(scope) if self._visits else None
        if self._visits and login:
            self._visits.require_own(scope, login)
        return login.key if login else None


def _secret(scope: Scope) -> str:
    """What was sent as a key; a bearer token wins over the plain header."""
    plain = ""
    for name, value in scope["headers"]:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return value[7:].strip().decode("latin-1")
        if name == b"x-api-key":
            plain = value.decode("latin-1")
    return plain


def within(scope: Scope) -> Scope:
    """What a request has from which it comes and whose key it has: for one that is made of it."""
    kept = ("type", "asgi", "http_version", "scheme", "client", "server", "root_path", "state")
    return {name: scope[name] for name in (*kept, _KEY, _RECHECK) if name in scope}


def key_of(request: Request) -> KeyInfo:
    """The key that the request came with."""
    return request.scope[_KEY]


def enter(request: Request, key: KeyInfo) -> None:
    """Let a request at an open path act for *key*: whoever sent it has a session of it."""
    request.scope[_KEY] = key


def is_known(request: Request) -> bool:
    """Whether the request came with a key or a session; at an open path it may not have."""
    return _KEY in request.scope


def recheck_of(request: Request) -> Callable[[], Awaitable[KeyInfo | None]]:
    """What asks again for that key: None once it has ended. Raises LedgerError."""
    return request.scope[_RECHECK]


async def _key(request: Request) -> KeyInfo:
    return key_of(request)


Key = Annotated[KeyInfo, Depends(_key)]


def scoped(scope: KeyScope, *, queue: str | None = None) -> Callable[[Request], Awaitable[KeyInfo]]:
    """A dependency: the request's key has *scope*, for *queue* or else the path's, if any.

    A path that names a queue and changes it is a raw call: on the queue of an application, the
    application publishes it or the key needs the scope `raw`.
    """

    async def check(request: Request) -> KeyInfo:
        key = key_of(request)
        named = request.path_params.get("queue")
        require(key, scope, queue or named)
        if queue is None and named is not None and scope is not KeyScope.READ:
            require_raw(request, key, named)
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
            remedy=f"Use a key that has it: `towpath keys create --scope {scope}`.",
        )
    if queue is not None and not key.covers(_plain(queue)):
        raise Refused(
            403,
            "queue_forbidden",
            "the key does not cover this queue",
            remedy="Use a key whose queue patterns match.",
        )


def require_raw(request: Request, key: KeyInfo, queue: str) -> None:
    """403 if the request is a raw call to a queue of an application that *key* may not make."""
    raw: RawQueues = request.app.state.raw
    verb = request.scope["endpoint"].__name__
    if raw.needs_raw(_plain(queue), verb) and not key.may(KeyScope.RAW):
        raise Refused(
            403,
            "scope_missing",
            "the queue belongs to an application; to use it directly, a key needs the scope `raw`",
            remedy="Use the application's own paths, or a key that has it: "
            "`towpath keys create --scope raw`.",
        )


def require_all_queues(key: KeyInfo) -> None:
    """403 unless *key* covers all queues."""
    if "*" not in key.queues:
        raise Refused(
            403,
            "queue_forbidden",
            "the key covers only some queues; this request needs all of them",
            remedy="Use a key for all queues (`*`).",
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


# ── sessions ─────────────────────────────────────────────────────────────────────────────

LOOK_EVERY = 0.5
"""Seconds between two looks at a key. What is known of one is asked for again after three seconds,
so whoever's key was revoked is shown out within five.
"""
_AGAIN = {"Retry-After": "5"}


class OpenKind(StrEnum):
    """What stays open."""

    STREAM = "event streams"
    WAIT = "waiting claims"


class OpenRequest:
    """One request that stays open, from `Sessions.open` to `close`."""

    __slots__ = ("_close", "_ended", "_on_end")

    def __init__(self, close: Callable[[OpenRequest], None]) -> None:
        self._close = close
        self._ended = False
        self._on_end: Callable[[], object] | None = None

    def on_end(self, then: Callable[[], object]) -> None:
        """Call *then* when the key no longer counts."""
        self._on_end = then
        if self._ended:
            then()

    def end(self) -> None:
        """The key no longer counts."""
        self._ended = True
        if self._on_end is not None:
            self._on_end()

    def close(self) -> None:
        """It is not open any more. Twice does no harm."""
        self._close(self)


class _Holder:
    """The open sessions of one key."""

    def __init__(self, recheck: Callable[[], Awaitable[KeyInfo | None]]) -> None:
        self.recheck = recheck
        self.sessions: dict[OpenRequest, OpenKind] = {}

    def count(self, kind: OpenKind) -> int:
        return sum(session is kind for session in self.sessions.values())


class Sessions:
    """All that is open, by key. A key that is revoked or has expired ends what is open with it;
    so does a database that can't say, as it does for requests.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self._together = {OpenKind.STREAM: limits.streams, OpenKind.WAIT: limits.waits}
        self._each = {OpenKind.STREAM: limits.streams_per_key, OpenKind.WAIT: limits.waits}
        self._open = dict.fromkeys(OpenKind, 0)
        self._holders: dict[str, _Holder] = {}
        self._watching = Background("watcher of open sessions", self._watch)

    def count(self, kind: OpenKind) -> int:
        """How many of *kind* are open."""
        return self._open[kind]

    def refuse_if_full(self, request: Request, kind: OpenKind) -> None:
        """429 if the key has too many of *kind* open, 503 if all together have."""
        holder = self._holders.get(key_of(request).id)
        if holder is not None and holder.count(kind) >= self._each[kind]:
            raise Refused(
                429,
                "too_many_of_key",
                f"the limit of {self._each[kind]} {kind} for this key is reached",
                remedy="Close some, or use another key.",
                headers=_AGAIN,
            )
        if self._open[kind] >= self._together[kind]:
            raise Refused(
                503,
                f"too_many_{kind.name.lower()}s",
                f"the limit of {self._together[kind]} {kind} on this server is reached",
                remedy="Close some, or start another server.",
                headers=_AGAIN,
            )

    def open(self, request: Request, kind: OpenKind) -> OpenRequest:
        """Count a request as open until it is closed. 429, 503."""
        self.refuse_if_full(request, kind)
        key = key_of(request).id
        holder = self._holders.get(key)
        if holder is None:
            holder = self._holders[key] = _Holder(recheck_of(request))

        def close(session: OpenRequest) -> None:
            if holder.sessions.pop(session, None) is not None:
                self._open[kind] -= 1
                if not holder.sessions and self._holders.get(key) is holder:
                    del self._holders[key]

        session = OpenRequest(close)
        holder.sessions[session] = kind
        self._open[kind] += 1
        self._watching.start()
        return session

    async def close(self) -> None:
        """Look at keys no more."""
        await self._watching.stop()

    async def _watch(self) -> None:
        while self._holders:
            await asyncio.sleep(LOOK_EVERY)
            await asyncio.gather(*map(self._look, list(self._holders.values())))
        self._watching.retire()  # until the next one is opened

    async def _look(self, holder: _Holder) -> None:
        try:
            counts = await holder.recheck() is not None
        except TowpathError:
            counts = False
        if not counts:
            for session in list(holder.sessions):
                session.end()
