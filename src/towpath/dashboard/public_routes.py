"""Public paths of the dashboard: `/`, `/docs`, login and static files; no data without a login."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi import Path as InPath
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BeforeValidator
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from towpath.dashboard.engine_pages import overview
from towpath.ledger.keys.key import KeyInfo
from towpath.ledger.keys.key import Scope as KeyScope
from towpath.ledger.keys.logins import SESSION
from towpath.ledger.ledger import Ledger
from towpath.web.audit import not_audited
from towpath.web.auth import CanRead
from towpath.web.dashboard_sessions import (
    COOKIE,
    DashboardSessions,
    cookie_of,
    login_of,
    requested_url,
    require_same_origin,
)
from towpath.web.fields import PAGES, decoded
from towpath.web.limits import Account, Guesses, Rates
from towpath.web.open_requests import address_of
from towpath.web.pages import HEADERS, POLICY, DashboardPage, Frame, PageRoute, Pages
from towpath.web.problems import Refused

FOLDER = Path(__file__).parent
OPEN = frozenset({"/", "/docs"})
router = APIRouter(route_class=PageRoute, include_in_schema=False)
fallback_router = APIRouter(route_class=PageRoute, include_in_schema=False)
"""The router that is matched last: paths that no other router has."""
_FORM_MOST = 16 * 1024
_WRONG = "This key is not valid. Check that you copied the whole key and that it was not revoked."
_USED = "This link has been used, or is older than ten minutes. Log in with a key."
_BLIND = "This key has no scope `read`, so there is nothing to show."


def install(app: FastAPI, pages: Mapping[str, Pages]) -> None:
    """Put the objects of the dashboard into `app.state`. *pages* are those of applications."""
    app.state.frame = Frame(FOLDER, pages, version=app.version)
    app.state.login_sessions = DashboardSessions(app.state.ledger)


def login_page(
    frame: Frame, *, to: str = "/", status: int = 200, trouble: str = "", link: str = ""
) -> Response:
    """The page with the login form. It contains its style, because other paths need a key."""
    nonce = secrets.token_urlsafe(16)
    text = frame.render(
        "login.html",
        style=frame.files["towpath.css"].content.decode(),
        nonce=nonce,
        to=to,
        trouble=trouble,
        link=link,
        about_api=to == "/docs",
    )
    policy = POLICY.replace("script-src 'self'", f"script-src 'nonce-{nonce}'")
    policy = policy.replace("style-src 'self'", f"style-src 'nonce-{nonce}'")
    return HTMLResponse(text, status, headers={**HEADERS, "Content-Security-Policy": policy})


class LoginPage:
    """Answers requests for pages without a login session with the login form."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def __call__(self, scope: Scope) -> Response:
        trouble = "Your session has ended. Log in again." if cookie_of(scope) else ""
        return login_page(
            self._frame, to=own_place(requested_url(scope)), status=401, trouble=trouble
        )


def own_place(to: str) -> str:
    """*to* if it is a page of the dashboard, else `/`: a login never redirects to another site."""
    return to if to == "/docs" or to.startswith(PAGES) else "/"


@router.api_route("/", methods=["GET", "HEAD"])
async def first(request: Request, login: Annotated[str, Query(max_length=128)] = "") -> Response:
    """The overview; without a login session, the login form."""
    found = login_of(request.scope)
    if found is None:
        trouble = "Your session has ended. Log in again." if cookie_of(request.scope) else ""
        return login_page(request.app.state.frame, link=login, trouble="" if login else trouble)
    if not found.key.may(KeyScope.READ):
        raise Refused(403, "scope_missing", _BLIND, remedy="Log out and use another key.")
    return await overview(DashboardPage(request, request.app.state.frame), found.key, request)


@router.api_route("/docs", methods=["GET", "HEAD"])
async def docs(request: Request) -> Response:
    """The documentation of the API; without a login session, the login form."""
    if login_of(request.scope) is None:
        return login_page(request.app.state.frame, to="/docs")
    return DashboardPage(request, request.app.state.frame).show("docs.html")


