"""The base of HTML pages: the frame, templates and filters of the dashboard and applications.

A page is a template in the frame that all pages share. It shows nothing that the HTTP API does not
offer, and it changes nothing: its buttons send requests to the API with the login session.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PrefixLoader, StrictUndefined

from towpath.clock import format_duration, instant, trim_timestamps, wall_ms
from towpath.errors import QueueNotFound, TowpathError
from towpath.ledger.keys.key import KeyInfo, Scope
from towpath.ledger.keys.raw import RawQueues
from towpath.web.auth import is_known, key_of
from towpath.web.dashboard_sessions import login_of
from towpath.web.fields import PAGES
from towpath.web.problems import Refused, misfits, of_error

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_OPENED_FIRST = ("login.html", "frame.html", "macros.html", "mark.html", "overview.html")
"""Templates that `compile_first` compiles when the server starts: it takes some 40 ms."""
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
SHOWN_MOST = 64 * 1024
"""Bytes of a payload that a page shows; the rest can be downloaded."""


class Pages(msgspec.Struct, frozen=True, kw_only=True):
    """The pages of an application: paths below `/ui/<its name>`."""

    router: APIRouter
    """Made with `pages_router()`."""
    links: tuple[tuple[str, str], ...]
    """Links for the menu: a title and a path each."""
    queue: str = ""
    """The queue that a key must cover to open the pages; other keys see no links to them."""
    folder: Path
    """Where its `templates` and its `static` files are."""


class StaticFile(NamedTuple):
    """A file that is sent as it is; *version* is a hash of its content."""

    content: bytes
    kind: str
    version: str


class Frame:
    """Templates, static files and the menu: what all pages share."""

    def __init__(self, folder: Path, pages: Mapping[str, Pages], *, version: str) -> None:
        self.version = version
        self._pages = pages.values()
        own = FileSystemLoader(folder / "templates")
        theirs = {
            name: FileSystemLoader(added.folder / "templates") for name, added in pages.items()
        }
        self._env = Environment(
            loader=ChoiceLoader([own, PrefixLoader(theirs)]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._env.filters |= FILTERS
        self.files = _read(folder / "static")
        for name, added in pages.items():
            self.files |= {
                f"{name}/{at}": file for at, file in _read(added.folder / "static").items()
            }
        self._env.globals.update(static=self._static, version=version)  # pyright: ignore[reportCallIssue, reportArgumentType] -- jinja2 types the dict by its defaults

    def compile_first(self) -> None:
        """Compile the templates of the first page, so that its reader does not wait for it."""
        for name in _OPENED_FIRST:
            self._env.get_template(name)

    def links(self, key: KeyInfo) -> list[tuple[str, str]]:
        """The menu's links to pages of applications that *key* may open."""
        seen = [added for added in self._pages if not added.queue or key.covers(added.queue)]
        return [link for added in seen for link in added.links]

    def render(self, template: str, **context: Any) -> str:
        return self._env.get_template(template).render(**context)

    def _static(self, name: str) -> str:
        return f"{PAGES}static/{name}?v={self.files[name].version}"


def _read(folder: Path) -> dict[str, StaticFile]:
    files = sorted(file for file in folder.rglob("*") if file.suffix in _TYPES)
    found = {
        file.relative_to(folder).as_posix(): (file.read_bytes(), _TYPES[file.suffix])
        for file in files
    }
    return {
        name: StaticFile(content, kind, sha256(content).hexdigest()[:12])
        for name, (content, kind) in found.items()
    }


class DashboardPage:
    """A page for one request."""

    def __init__(self, request: Request, frame: Frame) -> None:
        self._request, self._frame = request, frame

    def can(self, scope: str, queue: str | None = None, raw: str = "") -> bool:
        """Whether the reader may do what needs *scope*: otherwise its button is not shown.

        *raw* names the operation of a button that calls a generic path of *queue*.
        """
        key = key_of(self._request)
        fits = queue is None or key.covers(queue)
        if queue and raw and not key.may(Scope.RAW):
            queues: RawQueues = self._request.app.state.raw
            fits = fits and not queues.needs_raw(queue, raw)
        return fits and key.may(Scope(scope)) and login_of(self._request.scope) is not None

    def changes(self, owner: str | None) -> bool:
        """Whether the reader may change jobs and schedules of *owner*."""
        key = key_of(self._request)
        return key.may(Scope.MANAGE) or owner == key.owner

    def show(self, template: str, *, status: int = 200, **context: Any) -> Response:
        """The page *template* in the frame."""
        request, login = self._request, login_of(self._request.scope)
        key = key_of(request)
        text = self._frame.render(
            template,
            key=key,
            csrf=login.csrf if login else "",
            can=self.can,
            changes=self.changes,
            links=self._frame.links(key),
            here=request.scope["path"],
            url=request.scope["path"] + (f"?{asked}" if (asked := request.url.query) else ""),
            origin=f"{request.url.scheme}://{request.url.netloc}",
            now=instant(wall_ms()),
            **{"live": "", "mark": "", **context},
        )
        return HTMLResponse(text, status, headers=HEADERS)


