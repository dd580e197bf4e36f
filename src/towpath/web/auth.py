"""Authentication and permissions: checks the key of each request, its scopes and its queues."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from towpath.errors import NotOwned, TowpathError
from towpath.ledger.keys.key import KeyInfo
from towpath.ledger.keys.key import Scope as KeyScope
from towpath.ledger.keys.raw import RawQueues
from towpath.web.audit import Auditor
from towpath.web.dashboard_sessions import CSRF, LOGIN, DashboardSessions, cookie_of, login_of
from towpath.web.fields import decoded, keep_as_sent
from towpath.web.limits import Account, Guesses, Metered, Rates
from towpath.web.open_requests import (
    CONNECTION,
    OPEN,
    LiveCredential,
    OpenRequests,
    address_of,
    no_connections,
)
from towpath.web.problems import Refused, of_error

T = TypeVar("T")
_SCOPED: set[Callable[..., Any]] = set()
"""All dependencies made by `scoped`."""
_KEY, _CREDENTIAL = "towpath.key", "towpath.credential"
HEALTH = frozenset({"/livez", "/readyz"})
"""Paths that are also answered over connections of the reserve."""


ONCE = frozenset(
    name.encode()
    for name in (
        "authorization", "content-encoding", "content-type", CSRF, "idempotency-key", "origin",
        "sec-fetch-site", "x-api-key", "x-http-method-override",
    )
)  # fmt: skip
"""Headers that decide what a request may do. A request that repeats one is refused: a proxy might
read the other value."""


class KeyChecker(Protocol):
    """Checks API keys."""

    async def check(self, secret: str) -> KeyInfo | None: ...

    def has_seen(self, secret: str) -> bool: ...


class _SentCredential:
    """A key or a cookie that a request sent, and the function that checks it again."""

    __slots__ = ("_check", "_text")

    def __init__(self, check: Callable[[str], Awaitable[KeyInfo | None]], text: str) -> None:
        self._check, self._text = check, text

    def __call__(self) -> Awaitable[KeyInfo | None]:
        return self._check(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SentCredential) and (self._check, self._text) == (
            other._check,
            other._text,
        )

    def __hash__(self) -> int:
        return hash((self._check, self._text))


CredentialCheck = Callable[[Scope, str], Awaitable[KeyInfo | None]]
"""Checks a credential for one request: the key that issued it, with the scopes that the credential
gives; None if it is not valid. Calls `note_credential`. Raises Refused (403) for a request that the
credential does not cover."""
NO_CREDENTIALS: Mapping[str, CredentialCheck] = MappingProxyType({})


class KeyMiddleware:
    """ASGI middleware: checks the key of a request before anything else.

    A client without a key learns neither which paths exist, nor how large a body may be. *open*
    paths, or methods of paths, need no key. *signed* paths are webhooks, which check a signature
    instead. With *login_sessions*, a login session of the dashboard stands for its key;
    *login_page* is the response for a browser that has neither. *pages* are open paths that show
    more with a login session. *credentials* check the credentials that keys have issued, by prefix.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyChecker,
        rates: Rates,
        *,
        requests: OpenRequests,
        guesses: Guesses,
        open: Collection[str] = (),
        signed: Collection[str] = (),
        pages: Collection[str] = (),
        login_sessions: DashboardSessions | None = None,
        audit: Auditor | None = None,
        login_page: Callable[[Scope], Response] | None = None,
        credentials: Mapping[str, CredentialCheck] = NO_CREDENTIALS,
    ) -> None:
        self._app, self._keys, self._rates = app, keys, rates
        self._login_sessions, self._audit, self._login_page = login_sessions, audit, login_page
        self._credentials = credentials
        self._requests, self._guesses = requests, guesses
        self._open, self._signed, self._pages = frozenset(open), frozenset(signed), frozenset(pages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if _KEY in scope:  # made from another request (`inner_scope`), whose key was checked
            keep_as_sent(scope)
            await self._answer_measured(account_of(scope), 0, self._answer(scope, receive, send))
            return
        try:
            admitted = await self._admit(scope)
        except (Refused, TowpathError) as error:
            await self._refusal(error, scope)(scope, receive, send)
            return
        if admitted is None:
            await self._app(scope, receive, send)
            return
        account, expected = admitted
        request = self._requests.enter(scope, account, self._credential(scope))
        keep_as_sent(scope)
        try:
            await self._answer_measured(account, expected, self._answer(scope, receive, send))
        finally:
            request.close()

    async def _admit(self, scope: Scope) -> tuple[Account, float] | None:
        """The account that the request counts for, and the seconds that it is expected to cost;
        None for a request without a key at an open path.

        Raises Refused (400, 401, 403, 429, 503).
        """
        _require_once(scope)
        if self._requests.is_reserved(scope) and scope["path"] not in HEALTH:
            await self._require_admin(scope)
        key = await (self._find_login(scope) if self._is_open(scope) else self._require_key(scope))
        if key is None:
            return None
        scope[_KEY] = key
        account = account_of(scope)
        self._requests.refuse_if_too_many(scope, account)
        return account, self._rates.take(account, size=_size(scope))

    def _is_open(self, scope: Scope) -> bool:
        return (
            scope["type"] != "http"
            or scope["path"] in self._open
            or f"{scope['method']} {scope['path']}" in self._open
            or (scope["path"] in self._signed and scope["method"] == "POST")
        )

    async def _answer_measured(
        self, account: Account, expected: float, answering: Awaitable[None]
    ) -> None:
        """Answer a request, and charge its processor time to the account."""
        charged = expected

        def charge(seconds: float) -> None:
            nonlocal charged
            charged = self._rates.charge(account, charged, seconds)

        metered = Metered(answering, charge)
        try:
            await metered
        finally:
            self._rates.settle(account, charged, metered.seconds)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with a valid key. Changes are written to the audit log."""
        if self._audit is None:
            await self._app(scope, receive, send)
        else:
            await self._audit.answer(self._app, scope[_KEY], scope, receive, send)

    def _credential(self, scope: Scope) -> LiveCredential:
        """The credential of the request: the request may run only while that is valid."""
        if self._login_sessions and login_of(scope):
            return _SentCredential(self._login_sessions.find_key, cookie_of(scope))
        secret = _secret(scope)
        if secret.startswith(tuple(self._credentials)):
            return _SentCredential(partial(self._check, scope), secret)
        return _SentCredential(self._keys.check, secret)

    def _refusal(self, error: Refused | TowpathError, scope: Scope) -> Response:
        """The error as a response; a browser without a key gets the page with the login instead."""
        by_browser = (b"sec-fetch-dest", b"document") in scope["headers"]
        if self._login_page and by_browser and isinstance(error, Refused) and error.status == 401:
            return self._login_page(scope)
        return of_error(error)

    async def _require_key(self, scope: Scope) -> KeyInfo:
        """The key of the request. Raises Refused: 401 without a valid key, 403, or 429 after too
        many wrong keys.
        """
        secret = _secret(scope)
        key = await self._find(scope, secret)
        if key is None:
            raise Refused(
                401,
                "unauthorized",
                "the key is not valid" if secret else "no key",
                remedy="Send `Authorization: Bearer <key>`; `towpath keys create` makes one.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return key

    async def _find_login(self, scope: Scope) -> KeyInfo | None:
        """The key of the login session, for GET requests of open pages. Raises Refused (429)."""
        asks = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        return await self._find(scope, "") if asks and scope["path"] in self._pages else None

    async def _find(self, scope: Scope, secret: str) -> KeyInfo | None:
        """The key of *secret*; without a secret, of the login session. A wrong one counts as a
        guess. Raises Refused (429) after too many.
        """
        cookie = cookie_of(scope) if self._login_sessions and not secret else ""
        address = address_of(scope)
        if is_new := not self._has_seen(secret, cookie):
            self._guesses.take(address)
        key = await self._check(scope, secret) if secret else await self._find_session_key(scope)
        if key is not None and is_new:
            self._guesses.give_back(address)
        return key

    async def _check(self, scope: Scope, secret: str) -> KeyInfo | None:
        """The key that *secret* belongs to, or that has issued it as a credential."""
        for prefix, check in self._credentials.items():
            if secret.startswith(prefix):
                return await check(scope, secret)
        return await self._keys.check(secret)

    def _has_seen(self, secret: str, cookie: str) -> bool:
        """Whether the credential can't be a guess: it was valid before, or none was sent."""
        if secret.startswith(tuple(self._credentials)):
            return True  # it is signed, and the signature is checked before the database is read
        if secret:
            return self._keys.has_seen(secret)
        return not (self._login_sessions and cookie) or self._login_sessions.has_seen(cookie)

    async def _require_admin(self, scope: Scope) -> None:
        """Raises Refused (503) unless the request has an admin's key."""
        try:
            key = await self._require_key(scope)
        except Refused as error:
            raise no_connections() from error
        if not key.may(KeyScope.ADMIN):
            raise no_connections()

    async def _find_session_key(self, scope: Scope) -> KeyInfo | None:
        """The key of the request's login session. Raises Refused (403) for a request of another
        site.
        """
        login = await self._login_sessions.find(scope) if self._login_sessions else None
        if self._login_sessions and login:
            self._login_sessions.require_own(scope, login)
        return login.key if login else None


def _require_once(scope: Scope) -> None:
    """Raises Refused (400) if one of the headers in ONCE comes twice."""
    seen = set[bytes]()
    for name, _ in scope.get("headers", ()):
        if name in ONCE:
            if name in seen:
                raise Refused(
                    400,
                    "header_repeated",
                    f"the header `{name.decode()}` comes more than once",
                    remedy="Send it once.",
                )
            seen.add(name)


def _secret(scope: Scope) -> str:
    """The key that was sent, or empty; `Authorization` wins over `X-Api-Key`."""
    plain = ""
    for name, value in scope["headers"]:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return value[7:].strip().decode("latin-1")
        if name == b"x-api-key":
            plain = value.decode("latin-1")
    return plain


_SIZE = re.compile(rb"(?:^|&)size=([0-9]{1,4})(?:&|$)")


def _size(scope: Scope) -> int:
    """The value of the query parameter `size`; 0 = none."""
    found = _SIZE.search(scope["query_string"])
    return int(found[1]) if found else 0


def inner_scope(scope: Scope) -> Scope:
    """The part of a scope that an inner request needs: where it comes from, and its key."""
    kept = ("type", "asgi", "http_version", "scheme", "client", "server", "root_path", "state")
    return {name: scope[name] for name in (*kept, _KEY, LOGIN, OPEN, CONNECTION) if name in scope}


def key_of(request: Request) -> KeyInfo:
    """The key of the request."""
    return request.scope[_KEY]


def account_of(scope: Scope) -> Account:
    """The account that the request counts for."""
    return Account(scope[_KEY].id, credential_of(scope))


def note_credential(scope: Scope, name: str) -> None:
    """Note that the request came with a credential. *name* says what the credential is for; its
    limits are counted by that name.
    """
    scope[_CREDENTIAL] = name


def credential_of(scope: Scope) -> str:
    """The name of the request's credential; empty if it came with a key or a login session."""
    return scope.get(_CREDENTIAL, "")


def is_known(request: Request) -> bool:
    """Whether the request has a key or a login session; on an open path it may have none."""
    return _KEY in request.scope


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
    """Whether a route checks a scope of the key, itself or through its dependencies."""
    return dependant.call in _SCOPED or any(map(has_scope, dependant.dependencies))


def require(key: KeyInfo, scope: KeyScope, queue: str | None) -> None:
    """Raises Refused (403) unless *key* has *scope*, and covers *queue*."""
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
    """Raises Refused (403) for a raw call that *key* may not make: on an application's queue."""
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
    """Raises Refused (403) unless *key* covers all queues."""
    if "*" not in key.queues:
        raise Refused(
            403,
            "queue_forbidden",
            "the key covers only some queues; this request needs all of them",
            remedy="Use a key for all queues (`*`).",
        )


def _plain(queue: str) -> str:
    """The queue's name, decoded if possible; only the pattern `*` covers an invalid name."""
    try:
        return decoded(queue)
    except ValueError:
        return queue


def changes_only(key: KeyInfo) -> str | None:
    """The owner whose jobs the key may replace, move and cancel; None = those of all owners."""
    return None if key.may(KeyScope.MANAGE) else key.owner


async def hide_foreign(change: Awaitable[T], key: KeyInfo, missing: TowpathError) -> T:
    """Awaits *change*. A key that can't read gets *missing* for what belongs to another owner."""
    try:
        return await change
    except NotOwned:
        if key.may(KeyScope.READ):
            raise
        raise missing from None


CanSubmit = Annotated[KeyInfo, Depends(scoped(KeyScope.SUBMIT))]
CanWork = Annotated[KeyInfo, Depends(scoped(KeyScope.WORK))]
CanRead = Annotated[KeyInfo, Depends(scoped(KeyScope.READ))]
CanAdmin = Annotated[KeyInfo, Depends(scoped(KeyScope.ADMIN))]
