"""The audit log of requests: each route that changes something declares what is logged.

`@audited("reason")` writes every request with its target and these fields. `@audited(...,
only_people=True)` is for the data path: only requests of a login session are written, because a row
for each submitted job would cost more than the job. `@not_audited("why")` writes nothing. The route
decides, never a header of the request; the server does not start with a route that declares none.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast
from urllib.parse import parse_qs, quote, unquote

import msgspec
from pydantic import BaseModel
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from towpath.ledger.audit import API, DASHBOARD, NewEntry
from towpath.ledger.errors import LedgerError
from towpath.recent import RecentCache
from towpath.telemetry import events
from towpath.telemetry.logs import scrub
from towpath.web.dashboard_sessions import login_of
from towpath.web.fields import decoded

if TYPE_CHECKING:
    from fastapi.routing import APIRoute

    from towpath.ledger.keys.key import KeyInfo
    from towpath.ledger.ledger import Ledger
    from towpath.telemetry.logs import Log

P = ParamSpec("P")
R = TypeVar("R")
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""
_RULE = "__towpath_audit__"
_LONGEST_TEXT, _LONGEST_LIST, _LONGEST_CHANGE = 200, 5, 2000
_REFUSALS_EVERY, _REFUSALS_MOST = 1.0, 10_000
"""Seconds between two entries of one key for requests that were refused before anything was done:
refused requests can't make the database write more often."""


# ── declarations ─────────────────────────────────────────────────────────────────────────


class AuditRule(msgspec.Struct, frozen=True):
    """What the audit log keeps of the requests of a route."""

    fields: tuple[str, ...] = ()
    """Fields of the body or the query that say what is changed. Never payloads or secrets."""
    answer: tuple[str, ...] = ()
    """Fields of the answer, such as the id of a new job."""
    by_people: bool = True
    by_keys: bool = True

    def covers(self, via: str) -> bool:
        return self.by_people if via == DASHBOARD else self.by_keys


