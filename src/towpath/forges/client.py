"""The client of a forge's API: its address and token, pages of lists, and what refusals mean.

Calls go through the guard of `calls` and raise its errors: AnswerRefused if the forge may accept
the call later (`after` says when), RefusedForGood if it never will, CallFailed without an answer.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from towpath.calls.answer import FINAL, Advice, CallAnswer, Next, advice, require_taken
from towpath.calls.caller import Caller, request_headers
from towpath.calls.errors import AnswerRefused, AnswerTooLarge
from towpath.calls.guard import parse_target
from towpath.clock import ZERO, Duration, days, minutes, seconds, steady, wall_ns
from towpath.errors import InvalidOption
from towpath.forges.spec import ForgeSpec

_HIDDEN, _UNCHANGED = 404, 304
"""Forges answer 404 for things that do not exist, and for things that the token may not see."""
_ABSENT = (404, 410, 451)
_LIMITED = (403, 429)
_PAGE, _PAGES = 50, 20
_LONGEST_REASON = 200
_NEXT = re.compile(r'<([^<>]*)>\s*;[^,<]*\brel="?next"?')
_PAGE_NUMBER = re.compile(r"[0-9]{1,9}")


class ForgePage(msgspec.Struct, frozen=True):
    """One page of a list."""

    entries: list[dict[str, Any]]
    etag: str
    """For asking later whether the page has changed; empty if the forge sends none."""
    next: str | None
    """The path of the next page; None = this was the last."""


class ForgeClient:
    """Calls the API of one forge. The *token* is sent to *api* only, even if the answer redirects.

    *host* is the address of the forge's web pages, which identifies the forge in tasks; *api* is
    that of its API, if it is not at the usual place.

    After an answer that the rate limit is reached, calls fail with the same refusal and send
    nothing for as long as the forge asks. Raises CallRefused for an invalid address, and
    InvalidOption for an invalid token, which the error does not repeat.
    """

    def __init__(
        self,
        caller: Caller,
        forge: ForgeSpec,
        *,
        token: str,
        host: str | None = None,
        api: str | None = None,
    ) -> None:
        host = (forge.host if host is None else host).rstrip("/")
        api = (api or forge.api(host)).rstrip("/")
        parse_target(host)
        parse_target(api)
        if not token:
            raise InvalidOption("token", "…", rule="must not be empty")
        self.name, self.host, self._api = forge.title, host, api
        self._caller, self._token = caller, token
        self._headers = {"authorization": f"Bearer {token}", "accept": forge.accept}
        request_headers(self._headers, authority=b"")
        self._limited, self._until = 0, 0.0

    def __repr__(self) -> str:
        return f"ForgeClient({self.name})"

    # ── reads ────────────────────────────────────────────────────────────────────────────

    async def get(self, path: str) -> CallAnswer:
        """Send a GET to *path*. Raises AnswerRefused unless the answer is a success."""
        answer = await self._call("GET", path)
        self.require_taken(answer)
        return answer

    async def look(self, path: str) -> CallAnswer:
        """Send a GET to *path*, and return any answer; see `require_taken` and `moved`."""
        return await self._call("GET", path)

    def moved(self, answer: CallAnswer) -> str | None:
        """Return the path of the API that *answer* redirects to; None if it does not."""
        if not 300 <= answer.status < 400 or answer.status == _UNCHANGED:
            return None
        there, here = urlsplit(answer.headers.get("location", "")), urlsplit(self._api)
        inside = there.path.startswith(f"{here.path}/")
        # Only the path is used, so that the token is never sent to another host.
        return there.path[len(here.path) :] if inside and there.path != here.path else None

    async def page(self, path: str, *, etag: str = "") -> ForgePage | None:
        """Read the page at *path*, or at the `next` of another page; None if *etag* still matches.

        An answer that the page is unchanged does not count towards GitHub's rate limit. Raises
        AnswerRefused, also if the answer is no list.
        """
        named = {"if-none-match": etag} if etag else {}
        answer = await self._call("GET", path, headers=named)
        if etag and answer.status == _UNCHANGED:
            return None
        self.require_taken(answer)
        return ForgePage(
            self._entries(answer), answer.headers.get("etag", ""), _next_path(path, answer)
        )

    async def pages(self, path: str, *, most: int = _PAGES) -> AsyncGenerator[ForgePage]:
        """Yield the pages of the list at *path*, *most* at most."""
        following: str | None = path
        for _ in range(most):
            page = await self.page(following)
            if page is None:
                return
            yield page
            following = page.next
            if following is None:
                return

    async def find(self, path: str, mark: str, *, field: str) -> dict[str, Any] | None:
        """Find the entry with *mark* in its *field* among the first thousand of the list at *path*.

        Returns None if the list is too large to be read: posting a comment twice is a nuisance,
        never posting it is a loss.
        """
        try:
            async for page in self.pages(f"{path}?per_page={_PAGE}"):
                for entry in page.entries:
                    if mark in str(entry.get(field, "")):
                        return entry
        except AnswerTooLarge as large:
            self.require_taken(CallAnswer(large.status, {}, b""))
        return None

    # ── changes ──────────────────────────────────────────────────────────────────────────

    async def send(self, method: str, path: str, content: Mapping[str, Any]) -> CallAnswer:
        """Send *content* as JSON, and return the answer, whatever its status."""
        named = {"content-type": "application/json"}
        body = msgspec.json.encode(content)
        return await self._call(method, path, headers=named, body=body)

    async def remove(self, path: str) -> CallAnswer:
        """Send a DELETE to *path*, and return the answer, whatever its status."""
        return await self._call("DELETE", path)

    async def post(self, path: str, content: Mapping[str, Any]) -> CallAnswer:
        return await self.send("POST", path, content)

    # ── checks of answers ────────────────────────────────────────────────────────────────

    def lacks(self, answer: CallAnswer) -> bool:
        """Whether the answer means that the thing does not exist, or not for this token."""
        return answer.status in _ABSENT

    def lasting(self, answer: CallAnswer) -> bool:
        """Whether the forge will never accept the same call."""
        return _advice_for(answer, "").next in FINAL

    def require_taken(self, answer: CallAnswer) -> None:
        """Raise AnswerRefused, with the forge's message, unless the answer is a success."""
        why = self.said(answer)
        require_taken(answer, self.name, asked=_advice_for(answer, why), why=why)

    def said(self, answer: CallAnswer) -> str:
        """Return the forge's error message as one line, without the token; empty for a success.

        The message is safe to show: the operator has chosen the forge.
        """
        if answer.status < 300:
            return ""
        try:
            fields: Any = msgspec.json.decode(answer.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ""
        words = cast("dict[str, Any]", fields).get("message") if isinstance(fields, dict) else None
        line = " ".join(str(words or "").replace(self._token, "…").split())
        return line[:_LONGEST_REASON]

    def _entries(self, answer: CallAnswer) -> list[dict[str, Any]]:
        try:
            return msgspec.json.decode(answer.body, type=list[dict[str, Any]])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise AnswerRefused(self.name, answer.status, "not a list") from error

    # ── requests ─────────────────────────────────────────────────────────────────────────

    async def _call(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> CallAnswer:
        if (left := self._until - steady()) > 0:
            why = "its rate limit is reached"
            raise AnswerRefused(self.name, self._limited, why, after=seconds(left))
        sent = {**self._headers, **(headers or {})}
        answer = await self._caller.call(method, self._api + path, headers=sent, body=body or None)
        asked = _advice_for(answer, self.said(answer))
        if answer.status in _LIMITED and asked.after > ZERO:
            self._limited, self._until = answer.status, steady() + asked.after.total_seconds()
        return answer


def _next_path(path: str, answer: CallAnswer) -> str | None:
    """Return the path of the page after *path*: both forges send a link, GitLab also a number.

    Only the query of the link is used: the token must not be sent to another host, and a forge
    behind a proxy may link to an address that does not work from here.
    """
    place, _, query = path.partition("?")
    if found := _NEXT.search(answer.headers.get("link", "")):
        return f"{place}?{urlsplit(found[1]).query}"
    number = answer.headers.get("x-next-page", "")
    if _PAGE_NUMBER.fullmatch(number) is None:
        return None
    kept = [(name, value) for name, value in parse_qsl(query) if name != "page"]
    return f"{place}?{urlencode([*kept, ('page', number)])}"


def _advice_for(answer: CallAnswer, why: str) -> Advice:
    """Return the advice for *answer*, adjusted for statuses that forges use in their own way."""
    asked = advice(answer)
    if answer.status == _HIDDEN:
        return Advice(Next.NEVER)
    if asked.after > ZERO or asked.next not in (Next.LATER, Next.REFUSED):
        return asked
    return Advice(asked.next, _window(answer.headers, why))


def _window(headers: Mapping[str, str], why: str) -> Duration:
    """Return how long to wait for the forge's rate limit, for answers without Retry-After; zero if
    the rate limit is not the reason. GitHub reports it with 403 as well as with 429.
    """
    for prefix in ("x-ratelimit", "ratelimit"):
        reset = headers.get(f"{prefix}-reset", "")
        if headers.get(f"{prefix}-remaining") == "0" and reset.isascii() and reset.isdecimal():
            # One second more, because the forge gives whole seconds.
            until = seconds(int(reset[:11]) + 1 - wall_ns() / 1e9)
            return min(max(until, seconds(1)), days(1))
    # GitHub asks clients to wait at least a minute if these headers are missing.
    return minutes(1) if "rate limit" in why.lower() else ZERO