@router.post("/")
@not_audited("a login or logout changes nothing but the login session itself")
async def log_in_or_out(request: Request) -> Response:
    """Open a login session for a key or a login link, or end the session."""
    require_same_origin(request.headers)
    form, ledger = await _form(request), request.app.state.ledger
    if "leave" in form:
        return await _log_out(request, ledger, form)
    key, trouble = await _check_login(request, form)
    to = own_place(form.get("to", "/"))
    if key is None or not key.may(KeyScope.READ):
        why = trouble if key is None else _BLIND
        return login_page(request.app.state.frame, to=to, status=401, trouble=why)
    cookie = await ledger.logins.open(key, most=request.app.state.limits.logins_per_key)
    answer = RedirectResponse(to, 303, headers=HEADERS)
    answer.set_cookie(
        COOKIE,
        cookie,
        max_age=int(SESSION.total_seconds()),
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return answer


async def _check_login(request: Request, form: Mapping[str, str]) -> tuple[KeyInfo | None, str]:
    """The key that the form proves, or None and the reason. Raises Refused (429) after too many
    wrong ones, and for a key over its rate.
    """
    ledger: Ledger = request.app.state.ledger
    guesses: Guesses = request.app.state.guesses
    address = address_of(request.scope)
    link, secret = form.get("link"), form.get("key", "").strip()
    if not link and not secret:
        return None, _WRONG
    guesses.take(address)
    if link:
        key, trouble = await ledger.logins.redeem(link), _USED
    else:
        key, trouble = await ledger.keys.check(secret), _WRONG
    if key is not None:
        guesses.give_back(address)
        rates: Rates = request.app.state.rates
        rates.take(Account(key.id))
    return key, trouble


async def _log_out(request: Request, ledger: Ledger, form: Mapping[str, str]) -> Response:
    login_sessions: DashboardSessions = request.app.state.login_sessions
    cookie, address = cookie_of(request.scope), address_of(request.scope)
    if is_new := bool(cookie) and not login_sessions.has_seen(cookie):
        request.app.state.guesses.take(address)
    login = await login_sessions.find(request.scope)
    if login is not None and is_new:
        request.app.state.guesses.give_back(address)
    if login is not None and secrets.compare_digest(
        form.get("csrf", "").encode(), login.csrf.encode()
    ):
        await ledger.logins.close(cookie)
    elif login is not None:
        raise Refused(403, "cross_site", "the request does not come from a page of this session")
    answer = RedirectResponse("/", 303, headers=HEADERS)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


async def _form(request: Request) -> dict[str, str]:
    body, limits = b"", request.app.state.limits
    try:
        async with asyncio.timeout(limits.body_within.total_seconds()):
            async for part in request.stream():
                body += part
                if len(body) > _FORM_MOST:
                    raise Refused(413, "too_large", "the form is too large")
    except ClientDisconnect:
        return {}
    except TimeoutError:
        raise Refused(
            408,
            "body_too_slow",
            "the form did not arrive in time",
            remedy="Send it again.",
            headers={"Connection": "close"},
        ) from None
    fields: dict[str, Any] = parse_qs(body.decode("utf-8", "replace"), max_num_fields=10)
    return {name: values[0] for name, values in fields.items()}


@router.get(PAGES + "static/{name:path}")
async def static(
    request: Request, name: Annotated[str, InPath(max_length=200)], _: CanRead
) -> Response:
    """Styles and scripts. Their URLs contain their version, so browsers may cache them for long."""
    frame: Frame = request.app.state.frame
    file = frame.files.get(name)
    if file is None:
        raise Refused(404, "not_found", f"there is no file {name[:80]}")
    headers = HEADERS | {"Cache-Control": "private, max-age=31536000, immutable"}
    return Response(file.content, media_type=file.kind, headers=headers)


@fallback_router.get(PAGES + "{path:path}")
async def no_page(path: Annotated[str, BeforeValidator(decoded)], _: CanRead) -> Response:
    """Answer an unknown path with an error page (404)."""
    raise Refused(
        404,
        "not_found",
        f"there is no page {PAGES}{path[:200]}",
        remedy="Check the address, or choose a page above.",
    )
