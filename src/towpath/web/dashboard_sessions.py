"""Requests of the dashboard: a login session's cookie instead of a key, and CSRF checks.

A browser sends the cookie also with requests that a page of another site causes. So a change also
needs the CSRF token, which only pages of the session know, and the origin of the server itself.
"""

from __future__ import annotations

from hmac import compare_digest
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from towpath.web.problems import Refused

if TYPE_CHECKING:
    from towpath.ledger.keys.key import KeyInfo
    from towpath.ledger.keys.logins import Login
    from towpath.ledger.ledger import Ledger

COOKIE = "towpath_session"
CSRF = "x-towpath-csrf"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
LOGIN = "towpath.login"


class DashboardSessions:
    """Finds the login sessions of requests, and refuses requests of other sites."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def find(self, scope: Scope) -> Login | None:
        """The login session of a request; None if it has none that is valid. Raises LedgerError."""
        cookie = cookie_of(scope)
        login = await self._ledger.logins.find(cookie) if cookie else None
        scope[LOGIN] = login
        return login

    async def find_key(self, cookie: str) -> KeyInfo | None:
        """The key of the session with that cookie; None once the session or the key has ended."""
        login = await self._ledger.logins.find(cookie)
        return login.key if login else None

    def has_seen(self, cookie: str) -> bool:
        """Whether *cookie* belongs to a session that this process found lately."""
        return self._ledger.logins.has_seen(cookie)

    def require_own(self, scope: Scope, login: Login) -> None:
        """Raises Refused (403) for a change that does not come from a page of the session."""
        if scope["method"] in _SAFE:
            return
        headers = Headers(scope=scope)
        if not compare_digest(headers.get(CSRF, "").encode(), login.csrf.encode()):
            raise _cross_site_error("the request does not come from a page of this session")
        require_same_origin(headers)


def login_of(scope: Scope) -> Login | None:
    """The login session of a request; None if it came with a key."""
    return scope.get(LOGIN)


def cookie_of(scope: Scope) -> str:
    """The session cookie of a request; empty if there is none."""
    try:
        cookies = SimpleCookie(Headers(scope=scope).get("cookie", ""))
    except CookieError:
        return ""
    return cookies[COOKIE].value if COOKIE in cookies else ""


def requested_url(scope: Scope) -> str:
    """Path and query of a request, as they were sent."""
    path = scope.get("raw_path", scope["path"].encode()).decode("ascii", "replace")
    question = scope.get("query_string", b"").decode("ascii", "replace")
    return f"{path}?{question}" if question else path


def require_same_origin(headers: Headers) -> None:
    """Raises Refused (403) for a request that a page of another site made the browser send."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
    foreign = origin is not None and urlsplit(origin).netloc != headers.get("host")
    if foreign or site not in ("same-origin", "none"):
        raise _cross_site_error("the request comes from a page of another site")


def _cross_site_error(detail: str) -> Refused:
    return Refused(
        403, "cross_site", detail, remedy="Open the dashboard in this browser and try again there."
    )