async def _page(request: Request) -> DashboardPage:
    return DashboardPage(request, request.app.state.frame)


ThePage = Annotated[DashboardPage, Depends(_page)]


class PageRoute(APIRoute):
    """Shows errors as pages, with the same status as in the API."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # pyright: ignore[reportIncompatibleMethodOverride] -- awaited either way
        handler = super().get_route_handler()

        async def shown(request: Request) -> Response:
            try:
                return await handler(request)
            except (TowpathError, Refused) as error:
                answer = of_error(error)
                if not is_known(request):
                    return answer
                problem: dict[str, Any] = msgspec.json.decode(bytes(answer.body))
            except RequestValidationError as error:
                unfit = cast("list[dict[str, Any]]", error.errors())
                problem = {"status": 422, "title": "Invalid input", "detail": misfits(unfit).detail}
            page = DashboardPage(request, request.app.state.frame)
            return page.show("error.html", status=problem["status"], problem=problem)

        return shown


def pages_router() -> APIRouter:
    """A router for the pages of an application. OpenAPI does not list them."""
    return APIRouter(route_class=PageRoute, include_in_schema=False)


def refuse_unknown(key: KeyInfo, queue: str, known: Mapping[str, Any]) -> None:
    """Raises Refused (404) for a queue that does not exist, or that *key* does not cover."""
    if queue not in known or not key.covers(queue):
        missing = QueueNotFound(queue, filter(key.covers, known))
        remedy = "It was deleted, or no job was ever submitted to it. Go back to the overview."
        raise Refused(404, missing.code, str(missing), remedy=remedy)


# ── filters of templates ─────────────────────────────────────────────────────────────────

_VISIBLE = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "\u2421",
    **dict.fromkeys(range(0x80, 0xA0), "\ufffd"),
}
NOTHING = "\u2013"
_STEPS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def visible(text: str) -> str:
    """*text* with visible signs instead of control characters; keeps line breaks and tabs."""
    return text.encode("utf-8", "replace").decode().translate(_VISIBLE)


def short(text: str, most: int = 60) -> str:
    """*text* up to *most* characters."""
    text = visible(text).replace("\n", " ")
    return text if len(text) <= most else text[: most - 1] + "…"


def span(value: float | None) -> str:
    """A duration in seconds, in one or two units."""
    if value is None:
        return NOTHING
    value = max(value, 0)
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 10:
        return f"{value:.1f} s"
    for at, (size, unit) in enumerate(_STEPS):
        if value >= size:
            rest = int(value % size // _STEPS[at + 1][0]) if at + 1 < len(_STEPS) else 0
            return f"{int(value // size)} {unit}" + (f" {rest} {_STEPS[at + 1][1]}" if rest else "")
    return "0 s"


def ago(at: datetime | None, now: datetime) -> str:
    """How long before or after *now*."""
    if at is None:
        return NOTHING
    seconds = (now - at).total_seconds()
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def moment(at: datetime | None) -> str:
    """An instant, to the second."""
    return NOTHING if at is None else at.strftime("%Y-%m-%d %H:%M:%S %Z")


def number(value: float) -> str:
    """A number with narrow blanks between thousands."""
    return f"{value:,.0f}".replace(",", "\u202f")


def as_text(data: bytes | None) -> str:
    """A payload as text: JSON with indentation, other text as it is, bytes in hexadecimal. Cut to
    what a page shows.
    """
    if not data:
        return ""
    if len(data) <= SHOWN_MOST:
        try:
            return visible(msgspec.json.format(data, indent=2).decode())
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
    part = data[:SHOWN_MOST]
    text = part.decode("utf-8", "replace")
    if text.count("\ufffd") > len(text) // 20:
        return part[: SHOWN_MOST // 8].hex(" ", 4)
    return visible(text)


def segment(text: str) -> str:
    """A name as a part of a path."""
    return quote(text, safe="")


def curl(path: str, method: str, body: str = "") -> str:
    """The request as a curl command, quoted for a shell."""
    words = ["curl", "-X", method, shlex.quote(path.replace("'", "%27"))]
    if body:
        words += ["-H", "'Content-Type: application/json'", "-d", shlex.quote(body)]
    return " ".join([*words, "-H", '"Authorization: Bearer $TOWPATH_API_KEY"'])


def as_json(value: Any) -> str:
    """*value* as JSON for a request's body, escaped like other text. The `tojson` of Jinja marks
    its result as safe, so its quotes would end the attribute that it is written into.
    """
    return msgspec.json.encode(value).decode()


_FILTERS = (
    visible, trim_timestamps, short, span, format_duration, ago, moment, number, as_text, segment,
    curl, as_json,
)  # fmt: skip
FILTERS: dict[str, Callable[..., Any]] = {function.__name__: function for function in _FILTERS}