def audited(
    *fields: str, answer: tuple[str, ...] = (), only_people: bool = False
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
    """Declare that requests of a route are written to the audit log, with these *fields*.

    The entry is written before the route's function is called, so every change is in the log. With
    *only_people*, requests with an API key are left out.
    """
    rule = AuditRule(fields, answer, by_keys=not only_people)

    def declare(endpoint: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        @wraps(endpoint)
        async def write_then_call(*args: P.args, **values: P.kwargs) -> R:
            request = _CURRENT.get()
            if request is None or not rule.covers(request.via):
                return await endpoint(*args, **values)
            given = inspect.signature(endpoint).bind(*args, **values).arguments
            await request.begin(endpoint.__name__, _changes(rule.fields, given, request.scope))
            made = await endpoint(*args, **values)
            request.add(_answer_fields(rule.answer, made))
            return made

        setattr(write_then_call, _RULE, rule)
        return write_then_call

    return declare


def not_audited(why: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare that requests of a route are never written to the audit log, and *why*."""

    def declare(endpoint: Callable[P, R]) -> Callable[P, R]:
        setattr(endpoint, _RULE, AuditRule(by_people=False, by_keys=False))
        return endpoint

    return declare


def rule_of(route: object) -> AuditRule | None:
    """What *route* declares; None if it declares nothing."""
    return getattr(getattr(route, "endpoint", None), _RULE, None)


def changes_of(route: APIRoute) -> set[str]:
    """The methods of *route* that may change something."""
    return {method for method in route.methods or () if method not in SAFE}


def must_declare(route: APIRoute) -> bool:
    """Whether *route* may change something, but declares no rule for the audit log."""
    return bool(changes_of(route)) and rule_of(route) is None


# ── requests ─────────────────────────────────────────────────────────────────────────────


class Auditor:
    """Answers requests, and writes changes to the audit log of a ledger."""

    def __init__(self, ledger: Ledger, log: Log) -> None:
        self.ledger, self.log = ledger, log
        self._refused = RecentCache[str, bool](_REFUSALS_MOST, _REFUSALS_EVERY)

    async def answer(
        self, app: ASGIApp, key: KeyInfo, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer a request that came with *key*."""
        if scope["method"] in SAFE:
            await app(scope, receive, send)
            return
        request = _AuditedRequest(self, key, scope)

        async def note_status(message: Message) -> None:
            if message["type"] == "http.response.start":
                request.status = message["status"]
            await send(message)

        before = _CURRENT.set(request)
        try:
            await app(scope, receive, note_status)
        finally:
            _CURRENT.reset(before)
            if request.is_noteworthy:
                # The entry exists since before the change; the ledger logs its own outages.
                with suppress(LedgerError):
                    await request.end()

    def may_note_refusal(self, key: KeyInfo) -> bool:
        """Whether another refused request of *key* may be written now."""
        if self._refused.get(key.id):
            return False
        self._refused.put(key.id, True)
        return True


class _AuditedRequest:
    """One request and, once its route has begun, its entry."""

    __slots__ = ("_auditor", "_changed", "_key", "_more", "_seq", "scope", "status", "via")

    def __init__(self, auditor: Auditor, key: KeyInfo, scope: Scope) -> None:
        self._auditor, self._key, self.scope = auditor, key, scope
        self.via = DASHBOARD if login_of(scope) else API
        self.status = 500
        self._seq: int | None = None
        self._changed: dict[str, Any] = {}
        self._more = False

    @property
    def is_noteworthy(self) -> bool:
        """Whether there may be something to write at the end: an entry's status, or a refusal."""
        return self._seq is not None or self.status >= 400

    async def begin(self, action: str, changed: Mapping[str, Any]) -> None:
        """Write the entry, before the change is made. Raises LedgerError: then do not make it."""
        self._changed = dict(changed)
        self._seq = await self._auditor.ledger.audit.begin(self._entry(action))

    def add(self, found: Mapping[str, Any]) -> None:
        """Add fields of the answer to the entry."""
        self._more = bool(found)
        self._changed |= found

    async def end(self) -> None:
        """Write the status of the answer."""
        audit = self._auditor.ledger.audit
        if self._seq is not None:
            self._log()
            await audit.end(self._seq, self.status, changed=self._changed if self._more else None)
        elif self._was_refused() and self._auditor.may_note_refusal(self._key):
            self._log()
            await audit.begin(self._entry(self.scope["route"].endpoint.__name__), self.status)

    def _was_refused(self) -> bool:
        rule = rule_of(self.scope.get("route"))
        return 400 <= self.status < 500 and rule is not None and rule.covers(self.via)

    def _log(self) -> None:
        event = events.DASHBOARD_ACTION if self.via == DASHBOARD else events.API_ACTION
        request = f"{self.scope['method']} {_path(self.scope)}"[:1000]
        self._auditor.log.emit(event, key=self._key.id, request=request, status=self.status)

    def _entry(self, action: str) -> NewEntry:
        return NewEntry(
            key=self._key,
            via=self.via,
            method=self.scope["method"],
            path=_path(self.scope),
            action=action,
            target=_target(self.scope),
            changed=self._changed,
        )


_CURRENT: ContextVar[_AuditedRequest | None] = ContextVar("towpath_audited", default=None)
"""The request that is being answered: routes need no parameter for it."""


# ── contents of entries: bounded, and without secrets ────────────────────────────────────

_QUERY_OF_URL = re.compile(r"(?<=://)([^\s?#\"']*)[?#][^\s\"']*")
_SECRETS = re.compile(r"(tp_[a-z0-9]+_|whsec_)[\w+/=-]+")


def _hide(text: str) -> str:
    """*text* without credentials, queries of URLs, keys and signing secrets."""
    return _SECRETS.sub(r"\1***", _QUERY_OF_URL.sub(r"\1?***", scrub(text)))


def _path(scope: Scope) -> str:
    """The path as it was sent, without secrets. Its query is left out: anything may be in it."""
    sent = scope.get("raw_path", scope["path"].encode()).decode("ascii", "replace")
    return "/".join(map(_hide_in_segment, sent.partition("?")[0].split("/")))


def _hide_in_segment(segment: str) -> str:
    plain = unquote(segment)
    shown = _hide(plain)
    return segment if shown == plain else quote(shown, safe="*:@")


def _target(scope: Scope) -> dict[str, Any]:
    """The names in the path: a queue, a job, a key, …"""
    named: dict[str, Any] = scope.get("path_params") or {}
    return {name: _loggable(_plain(value)) for name, value in named.items()}


def _plain(value: object) -> object:
    try:
        return decoded(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _changes(fields: tuple[str, ...], given: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    """The *fields* that a request sets, in its body or its query."""
    asked = parse_qs(scope.get("query_string", b"").decode("ascii", "replace"), max_num_fields=100)
    found: dict[str, Any] = {}
    for value in given.values():
        if isinstance(value, BaseModel):
            names = value.model_fields_set.intersection(fields)
            found |= {name: getattr(value, name) for name in names}
        elif isinstance(value, list):
            found["count"] = len(cast("list[Any]", value))
    for name in set(fields).intersection(asked) - found.keys():
        found[name] = given.get(name, asked[name][0])
    return _limit_size({name: found[name] for name in (*fields, "count") if name in found})


def _answer_fields(fields: tuple[str, ...], made: object) -> dict[str, Any]:
    """The *fields* that an answer has."""
    return _limit_size({name: getattr(made, name) for name in fields if hasattr(made, name)})


def _limit_size(found: Mapping[str, Any]) -> dict[str, Any]:
    left, bounded = _LONGEST_CHANGE, dict[str, Any]()
    for name, value in found.items():
        shown = _loggable(value)
        left -= len(name) + len(msgspec.json.encode(shown))
        bounded[name] = shown if left >= 0 else "…"
    return bounded


def _loggable(value: object) -> Any:
    """*value* as far as it may be written."""
    match value:
        case str():
            # Hide secrets before the cut: half a URL would not be recognized.
            text = _hide(value[: 8 * _LONGEST_TEXT])
            return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
        case None | bool() | int() | float():
            return value
        case datetime():
            return value.isoformat()
        case list() | tuple():
            all = cast("list[object]", value)
            more = len(all) - _LONGEST_LIST
            shown = [_loggable(each) for each in all[:_LONGEST_LIST]]
            return shown if more <= 0 else [*shown, f"… {more} more"]
        case dict():
            pairs = cast("dict[str, object]", value)
            return {name: _loggable(pairs[name]) for name in list(pairs)[:_LONGEST_LIST]}
        case _:
            return f"<{type(value).__name__}>"
